"""02.4 to 02.8: known-wrong submissions fail with the diagnosis meant for them; right ones pass."""

import pytest
import torch

from kernels.grading import check
from kernels.grading.questions.ch02 import counterexamples
from kernels.lab.counting import aten
from kernels.ops.norms.layernorm import eager
from kernels.paths import ROOT
from tests.grading import submissions_02 as s
from tests.grading import submissions_02_norms as n
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon, assert_passes_soon
from tests.grading.test_exercises import code_cells

RIGHT = {
    "02.4": (s.saved_by_kinds, s.saved_in_registers, s.saved_tensor_by_tensor),
    "02.5": (s.lean, s.lean_from_narrow, s.lean_in_place),
    "02.6": (s.rms_with(""), s.rms_divided, s.rms_selected),
    "02.7": (n.add_norm_with(""), n.add_norm_of_narrow_sums, n.add_norm_two_rows),
    "02.8": (
        n.counterexample_with(),
        n.counterexample_of_two_values,
        n.counterexample_by_search,
    ),
}


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_is_set(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_with_another_seed(question):
    for answer in RIGHT[question]:
        assert_passes_soon(question, answer, seed=2)


def without(**rules):
    def saved(*args):
        return s.saved_by_kinds(*args, **rules)

    return saved


def half_open(ledger, first, last, keeps):
    return s.saved_by_kinds(ledger, first, last - 1, keeps) if last > first else 0


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (without(later=False), "for softmax", "a step behind the group reads"),
        (without(kept=False), "_to_copy alone saves 0. 67 of 353", "that the caller keeps"),
        (without(later=False, kept=False), "353 of 353", "Every tensor that the group makes"),
        (without(once=False), "saves", "several steps of the group read is read once"),
        (without(inside=False), "saves", "still in registers"),
        (s.saved_writes, "saves", "their reads are not"),
        (half_open, "fusing _to_copy, amax takes", "both included"),
        (s.saved_by_slice, "saves", "both included"),
        (s.saved_of_made(writes=False), "saves", "Only the reads of what the group makes"),
        (s.saved_of_made(writes=True), "_to_copy alone saves 0", "is still written"),
        (s.saved_with_one_write, "saves", "A tensor made inside the group is written too"),
        (s.saved_if_unread, "saves", "their writes are not"),
        (lambda *args: 0, "saves", ""),
        (lambda *args: s.saved_by_kinds(*args) / 1, "the float", "makes a float"),
        (lambda ledger, first, last: 0, "raised TypeError", ""),
    ],
)
def test_saved_wrong(answer, message, means):
    fails(check("02.4", answer, seed=1), message=message, means=means)


def compiled_inside(x, weight, bias, eps):
    return torch.compile(s.eager_layer_norm)(x, weight, bias, eps)


def shifted_by_one(x, weight, bias, eps):
    return s.lean(x, weight, bias, 1e-5)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.eager_layer_norm, "60.0 an element; the budget", "More than two operators"),
        (s.centred_first, "38.0 an element", "More than two operators"),
        (s.converted_last, "30.0 an element", "The last conversion"),
        (s.copied_last, "30.0 an element", "The last conversion"),
        (lambda x, w, b, eps: x.clone(), "22 of 22 inputs fail", "What comes back is x itself"),
        (lambda x, w, b, eps: s.lean(x, w, b, eps) * 2, "22 of 22 inputs fail", ""),
        (s.narrow_statistics, "in fp16", "var_mean's results have the dtype of x"),
        (s.two_sums_of_operators, "mean near 1000", "E[x²] - E[x]²"),
        (s.by_layer_norm, "called native_layer_norm", "how far separate operators"),
        (s.by_batch_norm, "called native_batch_norm", "how far separate operators"),
        (s.by_numpy, ".numpy() is not supported", "a shape and no data"),
        (s.by_kernel, "launched a kernel (row_kernel)", "PyTorch's operators do the work"),
        (s.by_own_operator, "a function of the package", "of your own"),
        (s.with_a_tensor_elsewhere, "raised", "every new tensor lies where x lies"),
        (s.lean_on_few_rows, "on other inputs of that dtype", "has to be what computes"),
        (compiled_inside, "60.0 an element", "More than two operators"),
        (shifted_by_one, "(2, 128) in fp32", "eps is not used"),
        (lambda x, w, b, eps: s.lean(x.add_(0.5), w, b, eps), "changed its input x", ""),
        (lambda x, w, b, eps: s.lean(x, w, b, eps).float(), "returned torch.float32", None),
    ],
)
def test_lean_wrong(answer, message, means):
    fails(check("02.5", answer, seed=1), message=message, means=means)


