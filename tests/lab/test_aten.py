"""The PyTorch ledger: views are free, operands count once, a GPU's operators are seen."""

import torch
import torch.nn.functional as F

from kernels.lab.counting import aten
from kernels.ops.attention.attention import attention
from kernels.ops.norms.layernorm import layer_norm

X = torch.empty(64, 128)
SIZE = 64 * 128 * 4


def steps(fn, *args):
    return [(s.name, s.read_unique, s.write_unique) for s in aten.count(fn, *args)]


def test_views_and_allocations_are_free():
    def views(x):
        x.t()
        x.reshape(128, 64).view(-1)[3:].unsqueeze(0).expand(4, -1)
        torch.empty_like(x)
        return x.detach()

    assert steps(views, X) == []


def test_a_copy_made_by_reshape_is_not_free():
    assert steps(lambda x: x.t().reshape(-1), X) == [("clone", SIZE, SIZE)]


def test_an_operand_given_twice_is_read_once():
    assert steps(lambda x: x * x, X) == [("mul", SIZE, SIZE)]


def test_a_broadcast_operand_counts_its_own_bytes():
    assert steps(lambda x: x.expand(8, 64, 128) + 1, X) == [("add", SIZE, 8 * SIZE)]


def test_in_place_reads_and_writes_but_a_fill_only_writes():
    assert steps(lambda x: x.add_(1), X) == [("add_", SIZE, SIZE)]
    assert steps(lambda x: x.zero_(), X) == [("zero_", 0, SIZE)]


def test_indexing_is_free_and_writing_into_a_part_writes_that_part():
    def parts(x):
        return [x[3], x[3:, None], x[..., ::2], x[:, 1:3], x[None, ..., 0], x[1:2][0, 5:]]

    real = [tuple(part.shape) for part in parts(X)]
    seen = []

    def run(x):
        seen.extend(tuple(part.shape) for part in parts(x))
        x[2:4] = x[0]
        x.copy_(x[:1])
        return x[torch.zeros(5, dtype=torch.int64, device=x.device)]

    told = steps(run, X)
    assert seen == real
    row = 128 * 4
    assert told == [
        ("copy_", row, 2 * row),
        ("copy_", row, SIZE),
        ("zeros", 0, 40),
        ("index", 5 * row + 40, 5 * row),
    ]


def test_a_number_written_into_a_part_writes_that_part():
    def run(x):
        x[:, 0] = 1.0

    ((_, read, written),) = steps(run, X)
    assert read <= 4
    assert written == 64 * 4


def test_out_is_written_and_not_read():
    assert steps(lambda x, y: torch.add(x, 1, out=y), X, X.clone()) == [("add", SIZE, SIZE)]


def test_dropout_is_one_operator_as_on_a_gpu_and_writes_a_mask():
    (step,) = aten.count(lambda x: F.dropout(x, 0.5, training=True), X)
    assert step.name == "native_dropout"
    assert step.write_unique == SIZE + 64 * 128


def test_a_module_counts_with_its_parameters_by_name():
    ledger = aten.count(torch.nn.Linear(128, 32), X)
    assert ledger.tensor("weight").read_unique == 128 * 32 * 4
    assert ledger.tensor("bias").read_unique == 32 * 4
    assert ledger.tensor("input").read_unique == SIZE


def test_an_operator_of_ours_counts_once_through_its_launches():
    def chain(x, weight):
        return F.relu(layer_norm(x * 2, weight))

    ledger = aten.count(chain, torch.empty(4096, 1024).half(), torch.empty(1024).half())
    assert [s.kind for s in ledger] == ["aten", "launch", "aten"]
    assert (ledger.steps[0].name, ledger.steps[2].name) == ("mul", "relu")
    norm = ledger.steps[1]
    assert norm.tensor("x").read_unique == norm.tensor("y").write_unique == 4096 * 1024 * 2
    assert norm.tensor("weight").read_unique == 2048


def test_a_strided_input_of_ours_is_counted_whole():
    ledger = aten.count(layer_norm, torch.empty(16, 6).t())
    assert ledger.tensor("x").read_unique == 16 * 6 * 4


def test_nothing_real_is_allocated():
    ledger = aten.count(lambda x: x + x.mean(-1, keepdim=True), torch.empty(1).expand(2**20, 2**20))
    assert ledger.steps[1].write_unique == 2**40 * 4


def test_each_output_of_ours_counts_where_it_is_read():
    """The three gradients of attention, put side by side: none is taken for another."""
    given = [torch.empty(1, 1, 16, 16, requires_grad=True) for _ in range(3)]

    def attended(q, k, v):
        return attention(*torch.stack([q, k, v]).unbind())

    _, back = aten.count_training(attended, *given)
    (stack,) = [step for step in back.steps if step.name == "stack"]
    assert stack.read_unique == stack.write_unique == 3 * 16 * 16 * 4


def test_views_of_one_tensor_that_lie_apart_are_each_read():
    def attend(qkv):
        q, k, v = qkv.unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    qkv = torch.empty(2, 5, 48, dtype=torch.bfloat16)
    (step,) = aten.count(attend, qkv).steps
    assert step.tensor("qkv").read_unique == qkv.nbytes
    x = torch.empty(100)
    for fn, read in (
        (lambda x: x * x, 400),
        (lambda x: x[:10] * x[:10], 40),
        (lambda x: x[:10] * x[50:60], 80),
        (lambda x: x[1:] * x[:-1], 400),  # they overlap: no more than there is
    ):
        (step,) = aten.count(fn, x).steps
        assert step.read_unique == read
