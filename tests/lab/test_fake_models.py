"""Whole models on fake CUDA tensors: what a GPU would be given, with no GPU."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels.lab.counting import aten, autocast
from kernels.launch import assume_capability

X = torch.empty(64, 128)
SIZE = 64 * 128 * 4


def steps(fn, *args):
    return [(s.name, s.read_unique, s.write_unique) for s in aten.count(fn, *args)]


def names(ledger):
    return [step.name for step in ledger]


def test_a_copy_of_a_strided_tensor():
    assert steps(lambda x: x.t().contiguous(), X) == [("clone", SIZE, SIZE)]
    assert steps(lambda x: x[:, ::2].contiguous(), X) == [("clone", SIZE // 2, SIZE // 2)]


def test_what_lies_on_the_gpu_already_is_not_copied_there():
    def moved(x):
        assert (
            x.device.type == x.cuda().to("cuda").to("cuda:0", torch.float32).device.type == "cuda"
        )
        return x.to(device="cuda").to(x)

    assert steps(moved, X) == []
    assert steps(lambda x: x.to("cuda", torch.float16), X) == [("_to_copy", SIZE, SIZE // 2)]


def test_a_number_is_part_of_the_launch():
    assert steps(lambda x: x * torch.tensor(2.0), X) == [("mul", SIZE, SIZE)]

    def filled(x):
        x[:, 0] = 1.0

    assert steps(filled, X) == [("fill_", 0, 64 * 4)]


def test_tensors_closed_over_and_attributes_lie_on_the_gpu_too():
    weight = torch.empty(128, 32)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.ones(128)

        def forward(self, x):
            assert self.table.device == x.device
            return x * self.table

    ledger = aten.count(lambda x: x @ weight, X)
    assert ledger.tensor("weight").read_unique == 128 * 32 * 4
    module = Plain()
    assert steps(module, X) == [("mul", SIZE + 128 * 4, SIZE)]
    layer = nn.Linear(128, 32)
    ledger = aten.count(lambda x: layer(x).relu(), X)
    assert ledger.tensor("layer.weight").read_unique == 128 * 32 * 4


def test_a_module_is_left_as_it_was():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(128))
            self.weight = nn.Parameter(torch.ones(128))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0)
            self.seen = x
            return x * self.weight + self.mean

    module = Keeping()
    before, weight = module.mean, module.weight
    aten.count(module, X)
    aten.count_training(module, X)
    assert module.mean is before
    assert module.weight is weight
    assert weight.grad is None
    assert not hasattr(module, "seen")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def test_a_tied_weight_is_one_tensor():
    tokens = torch.zeros(4, 8, dtype=torch.int64)
    ledger = aten.count(Tied(), tokens)
    assert ledger.steps[1].tensor("embed.weight").read_unique == 50 * 16 * 4
    assert "head.weight" not in ledger.tensors
    _, back = aten.count_training(Tied(), tokens)
    # its two gradients are added up
    assert names(back) == ["mm", "mm", "embedding_dense_backward", "add"]
    assert back.steps[-1].write_unique == 50 * 16 * 4


def test_views_of_one_tensor_share_its_memory():
    packed = torch.empty(3, 64)

    def shift(a, b):
        a.add_(1)
        return b * a

    ledger = aten.count(shift, packed[0], packed[0])
    assert ledger.steps[1].read_unique == 64 * 4
    assert ledger.tensors == ("a", "mul2")


def test_what_boolean_indices_pick_is_known_where_the_mask_is():
    mask = torch.arange(64) % 4 == 0
    picked, row = 16, 128 * 4
    assert steps(lambda x, m: x[m], X, mask) == [
        ("nonzero", 64, picked * 8),
        ("index", picked * (row + 8), picked * row),
    ]
    assert steps(lambda x, m: torch.masked_select(x, m), X[:, 0], mask) == [
        ("nonzero", 64, picked * 8),
        ("masked_select", picked * (4 + 8), picked * 4),
    ]


def test_a_computed_mask_is_taken_for_true_and_the_ledger_says_so():
    ledger = aten.count(lambda x: x[x > 0], X)
    assert names(ledger) == ["gt", "nonzero", "index"]
    assert ledger.steps[1].write_unique == 64 * 128 * 2 * 8
    assert "as many as there can be" in ledger.steps[1].note
    assert "as many as there can be" in ledger.table()


def test_writing_where_a_mask_is_true_fills_or_puts():
    def filled(x):
        x[x > 0] = 0.0

    def put(x, values):
        x[torch.zeros(5, dtype=torch.int64, device=x.device)] = values

    assert steps(filled, X)[1:] == [("masked_fill_", SIZE + 64 * 128, SIZE)]
    row = 128 * 4
    assert steps(put, X, X[:5])[1:] == [("index_put_", 5 * (row + 8), 5 * row)]


def test_what_goes_by_values_is_one_sentence():
    known = torch.tensor(2.0)
    assert steps(lambda x: x * known.item(), X)[1:] == [("mul", SIZE, SIZE)]
    with pytest.raises(ValueError, match="a value is asked of a tensor"):
        aten.count(lambda x: x / x.max().item(), X)
    with pytest.raises(ValueError, match="the size of what .*unique.* returns goes by values"):
        aten.count(torch.unique, X)
    with pytest.raises(ValueError, match="lstm is not counted: cuDNN's"):
        aten.count(nn.LSTM(128, 8), X)
    with pytest.raises(ValueError, match="sparse.* tensor is not counted"):
        aten.count(lambda x: x * 2, X.to_sparse())


def test_batch_norm_in_training_is_cudnns_and_moves_its_running_statistics():
    x = torch.empty(4, 8, 6, 6)
    size = 4 * 8 * 36 * 4
    forward, back = aten.count_training(nn.BatchNorm2d(8), x.requires_grad_())
    counter, norm = forward.steps
    assert (counter.name, counter.write_unique) == ("add_", 8)
    assert norm.name == "cudnn_batch_norm"
    assert norm.read_unique == size + 4 * 32
    assert norm.write_unique == size + 4 * 32  # y, mean, 1 / σ and the running two
    (step,) = back
    assert step.name == "cudnn_batch_norm_backward"
    assert step.read_unique == 2 * size + 3 * 32
    assert step.write_unique == size + 2 * 32
    # cuDNN's takes no bf16
    assert names(aten.count(nn.BatchNorm2d(8).bfloat16(), x.bfloat16()))[1] == "native_batch_norm"


def test_instance_norm_is_a_batch_norm():
    assert names(aten.count(nn.InstanceNorm2d(8, affine=True), torch.empty(4, 8, 6, 6))) == [
        "repeat",
        "repeat",
        "cudnn_batch_norm",
    ]


def test_autocast_casts_as_on_a_gpu_and_keeps_the_casts_of_weights():
    weight = torch.empty(128, 128, requires_grad=True)

    def cast(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return (x @ weight) @ weight

    half = 128 * 128 * 2
    assert [step.name for step in aten.count(cast, X)] == ["_to_copy", "_to_copy", "mm", "mm"]
    assert aten.count(cast, X).steps[2].read_unique == SIZE // 2 + half
    forward, back = aten.count_training(cast, X)
    assert forward.steps[1].name == "_to_copy"
    # The gradient of a weight is cast back to fp32.
    assert names(back) == ["mm", "mm", "mm", "add", "_to_copy"]
    assert back.steps[-1].write_unique == 2 * half


def test_autocast_keeps_norms_and_losses_in_fp32():
    def normed(x, weight):
        with torch.autocast("cuda", dtype=torch.float16):
            y = F.layer_norm(x @ weight, (64,))
            return F.cross_entropy(y, torch.zeros(64, dtype=torch.int64, device="cuda"))

    told = aten.count(normed, X, torch.empty(128, 64))
    assert names(told) == [
        *("_to_copy", "_to_copy", "mm", "_to_copy", "native_layer_norm"),
        *("zeros", "_log_softmax", "nll_loss_forward"),
    ]

    def probabilities(x):
        with torch.autocast("cuda", dtype=torch.float16):
            return x.softmax(-1)

    # fp16 in, fp32 out, in one launch
    assert steps(probabilities, X.half()) == [("_softmax", SIZE // 2, SIZE)]
    assert names(aten.count(probabilities, X.bfloat16())) == ["_to_copy", "_softmax"]


def attention(dtype=torch.float16, size=64, length=128, **options):
    """Attention in the layout of a projection: (batch, length, heads, head dimension)."""
    q, k, v = (torch.empty(2, length, 4, size, dtype=dtype, requires_grad=True) for _ in range(3))

    def call(*qkv):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in qkv), **options)

    return call, (q, k, v)


def fused(ledger):
    (step,) = [step for step in ledger if "scaled_dot_product" in step.name]
    return step


@pytest.mark.parametrize(
    ("card", "options", "backend", "why"),
    [
        (90, {}, "cudnn", "attention by cudnn on sm_90, the first that is tried there"),
        (80, {}, "flash", "attention by flash on sm_80, the first that is tried there"),
        (80, {"is_causal": True}, "flash", "by flash"),
        (75, {}, "efficient", "efficient on sm_75; not flash: it needs compute capability 8.0"),
        (80, {"dtype": torch.float32}, "efficient", "not flash: it takes fp16 and bf16, not torch"),
        (90, {"size": 256}, "flash", "not cudnn: it takes head dimensions up to 128"),
        (80, {"attn_mask": torch.empty(128, 128).half()}, "efficient", "flash: it takes no mask"),
    ],
)
def test_attention_is_one_operator_and_says_which(card, options, backend, why):
    call, given = attention(**options)
    size = given[0].numel() * given[0].element_size()
    rows = 2 * 4 * 128
    with assume_capability(card):
        forward, back = aten.count_training(call, *given)
        alone = aten.count(call, *given)
    step = fused(forward)
    assert step.name == f"_scaled_dot_product_{backend}_attention"
    assert why in step.note
    assert why in forward.table()
    mask = 128 * 128 * 2 if "attn_mask" in options else 0
    assert step.read_unique == 3 * size + mask
    assert step.write_unique == size + rows * 4  # the log-sum-exp in fp32, a number a row
    assert names(back) == [f"_scaled_dot_product_{backend}_attention_backward"]
    # the gradient, what the forward was given and made, and its log-sum-exp
    assert back.read_unique == 5 * size + rows * 4 + mask
    assert back.write_unique == 3 * size
    # Without gradients flash alone still writes it.
    assert fused(alone).write_unique == size + (rows * 4 if backend == "flash" else 0)


def test_attention_goes_by_what_the_user_switched_off():
    call, given = attention()

    def chosen(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return call(q, k, v)

    ledger = aten.count(chosen, *given)
    assert "_safe_softmax" in names(ledger)
    (told,) = [step.note for step in ledger if step.note]
    assert "attention by math on sm_90; not cudnn: it is switched off; not flash: it is" in told
    call, given = attention(dropout_p=0.25)
    assert names(aten.count(chosen, *given)).count("native_dropout") == 1


def test_dropout_in_attention_keeps_the_state_of_its_random_numbers():
    call, given = attention(dropout_p=0.25)
    plain, _ = attention()
    with assume_capability(80):
        dropped, back = aten.count_training(call, *given)
        kept, undropped = aten.count_training(plain, *given)
    assert dropped.write_unique - kept.write_unique == 16
    assert back.read_unique - undropped.read_unique == 16


def test_heads_that_8_does_not_divide_are_padded_for_flash():
    call, given = attention(size=60)
    with assume_capability(80):
        assert names(aten.count(call, *given)) == [
            *["constant_pad_nd"] * 3,
            "_scaled_dot_product_flash_attention",
        ]


def test_an_encoder_layer_in_training_and_for_inference():
    layer = nn.TransformerEncoderLayer(128, 4, 256, 0.1, batch_first=True, dtype=torch.float16)
    x = torch.empty(2, 16, 128, dtype=torch.float16)
    forward, back = aten.count_training(layer, x)
    told = names(forward)
    assert told.count("native_dropout") == 3
    assert told.count("native_layer_norm") == 2
    assert [name for name in told if "attention" in name] == ["_scaled_dot_product_cudnn_attention"]
    assert names(back).count("native_layer_norm_backward") == 2
    # Without gradients and in eval() PyTorch takes another path on a GPU.
    assert names(aten.count(layer.eval(), x)) == [
        *("addmm", "_scaled_dot_product_cudnn_attention", "addmm", "add_", "native_layer_norm"),
        *("_addmm_activation", "addmm", "add_", "native_layer_norm"),
    ]


def test_functions_inside_functions_of_pytorch_are_seen():
    attend = nn.MultiheadAttention(128, 4, 0.5, batch_first=True)
    told = names(aten.count(lambda x: attend(x, x, x)[0], torch.empty(2, 16, 128)))
    assert told.count("native_dropout") == 1  # of the weights, which are asked for
    pooled = aten.count(F.adaptive_max_pool2d, torch.empty(2, 3, 8, 8), 4)
    assert names(pooled) == ["adaptive_max_pool2d"]


def test_losses_read_what_they_pick():
    logits, target = torch.empty(8, 50, requires_grad=True), torch.zeros(8, dtype=torch.int64)
    forward, back = aten.count_training(F.cross_entropy, logits, target)
    assert names(forward) == ["_log_softmax", "nll_loss_forward"]
    assert forward.steps[1].read_unique == 8 * 4 + 8 * 8
    assert names(back) == ["ones_like", "nll_loss_backward", "_log_softmax_backward_data"]
    assert back.steps[1].read_unique == 4 + 8 * 8 + 4  # dy, targets, the total weight
    assert math.prod((8, 50, 4)) == back.steps[1].write_unique


def test_optimizers_write_what_they_step():
    weights = [torch.empty(16), torch.empty(8, 4)]

    def step(*weights):
        torch._foreach_mul_(weights, 0.5)

    assert steps(step, *weights) == [("_foreach_mul_", 48 * 4, 48 * 4)]


def test_a_training_step_without_gradients_is_refused():
    with pytest.raises(ValueError, match="no output depends on a tensor that requires a gradient"):
        aten.count_training(lambda x: x + 1, X)


def test_the_rules_of_autocast_are_those_of_pytorch():
    """The tables name every operator that PyTorch registers for it, and none beside."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    rules = (autocast.LOWER, autocast.FP32, autocast.FP32_RESULT, autocast.WIDEST, autocast.REFUSED)
    assert sorted(name for rule in rules for name in rule) == sorted(
        {name.removeprefix("aten::").partition(".")[0] for name in registered}
    )