def test_a_compiled_function_is_refused():
    answer = torch.compile(s.lean)
    fails(check("02.5", answer, seed=1), message="is compiled", means="No ledger sees into")


def few_programs(x, weight, eps):
    return s.rms_divided(x, weight, eps, lambda rows: 1)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.rms_with("layer norm"), "should be", "That is a LayerNorm"),
        (s.rms_with("block"), "(3, 17) in fp32", "divided by BLOCK"),
        (s.rms_with("sum"), "should be", "not divided by the number of columns"),
        (s.rms_with("no root"), "should be", "not by its root"),
        (s.rms_with("eps outside"), "should be", "it belongs under it"),
        (s.rms_with("no eps"), "should be", "or it is not the one given"),
        (s.rms_with("other eps"), "(2, 128) in fp32", "or it is not the one given"),
        (s.rms_with("half"), "values near 1000", "squares overflow"),
        (s.rms_with("weight added"), "should be", "it multiplies"),
        (s.rms_with("twice"), "x is read 2.0 times", "Each load asks memory again"),
        (s.rms_with("unmasked"), "argument 'y_ptr'", "Two programs meet"),
        (
            s.rms_with("", warps=2),
            "(1, 16384) in fp32, compiled for sm_75, spills",
            "num_warps=8 or",
        ),
        (s.rms_with("weight first", warps=4), "spills", "load weight only after the sum"),
        (few_programs, "(5, 1) in fp32; the question takes 2 at least", "dozens of SMs"),
        (s.rms_by_pytorch, "launched no Triton kernel", "a kernel of yours"),
    ],
)
def test_rms_norm_wrong(answer, message, means):
    fails(check("02.6", answer, seed=1), message=message, means=means)


def test_step_i_of_a_ledger_makes_the_tensor_with_the_number_after_it():
    x, row = torch.empty(4, 8, dtype=torch.float16), torch.empty(8, dtype=torch.float16)
    steps = aten.count(eager, x, row, row).steps
    made = [[t.tensor for t in step.tensors if t.write_unique] for step in steps]
    assert made[1] == ["mean2"]
    assert all(name.endswith(str(i + 1)) for i, (name,) in enumerate(made))


@pytest.mark.parametrize(("fault", "warps"), [("", 4), ("weight first", 8)])
def test_the_ways_out_of_a_spill_are_right(fault, warps):
    assert_passes_soon("02.6", s.rms_with(fault, warps), seed=1)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (n.add_norm_in_two_launches, "bytes of h back", "in registers when it was stored"),
        (n.add_norm_with("h back"), "bytes of h back", "in registers when it was stored"),
        (n.add_norm_with("unrounded"), "mean near 100", "before h was rounded"),
        (n.add_norm_with("x alone"), "y[0, 0]", "LayerNorm of x alone"),
        (n.add_norm_with("minus"), "y[0, 0]", "LayerNorm of x - residual"),
        (n.add_norm_with("no h"), "h[0, 0] is nan", "never stored"),
        (n.add_norm_with("lanes"), "(3, 17) in fp32", "Masked lanes enter the variance"),
        (n.add_norm_with("one pass"), "mean near 1000", "E[x²] - E[x]²"),
        (n.add_norm_with("residual twice"), "x is read 2.0 times", "Each load asks memory again"),
        (n.add_norm_with("x as h"), "h[0, 0]", "h is x alone"),
        (n.add_norm_with("", lambda y, h: (h, y)), "y[0, 0]", "The order is (y, h)"),
        (n.add_norm_with("", lambda y, h: y), "returned a Tensor; it takes the two tensors", ""),
        (n.add_norm_with("", lambda y, h: (y, h, h)), "returned a tuple of 3", ""),
        (n.add_norm_with("", lambda y, h: (y, h.float())), "returned torch.float32", None),
        (n.add_norm_in_place, "changed its input residual", ""),
        (n.add_norm_by_pytorch_and_a_launch, "PyTorch operators: add", "a launch of its own"),
    ],
)
def test_add_norm_wrong(answer, message, means):
    fails(check("02.7", answer, seed=1), message=message, means=means)


