"""Each known-wrong kernel of set 11 fails with the diagnosis meant for it; right ones pass."""

import pytest

from kernels.grading import check
from tests.grading import submissions_11 as s
from tests.grading import submissions_11_kernels as k
from tests.grading.edited import edited
from tests.grading.known_wrong import fails, given_out
from tests.grading.right import assert_all_pass_soon
from tests.grading.submissions import AlwaysEqual

RIGHT = {
    "11.1": (s.asks, s.asks_by_tiles),
    "11.2": (s.saved, s.saved_by_difference),
    "11.3": (edited("11.3"), k.gelu_from_the_bias((32, 32, 32), 4)),
    # A name that says tf32 is none of a kernel that multiplies it.
    "11.4": (
        edited("11.4"),
        k.gelu_from_the_bias(),
        edited("11.4", ("epilogue_kernel", "kernel_without_tf32")),
    ),
    "11.5": (edited("11.5"), k.swiglu_of_two_sums),
    "11.6": (edited("11.6"), k.norm_by_merging),
    "11.7": (edited("11.7"), s.way_by_ratios),
    "11.8": (s.fold, s.fold_in_float64, s.fold_in_16_bits),
    "11.9": (edited("11.9"), k.folded_by_shares),
    "11.10": (edited("11.10"), s.means_by_numbers),
}
SUM = "gelu(total + bias[None, :])"
LOOP = 'total = tl.dot(x, weight, total, input_precision="ieee")\n'
IN_LOOP = f"{LOOP}        "


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


def in_loop(then):
    """The kernel of 11.4 with a line more at the end of its loop."""
    return (LOOP, f"{IN_LOOP}{then}\n")


@pytest.mark.parametrize(
    ("edits", "message", "means"),
    [
        ([(SUM, "gelu(total) + bias[None, :]")], "should be", "GELU comes before the bias"),
        ([in_loop("total = gelu(total)")], "should be", "inside the K loop"),
        ([("gelu(total + bias[None, :])", "total + bias[None, :]")], "should be", "GELU is miss"),
        ([(SUM, "gelu(total)")], "should be", "The bias is not added"),
        ([(SUM, "gelu(total - bias[None, :])")], "should be", "it is added"),
        ([(SUM, "gelu(gelu(total + bias[None, :]))")], "should be", "GELU is taken twice"),
        ([("0.7071067811865476", "1.0")], "should be", "erf takes h / √2"),
        ([("0.5 * h * (1.0", "0.5 * (1.0")], "should be", "Φ(h) alone"),
        ([("bias_ptr + cols, mask=cols < N", "bias_ptr + cols, mask=rows < M")], "", "too wide"),
    ],
)
def test_place_wrong(edits, message, means):
    fails(check("11.3", edited("11.3", *edits), seed=1), message=message, means=means)


TANH = (
    "0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))",
    "h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))",
)


@pytest.mark.parametrize(
    ("edits", "message", "means"),
    [
        ([(SUM, "gelu(total) + bias[None, :]")], "should be", "GELU comes before the bias"),
        ([in_loop("total = gelu(total)")], "should be", "inside the K loop"),
        (
            [
                ("total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)", "total = 0.0"),
                (LOOP, 'total += gelu(tl.dot(x, weight, input_precision="ieee"))\n'),
            ],
            "should be",
            "inside the K loop",
        ),
        ([TANH], "should be", "GELU's tanh form"),
        (
            [("0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))", "h * tl.sigmoid(1.702 * h)")],
            "should be",
            "σ(1.702 h)",
        ),
        ([(SUM, "tl.maximum(total + bias[None, :], 0.0)")], "should be", "That is ReLU"),
        (
            [("bias_ptr + cols, mask=cols < N, other=0.0", "bias_ptr + cols")],
            "a load at index",
            "The bias",
        ),
        (
            [("bias_ptr + cols, mask=cols < N", "bias_ptr + cols % BLOCK_N, mask=cols < N")],
            "should be",
            "the first elements of the bias",
        ),
        (
            [
                (
                    LOOP,
                    f"{IN_LOOP}bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)"
                    ".to(tl.float32)\n",
                ),
                (
                    "    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)\n"
                    "    y = gelu",
                    "    y = gelu",
                ),
            ],
            "bytes of bias",
            "once, behind the loop",
        ),
        (
            [('"BLOCK_N": 64', '"BLOCK_N": 32'), ("(n, 64)", "(n, 32)")],
            "the budget is",
            "a larger tile",
        ),
        ([("num_warps=8", "num_warps=4")], "spills", "more warps"),
        ([(', input_precision="ieee"', "")], "multiplies tf32", "input_precision"),
        (
            [
                ("[BLOCK_M, BLOCK_N], tl.float32", "[BLOCK_M, BLOCK_N], tl.float16"),
                (LOOP, 'total += tl.dot(x, weight, input_precision="ieee").to(tl.float16)\n'),
            ],
            "should be",
            "nearly, for short sums",
        ),
        ([("range(0, K, BLOCK_K)", "range(0, K // BLOCK_K * BLOCK_K, BLOCK_K)")], "", "behind the"),
        ([("(m, 64)", "(m, 128)")], "is nan", "The last rows of y"),
        (
            [("x_mask, other=0.0", "x_mask"), ("weight_mask, other=0.0", "weight_mask")],
            "",
            "other=",
        ),
    ],
)
def test_epilogue_wrong(edits, message, means):
    fails(check("11.4", edited("11.4", *edits), seed=1), message=message, means=means)


