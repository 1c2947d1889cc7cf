"""Each known-wrong submission of set 05 fails with the diagnosis meant for it; right ones pass."""

import random
from itertools import pairwise

import pytest
import torch

from kernels.cuda import cuda
from kernels.grading import check
from kernels.grading.questions.ch05 import predict as predict
from kernels.grading.questions.ch05 import rungs as rungs
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms import layernorm
from tests.grading import submissions_05 as s
from tests.grading import submissions_05_fused as f
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon

RIGHT = {
    "05.1": (s.chain_by_sets, s.chain_by_crossings, s.chain_by_hand),
    "05.2": (s.rung_by_times, s.rung_by_lanes, s.rung_by_table),
    "05.3": (s.norm_with("right"), s.norm_with("two_arrays"), s.norm_with("a_warp", threads=32)),
    "05.4": (
        s.gate_with("right"),
        s.gate_with("flat", by_rows=False),
        s.gate_with("strided", by_rows=False, threads=512),
    ),
    "05.5": (s.add_with("right"), s.add_with("by_uint4"), s.add_with("strided", 4096)),
    "05.6": (
        f.variance_with("right"),
        f.variance_with("a_block", rows_a_block=1),
        f.variance_with("down", rows_a_block=2, threads=64),
        f.variance_with("one_by_one"),
        f.variance_with("kept_a"),
    ),
    "05.7": tuple(f.layer_norm_with(name) for name in ("right", "in_floats", "backwards")),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_the_seed_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


def wrongly(**mistake):
    return lambda steps, sizes, cuts: predict.chain_bytes(steps, sizes, cuts, **mistake)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (wrongly(writes_all=True), "cuts []", "stays in registers"),
        (wrongly(reads_own=True), "cuts []", "it doesn't read that"),
        (wrongly(reads_each=True), "cuts []", "it reads a tensor once"),
        (wrongly(reads_inputs_once=True), "cuts [1, 2, 3]", "reads it again"),
        (wrongly(writes_last=True), "", "so is each one that any later launch"),
        (wrongly(writes_for_next=True), "", "by a launch further on"),
        (wrongly(writes_output=False), "cuts [1, 2, 3]", "The output is written"),
        (lambda steps, sizes, cuts: predict.chain_bytes(steps, sizes, []), "", "in one launch"),
        (
            lambda steps, sizes, cuts: predict.chain_bytes(steps, sizes, range(1, len(steps))),
            "cuts []",
            "every step by itself",
        ),
        (lambda steps, sizes, cuts: sum(sizes.values()), "the launches move", ""),
        (lambda steps, sizes, cuts: sum(sizes.values()) / 1, "a float", "// divides"),
        (lambda steps, sizes, cuts: "all", "a str; the bytes is an int", ""),
    ],
)
def test_chain_bytes_wrong(answer, message, means):
    fails(check("05.1", answer, seed=1), message=message, means=means)


def by_launches(launches, x_bytes):
    return "chain" if len(launches) > 1 else "held"


def by_width(launches, x_bytes):
    """Hold what has wide loads for packs."""
    told = s.rung_by_times(launches, x_bytes)
    return "packs" if told == "held" else told


def by_any_load(launches, x_bytes):
    told = s.rung_by_times(launches, x_bytes)
    return {"packs": "loops"}.get(told, told)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (by_launches, "says 'held'", "Three times is three loops"),
        (by_width, "the ledger is that of 'held': x is asked for 1.0 times", "held in single"),
        (by_any_load, "says 'loops'; the ledger is that of 'packs'", "loads of 16 bytes"),
        (lambda launches, x_bytes: "loops", "says 'loops'", None),
        (lambda launches, x_bytes: "cuda_3", "says 'cuda_3'", ""),
        (lambda launches, x_bytes: 3, "returned an int; it is one of", ""),
    ],
)
def test_rung_wrong(answer, message, means):
    fails(check("05.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.norm_with("given"), "with no barrier between", "stands a __syncthreads()"),
        (s.norm_with("no_barrier"), "with no barrier between", "stands a __syncthreads()"),
        (s.norm_with("wrong_place"), "with no barrier between", "stands a __syncthreads()"),
        (s.norm_with("unmasked"), "should be", "each adds mean²"),
        (s.norm_with("read_again"), "x is read 2.0 times", "stays in registers"),
        (s.norm_with("beyond"), "at index", "col < n_cols"),
        (s.norm_with("no_eps"), "should be", "eps is not added"),
        (s.norm_with("unbiased"), "should be", "divided by n - 1"),
        (s.norm_with("not_centred"), "should be", "That is RMSNorm's scale"),
        (s.norm_with("first_row"), "should be", "takes the first row"),
        (s.norm_with("no_bias"), "should be", "bias is missing"),
        (s.norm_with("one_pass"), "a mean of 200", "Centre first"),
        (s.norm_with("right", fewer=1), "", ""),
        (lambda x, w, b, eps: torch.layer_norm(x, x.shape[1:], w, b, eps), "PyTorch's", "yours"),
    ],
)
def test_norm_wrong(answer, message, means):
    fails(check("05.3", answer, seed=1), message=message, means=means)