FLOAT, HALF = torch.empty(4, 4), torch.empty(4, 4).bfloat16()


@pytest.mark.parametrize(
    ("fn", "operator", "dtype"),
    [
        (lambda f, h: torch.einsum("ij,jk->ik", f, f), "bmm", torch.bfloat16),
        (lambda f, h: torch.addmm(f, h, f), "addmm", torch.bfloat16),
        (lambda f, h: f @ h, "mm", torch.bfloat16),
        (lambda f, h: h.pow(2.0), "pow", torch.float32),
        (lambda f, h: h**2.0, "pow", torch.float32),
        (lambda f, h: torch.rms_norm(f, [4]), "_fused_rms_norm", torch.float32),
        (lambda f, h: F.mse_loss(h, h), "mse_loss", torch.float32),
        (lambda f, h: h.log_softmax(0), "_log_softmax", torch.float32),
        (lambda f, h: h.sum(0), "sum", torch.float32),
        (lambda f, h: h.norm(), "linalg_vector_norm", torch.float32),
        (lambda f, h: torch.addcmul(h, h, h), "addcmul", torch.bfloat16),
        (lambda f, h: torch.addcmul(h, f, h), "addcmul", torch.float32),
        (lambda f, h: F.gelu(h), "gelu", torch.bfloat16),
        (lambda f, h: f + h, "add", torch.float32),
        (lambda f, h: f.double() @ f.double(), "mm", torch.float64),
    ],
)
def test_each_rule_of_autocast(fn, operator, dtype):
    def cast(f, h):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            made = fn(f, h)
        assert made.dtype == dtype
        return made

    assert names(aten.count(cast, FLOAT, HALF))[-1] == operator