SPLIT = "gate, up = tl.split(tl.reshape(total, [BLOCK_M, BLOCK_N, 2]))"
ACT = "gate * tl.sigmoid(gate) * up"


@pytest.mark.parametrize(
    ("edits", "message", "means"),
    [
        ([("gate, up = tl.split", "up, gate = tl.split")], "should be", "changed places"),
        (
            [
                (
                    SPLIT,
                    "halves = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N]), [0, 2, 1])\n"
                    "    gate, up = tl.split(halves)",
                )
            ],
            "should be",
            "split into a left and a right half",
        ),
        (
            [
                (
                    "both = tl.program_id(1) * 2 * BLOCK_N + tl.arange(0, 2 * BLOCK_N)",
                    "wide = tl.arange(0, 2 * BLOCK_N)\n"
                    "    first = tl.program_id(1) * BLOCK_N + wide // 2\n"
                    "    both = tl.where(first < N, wide % 2 * N + first, 2 * N)",
                )
            ],
            "should be",
            "takes the first N rows of weight for gate",
        ),
        ([(ACT, "gate * up")], "should be", "SiLU is missing"),
        ([(ACT, "tl.sigmoid(gate) * up")], "should be", "the sigmoid of gate times up"),
        ([(ACT, "gate * tl.sigmoid(gate)")], "should be", "up is missing"),
        ([(ACT, "gate * tl.sigmoid(gate) + up")], "should be", "they are multiplied"),
        ([(ACT, "gate * tl.sigmoid(-gate) * up")], "should be", "The sign in σ"),
        ([("both < 2 * N", "both < N")], "should be", "ends at N"),
        ([("(both < 2 * N)[None, :]", "(both >= 0)[None, :]")], "a load at index", "2 * N"),
        ([('"BLOCK_M": 64', '"BLOCK_M": 32'), ("(m, 64)", "(m, 32)")], "the budget is", "larger"),
        ([("len(weight) // 2", "len(weight)")], "", None),
    ],
)
def test_swiglu_wrong(edits, message, means):
    fails(check("11.5", edited("11.5", *edits), seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("edits", "message", "means"),
    [
        ([("tl.where(mask, x - mean[:, None], 0.0)", "x - mean[:, None]")], "", "Masked lanes"),
        ([("mean += tl.sum(x", "mean = tl.sum(x")], "should be", "of one step alone"),
        (
            [
                ("x - mean[:, None], 0.0)", "x, 0.0)"),
                ("var + eps", "var - mean * mean + eps"),
            ],
            "should be",
            "Take the mean first",
        ),
        ([("x - mean[:, None], 0.0)", "x, 0.0)")], "should be", "is the mean of x²"),
        ([("tl.rsqrt(var + eps)", "tl.rsqrt(var)")], "should be", "eps is missing"),
        ([("tl.rsqrt(var + eps)", "(1 / (tl.sqrt(var) + eps))")], "", "outside the root"),
        ([("tl.rsqrt(var + eps)", "(1 / (var + eps))")], "", "The root is missing"),
        ([("h * scale[None, :] + shift[None, :]", "h * scale[None, :]")], "", "norm_bias is not"),
        ([("h * scale[None, :] + shift[None, :]", "h + shift[None, :]")], "", "norm_weight is mis"),
        ([("h * scale[None, :] + shift", "h * shift[None, :] + scale")], "", "changed places"),
        ([("(x - mean[:, None]) * tl", "x * tl")], "should be", "The mean isn't taken away"),
        ([("centred, axis=1) / K", "centred, axis=1) / (K - 1)")], "", "divided by K - 1"),
        ([("(m, 32)", "(m, 64)")], "is nan", "The last rows of y"),
    ],
)
def test_statistics_wrong(edits, message, means):
    fails(check("11.6", edited("11.6", *edits), seed=1), message=message, means=means)


FIX = "(total - mean[:, None] * c[None, :]) * inv_std[:, None] + b[None, :]"


@pytest.mark.parametrize(
    ("edits", "message", "means"),
    [
        ([(FIX, "total * inv_std[:, None] + b[None, :]")], "should be", "is not subtracted"),
        ([(FIX, "(total - c[None, :]) * inv_std[:, None] + b[None, :]")], "", "as they are"),
        ([("total - mean", "total + mean")], "should be", "mean · sums is added"),
        (
            [(FIX, "total * inv_std[:, None] - mean[:, None] * c[None, :] + b[None, :]")],
            "should be",
            "behind the scale",
        ),
        (
            [(FIX, "(total - mean[:, None] * c[None, :] + b[None, :]) * inv_std[:, None]")],
            "should be",
            "The bias is scaled",
        ),
        ([(FIX, "total - mean[:, None] * c[None, :] + b[None, :]")], "", "inv_std is missing"),
        ([("first += tl.sum", "first = tl.sum")], "should be", "of one step alone"),
        (
            [("first += tl.sum", "first = tl.sum"), ("second += tl.sum", "second = tl.sum")],
            "",
            "of one step alone",
        ),
        ([("second / K - mean * mean", "second / K")], "should be", "is the mean of x²"),
        ([("mean * mean + eps", "mean * mean")], "should be", "eps is missing"),
        (
            [
                ("sums_ptr + cols", "bias_ptr + cols"),
                ("b = tl.load(bias_ptr", "b = tl.load(sums_ptr"),
            ],
            "",
            "changed places",
        ),
        (
            [
                (
                    "wide = x.to(tl.float32)",
                    "wide = tl.load(x_rows + k[None, :], mask=x_mask, other=0.0).to(tl.float32)",
                ),
            ],
            "the budget is",
            "a larger tile",
        ),
        ([("sums_ptr + cols", "sums_ptr + cols % BLOCK_N")], "", "first elements of sums"),
    ],
)
def test_folded_wrong(edits, message, means):
    fails(check("11.9", edited("11.9", *edits), seed=1), message=message, means=means)


RIGHT_GELU = edited("11.4")


@pytest.mark.parametrize(
    ("question", "answer", "message", "means"),
    [
        ("11.3", k.gelu_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("11.4", k.gelu_by_the_package, "a function of the package", "an answer of your own"),
        ("11.4", k.bias_by_pytorch(RIGHT_GELU), "", None),
        ("11.4", k.into_its_input(RIGHT_GELU), "changed its input bias", ""),
        ("11.4", AlwaysEqual(), "not a torch.Tensor", ""),
        ("11.5", k.swiglu_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("11.6", k.norm_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("11.9", k.folded_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
        ("11.9", lambda *given: exit(), "raised SystemExit", ""),
        ("11.1", lambda *args: (AlwaysEqual(),) * 3, "is an int", ""),
        ("11.2", lambda *args: (2**200, 1), "beyond 2**63", ""),
        ("11.7", lambda record: AlwaysEqual(), "it takes one of", ""),
        ("11.8", lambda *given: (AlwaysEqual(),) * 3, "not a torch.Tensor", ""),
        ("11.10", lambda *args: (float("inf"), 1.0, 1.0), "inf as unrounded", ""),
        ("11.10", "largest_means", "The answer is a str", ""),
    ],
)
def test_hostile_answers_earn_nothing(question, answer, message, means):
    fails(check(question, answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("question", "message", "means"),
    [
        ("11.3", "should be", "inside the K loop"),
        ("11.6", "should be", "statistics of its own"),
    ],
)
def test_what_is_given_out_fails_by_its_faults(question, message, means):
    fails(check(question, given_out(question), seed=1), message=message, means=means)