def in_steps(x, bias, residual):
    h = x + bias
    return s.gate_with("right")(h, 0 * bias, residual)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.gate_with("rounded"), "should be", "on its way a value went through fp16"),
        (s.gate_with("no_bias"), "should be", "bias is not added"),
        (s.gate_with("no_silu"), "should be", "silu is missing"),
        (s.gate_with("sigmoid"), "should be", "silu(v) is v * sigmoid(v)"),
        (s.gate_with("sign"), "should be", "The sign of the exponent"),
        (s.gate_with("no_residual"), "should be", "residual is not added"),
        (s.gate_with("first_bias"), "should be", "column c takes bias[c]"),
        (s.gate_with("unguarded"), "at index", "whoever has none does nothing"),
        (s.gate_with("twice"), "x is read 2.0 times", "stays in registers"),
        (
            s.gate_with("flat", blocks=lambda rows, cols: max(rows * cols // 256, 1)),
            "is nan",
            "a quotient rounded up",
        ),
        (s.gate_with("strided", blocks=lambda rows, cols: 1), "runs 1 block on", "idle"),
        (in_steps, "should be", "on its way a value went through fp16"),
    ],
)
def test_gate_wrong(answer, message, means):
    fails(check("05.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.add_with("single"), "loads x with 2 bytes an access", "copied whole"),
        (s.add_with("narrow_store"), "stores to out with 2 bytes", "copied whole"),
        (s.add_with("strict"), "of 1 pack of 16 bytes, 0 are", None),
        (s.add_with("no_rest"), "; no thread stored it", "behind the last whole pack"),
        (s.add_with("rest_by_warp"), "which thread", "they belong to one thread"),
        (s.add_with("rest_by_warp", 8 * 32, 32), "once more", "they belong to one thread"),
        (
            s.add_with("overrun"),
            "a load of 16 bytes (8 elements) from index 0 of 'x', which has 1 element (shape (1,))",
            "whoever has none does nothing",
        ),
        (s.add_with("first_only"), "is nan", "only the first element was stored"),
        (s.add_with("misaligned"), "no multiple of 16", "a multiple of its own"),
        (s.add_with("y_lost"), "should be", "y is not added"),
        (s.add_with("right", 8 * 256, blocks=lambda n: max(n // 2048, 1)), "is nan", "rounded up"),
        (s.add_with("strided", blocks=lambda n: 1), "runs 1 block on", "idle"),
        (lambda x, y: x + y, "PyTorch's add", "a kernel of yours"),
    ],
)
def test_packed_add_wrong(answer, message, means):
    fails(check("05.5", answer, seed=1), message=message, means=means)


def test_every_element_of_a_pack_is_told_as_stored_and_read():
    result = check("05.5", s.add_with("seven"), seed=1)
    fails(result, message="y[7] is ", means=None)
    assert "; thread 0 of block 0 stored it, in line" in result.message, result
    assert "wrong in element 7 of 8" in result.pictures[0]
    reads = [picture for picture in result.pictures if "Reads of" in picture]
    assert len(reads) == 2
    assert all("each element once" in picture for picture in reads), result


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (f.variance_with("rounded"), "a mean of 1000", "the first mean has to be exactly x"),
        (f.variance_with("sums"), "a mean of 1000", "merge states instead"),
        (f.variance_with("unguarded"), "is nan", "Two empty ones have a weight of 0"),
        (f.variance_with("no_delta"), "should be", "merging two means that differ"),
        (f.variance_with("no_lanes"), "should be", "the state of lane 0 alone"),
        (f.variance_with("half"), "should be", "The step with offset 16 is missing"),
        (f.variance_with("early"), "should be", "The step with offset 1 is missing"),
        (f.variance_with("unweighted"), "should be", "w is left out"),
        (f.variance_with("squares"), "should be", "not divided by the sum of the weights"),
        (f.variance_with("by_columns"), "should be", "divided by the number of columns"),
        (f.variance_with("root"), "should be", "leave the root away"),
        (f.variance_with("mean"), "should be", "That is the mean"),
        (f.variance_with("read_again"), "x is read 2.0 times", None),
        (f.variance_with("through_shared"), "bytes to shared memory", "by shuffles"),
        (f.variance_with("no_row"), "at index", "A warp without a row does nothing: row < n_rows"),
        (f.variance_with("right", rows_a_block=9), "is nan", "every row needs a warp"),
        (lambda x, w: x.var(-1, correction=0), "should be", "w is left out"),
    ],
)
def test_row_variance_wrong(answer, message, means):
    fails(check("05.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_squares_are_told_whatever_rounding_leaves_of_a_single_column(seed):
    result = check("05.6", f.variance_with("sums"), seed=seed)
    fails(result, means="With E[x²] - E[x]² two nearly equal numbers are taken from each other")


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (f.layer_norm_with("looping"), "x is read 4.1 times", "stays in registers"),
        (f.layer_norm_with("narrow"), "loads x with 2 bytes", "copied whole"),
        (f.layer_norm_with("narrow_store"), "stores to y with 2 bytes", "copied whole"),
        (f.layer_norm_with("right", "layer_norm<1, 8>"), "loads x with 2 bytes", "copied whole"),
        (f.layer_norm_with("right", "layer_norm<8, 1>"), "", None),
        (
            f.layer_norm_with("right", "layer_norm<1, 4>"),
            "should be",
            "never stored: SIZE · HELD · 256 is less than n_cols. Hold more packs",
        ),
        (f.layer_norm_with("unmasked"), "should be", "each adds mean²"),
        (f.layer_norm_with("one_pass"), "a mean of 200", "Centre first"),
        (f.layer_norm_with("half_sum"), "a mean of 200", None),
        (f.layer_norm_with("half_value"), "should be", "went through fp16"),
        (f.layer_norm_with("no_barrier"), "with no barrier between", "stands a __syncthreads()"),
        (f.layer_norm_with("short"), "should be", "never stored"),
        (f.layer_norm_with("no_weight"), "should be", "weight is missing"),
        (f.layer_norm_with("unbiased"), "should be", "divided by n - 1"),
    ],
)
def test_layer_norm_wrong(answer, message, means):
    fails(check("05.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("packs_of", [2, 4])
def test_packs_of_eight_need_a_width_that_eight_divides(packs_of, seed):
    fails(check("05.7", f.layer_norm_with("right", packs_of=packs_of), seed=seed), means=None)


def kernels_of_chain(steps, cuts):
    """A source with a kernel for each launch: additions, what a launch made being in variables."""
    bounds = [0, *cuts, len(steps)]
    source, taken = "", []
    for number, (first, last) in enumerate(pairwise(bounds)):
        launch = steps[first:last]
        made = [name for name, _ in launch]
        needed = sorted({need for _, needs in launch for need in needs} - set(made))
        later = {need for _, needs in steps[last:] for need in needs} | {steps[-1][0]}
        stored = [name for name in made if name in later]
        parameters = [f"const float* {name}_" for name in needed]
        parameters += [f"float* {name}_" for name in stored]
        body = "".join(f"    float {name} = {name}_[threadIdx.x];\n" for name in needed)
        body += "".join(f"    float {name} = {' + '.join(needs)};\n" for name, needs in launch)
        body += "".join(f"    {name}_[threadIdx.x] = {name};\n" for name in stored)
        source += f"__global__ void launch_{number}({', '.join(parameters)}) {{\n{body}}}\n"
        taken.append((f"launch_{number}", [*needed, *stored]))
    return cuda(source), taken


def test_the_bytes_of_a_cut_chain_are_those_that_real_launches_move():
    rng = random.Random(5)
    steps, sizes = predict.drawn_chain(rng)
    while len(steps) < 6:
        steps, sizes = predict.drawn_chain(rng)
    cuts = [2, 4]
    module, taken = kernels_of_chain(steps, cuts)
    tensors = {name: torch.zeros(64) for name in sizes}
    moved = 0
    for name, arguments in taken:
        moved += module[name][1, 64](*(tensors[one] for one in arguments)).bytes_unique
    assert moved == predict.chain_bytes(steps, dict.fromkeys(sizes, 256), cuts)


def test_the_bytes_of_layernorms_chain_are_those_that_are_counted():
    steps, sizes, cuts = predict._asked(random.Random(0))[0]
    counted = count_op(layernorm.OP, "unfused_cuda", (16384, 8192), torch.bfloat16)
    assert predict.chain_bytes(steps, sizes, cuts) == counted.bytes_unique


def test_every_tensor_of_a_drawn_chain_is_needed():
    for seed in range(50):
        steps, sizes = predict.drawn_chain(random.Random(seed))
        needed = {need for _, needs in steps for need in needs}
        assert needed | {steps[-1][0]} == set(sizes)
        assert len(set(sizes.values())) == len(sizes)


def test_every_rung_is_asked_for():
    told = {rungs.launched(*one)[1] for one in rungs._LAUNCHES}
    assert told == set(rungs.RUNGS)