def normal(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("fault", "row", "message", "means"),
    [
        ("two_sums", normal(4096), "'two sums' is off by 0.00%", "mean² / 2²⁴"),
        ("two_sums", 1e9 + 50 * normal(4096), "a right LayerNorm in fp32", "Every method"),
        ("two_sums", 1e4 + normal(3000), "'idle lanes' is off", "lanes beyond it"),
        ("idle_lanes", 3 + normal(2048), "'idle lanes' is off by 0.00%", "where there are such"),
        ("idle_lanes", normal(2049), "'idle lanes' is off by", "where mean² counts"),
        ("idle_lanes", 3 + normal(5), "'n minus one' is off", "The row is short"),
        ("half_squares", 10 * normal(4096), "'half squares' is off by 0.0", "65,504"),
        ("half_squares", 1e5 + 1e3 * normal(3000), "'idle lanes' is off", "lanes beyond it"),
        ("n_minus_one", normal(4096), "'n minus one' is off by 0.01%", "where n is small"),
        ("n_minus_one", 9 + normal(3), "'idle lanes' is off", "lanes beyond it"),
        ("n_minus_one", 1e-3 * normal(4), "'eps outside' is off", "of the size of eps"),
        ("eps_outside", normal(4096), "'eps outside' is off by 0.0", "small alike"),
    ],
)
def test_counterexample_wrong(fault, row, message, means):
    answer = n.counterexample_with(**{fault: lambda eps: row})
    fails(check("02.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, 2.0], "returned a list; a row is a torch.Tensor"),
        (torch.zeros(9), "a row of equal numbers"),
        (torch.ones(1), "returned the shape (1,)"),
        (normal(5000), "returned the shape (5000,)"),
        (normal(64)[None], "returned the shape (1, 64)"),
        (normal(64).double(), "in torch.float64"),
        (torch.tensor([1.0, torch.inf]), "not finite"),
    ],
)
def test_a_row_of_another_kind(row, message):
    fails(check("02.8", lambda fault, eps: row, seed=1), message=message, means=None)


@pytest.mark.parametrize(
    ("value", "apart"), [(1e8, "near 1e+08 its neighbours lie 8 apart"), (3.0, "")]
)
def test_a_spread_that_fp32_loses_is_told(value, apart):
    row = torch.full((9,), value)
    result = check("02.8", lambda fault, eps: row, seed=1)
    fails(result, message="a row of equal numbers", means=apart or None)
    assert ("If you added a spread" in result.means) == bool(apart)


def test_the_faults_on_the_page_are_those_that_are_graded():
    cells = dict(code_cells(ROOT / "exercises" / "02_layernorm_by_hand.ipynb"))
    page: dict = {}
    for cell in ("imports", "q8-faults", "q8-more"):
        exec(cells[cell], page)
    rows = [torch.linspace(-3, 50, 37), 1e4 + normal(4096), 1e-3 * normal(7), 900 * normal(50)]
    assert list(page["FAULTY"]) == list(counterexamples.FAULTY)
    for name, faulty in counterexamples.FAULTY.items():
        for x in rows:
            shown, ours = page["FAULTY"][name](x, 1e-4), faulty(x, 1e-4)
            assert torch.equal(shown.nan_to_num(), ours.nan_to_num()), name
