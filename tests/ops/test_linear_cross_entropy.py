"""The loss over a vocabulary: chunks, reductions, ignored and wrong targets, memory, gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from kernels.lab.counting import aot, aten, traffic
from kernels.lab.counting.alive import Alive, peak_of_a_step
from kernels.launch import interpreting, recording
from kernels.ops.losses import chunks, configurations, peers, tuning
from kernels.ops.losses.chunks import Found, peak_bytes, scaled, walk
from kernels.ops.losses.configurations import at_once, chunk_tokens
from kernels.ops.losses.linear_cross_entropy import (
    OP,
    fused_simple,
    linear_cross_entropy,
    reference,
)
from kernels.ops.losses.moves import chunk_sizes
from kernels.ops.shared import operators as shared
from kernels.registry import DTYPES, Case, operator
from tests.ops import proving

UNIT = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES.values()}
LARGE = Case((8192, 4096, 131_072), torch.bfloat16)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of at most 32 tokens of 40 words in fp32."""
    monkeypatch.setattr(configurations, "STEP", 16)
    monkeypatch.setattr(configurations, "LOGITS_BYTES", 32 * 40 * 4)


def make(tokens, width, words, dtype=torch.float32, seed=0):
    given = OP.inputs((tokens, width, words), dtype, "cpu", seed)
    return given["x"], given["weight"], given["targets"]


def random(shape, dtype=torch.float32, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def step(fn, x, weight, targets, upstream=None, **options):
    leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = fn(*leaves, targets, **options)
    return loss.detach(), *torch.autograd.grad(loss, leaves, upstream)


def exact_step(x, weight, targets, upstream=None, **options):
    """PyTorch's own in float64."""

    def theirs(x, weight, targets, **options):
        return F.cross_entropy(F.linear(x, weight), targets, **options)

    upstream = None if upstream is None else upstream.double()
    return step(theirs, x.double(), weight.double(), targets, upstream, **options)


def assert_near(found, exact, dtype=torch.float32, roundings=4):
    for one, truth in zip(found, exact, strict=True):
        assert one.dtype == dtype
        assert one.shape == truth.shape
        off = float((one.double() - truth).norm())
        assert off <= (roundings * UNIT[dtype] + 2.0**-18) * float(truth.norm())


def launched(fn):
    with interpreting() as seen:
        fn()
    return [launch.name for launch in seen]


# ----------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("reduction", "smoothing", "dtype"),
    [
        ("mean", 0.0, torch.bfloat16),
        ("mean", 0.3, torch.float32),
        ("mean", 0.0, torch.float16),
        ("sum", 0.0, torch.float32),
        ("sum", 0.3, torch.float16),
        ("none", 0.0, torch.float32),
        ("none", 0.3, torch.bfloat16),
    ],
)
def test_every_option_in_several_chunks(reduction, smoothing, dtype, small_chunks):
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 7}
    x, weight, targets = make(75, 24, 40, dtype)
    targets = targets.masked_fill(targets < 0, 7)
    assert len(chunk_sizes(Case((75, 24, 40), dtype))) > 1
    upstream = random((75,) if reduction == "none" else (), dtype)
    exact = exact_step(x, weight, targets, upstream, **options)
    assert_near(step(linear_cross_entropy, x, weight, targets, upstream, **options), exact, dtype)
    wide = x.double(), weight.double(), targets, upstream.double()
    for ours, theirs in zip(step(reference, *wide, **options), exact, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_upstream_gradient_that_is_one_number_for_all_tokens(small_chunks):
    x, weight, targets = make(75, 24, 40)
    for upstream in (random(()).expand(75), random(150)[::2]):
        options = {"reduction": "none"}
        found = step(linear_cross_entropy, x, weight, targets, upstream, **options)
        assert_near(found, exact_step(x, weight, targets, upstream, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pytorchs_products_in_the_same_buffers(dtype, small_chunks, monkeypatch):
    monkeypatch.setattr(chunks, "_by_torch", lambda x: True)  # as on a GPU
    x, weight, targets = make(75, 24, 40, dtype)
    for given in ((x, weight), (x.T.contiguous().T, weight.T.contiguous().T)):
        names = launched(lambda given=given: step(linear_cross_entropy, *given, targets))
        assert not any("linear" in name or "product" in name for name in names)
        found = step(linear_cross_entropy, *given, targets)
        assert_near(found, exact_step(*given, targets), dtype)


def test_large_logits_neither_overflow_nor_cancel():
    x, weight, targets = make(20, 24, 40)
    for factor in (30.0, 3000.0):
        found = step(linear_cross_entropy, factor * x, weight, targets)
        assert_near(found, exact_step(factor * x, weight, targets), roundings=32)


@pytest.mark.parametrize("fn", [linear_cross_entropy, fused_simple])
def test_a_wide_vocabulary_goes_tile_by_tile(fn, monkeypatch):
    monkeypatch.setattr(configurations, "WORDS", 64)
    x, weight, targets = make(9, 16, 700)
    targets[0], targets[1] = 0, 699
    exact = exact_step(x, weight, targets)[:1]
    with torch.no_grad():
        assert_near([fn(x, weight, targets)], exact)


# ---------------------------------------------------------------------------------- targets


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_what_is_ignored_has_no_loss_and_exactly_no_gradient(dtype):
    x, weight, targets = make(20, 24, 40, dtype)
    ignored = targets == -100
    x[ignored] = torch.inf  # of which even 0 times would be NaN
    losses, d_x, _ = step(
        linear_cross_entropy, x, weight, targets, torch.ones(20, dtype=dtype), reduction="none"
    )
    assert not losses[ignored].any()
    assert not d_x[ignored].any()
    assert bool(d_x[~ignored].any(-1).all())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_but_ignored_is_as_pytorchs(reduction):
    x, weight, targets = make(20, 24, 40)
    targets[:] = -100
    found = step(linear_cross_entropy, x, weight, targets, reduction=reduction)
    exact = exact_step(x, weight, targets, reduction=reduction)
    for one, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(one, truth.float(), equal_nan=True, rtol=0, atol=0)
    assert bool(found[0].isnan()) == (reduction == "mean")


@pytest.mark.parametrize("wrong", [40, 1 << 40, -1])
def test_a_target_that_is_no_word(wrong):
    x, weight, targets = make(20, 24, 40)
    targets[4] = wrong
    with pytest.raises(ValueError, match=rf"targets\[4\] is {wrong}; it takes a word from 0 to 39"):
        linear_cross_entropy(x, weight, targets)
    found = walk(x, weight, targets, -100, 0.0, "none", wants_x=True)  # as on a GPU
    assert found.loss.isnan().nonzero().tolist() == [[4]]
    assert found.d_x.isnan().any(-1).nonzero().tolist() == [[4]]
    assert bool(fused_simple(x, weight, targets).isnan())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_tokens(reduction):
    x, weight, targets = make(0, 24, 40)
    upstream = random((0,)) if reduction == "none" else None
    found = step(linear_cross_entropy, x, weight, targets, upstream, reduction=reduction)
    exact = exact_step(x, weight, targets, upstream, reduction=reduction)
    for one, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(one, truth.float(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"x": torch.ones(2, 3, 4)}, ValueError, "x has the shape"),
        ({"x": torch.ones(3, 0)}, ValueError, "the width 1 or more"),
        ({"weight": torch.ones(5, 3)}, ValueError, "weight has the shape"),
        ({"weight": torch.ones(5, 4).half()}, TypeError, "weight has dtype"),
        ({"targets": torch.zeros(3, dtype=torch.int32)}, TypeError, "int64"),
        ({"targets": torch.zeros(4, dtype=torch.int64)}, ValueError, "targets has the shape"),
        ({"ignore_index": 0.5}, TypeError, "ignore_index is 0.5"),
        ({"reduction": "avg"}, ValueError, "one of mean, sum, none"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing is 1.5"),
    ],
)
def test_bad_arguments_get_one_sentence(change, error, sentence):
    good = {
        "x": torch.ones(3, 4),
        "weight": torch.ones(5, 4),
        "targets": torch.zeros(3, dtype=torch.int64),
    }
    linear_cross_entropy(**good)
    with pytest.raises(error, match=sentence) as told:
        linear_cross_entropy(**{**good, **change})
    assert "\n" not in str(told.value)


# -------------------------------------------------------------------------------- gradients


def test_only_what_is_asked_for_is_launched():
    x, weight, targets = make(20, 24, 40)
    with torch.no_grad():
        alone = launched(lambda: linear_cross_entropy(x, weight, targets))
    assert alone == ["count_targets", "linear_tile", "cross_entropy_rows", "add_losses"]
    for frozen, without in ((0, "gradient_tile"), (1, "add_outer_product")):
        leaves = [x.detach().clone(), weight.detach().clone()]
        leaves[1 - frozen].requires_grad_()
        names = launched(lambda leaves=leaves: linear_cross_entropy(*leaves, targets).backward())
        assert without not in names
        assert names.count("linear_tile") == 1
        assert names[-1] == "scale_gradient"
        exact = exact_step(x, weight, targets)
        assert_near([leaves[1 - frozen].grad], [exact[2 - frozen]])


def test_logits_are_computed_again_where_the_upstream_gradient_decides():
    x, weight, targets = make(20, 24, 40)
    assert [at_once(r, d) for r in ("mean", "sum", "none") for d in DTYPES.values()] == [
        *((False, True, True) * 2),
        *((False,) * 3),
    ]
    for reduction, dtype, times in (("mean", torch.float32, 1), ("sum", torch.float16, 2)):
        given = x.to(dtype), weight.to(dtype), targets
        names = launched(
            lambda given=given, reduction=reduction: step(
                linear_cross_entropy, *given, reduction=reduction
            )
        )
        assert names.count("linear_tile") == times


def test_a_factor_for_fp16_comes_before_the_rounding():
    x, weight, targets = make(64, 32, 4000, torch.float16)
    upstream = torch.tensor(65504.0, dtype=torch.float16)
    found = step(linear_cross_entropy, x, weight, targets, upstream)
    assert_near(found, exact_step(x, weight, targets, upstream), torch.float16)


def test_the_gradients_that_were_kept_are_given_away_once(monkeypatch):
    monkeypatch.setattr(shared, "SHORT_WHERE", "is_cpu")
    x, weight, targets = make(20, 24, 40)
    leaves = x.requires_grad_(), weight.requires_grad_()
    exact = exact_step(x, weight, targets)[1:]
    loss = linear_cross_entropy(*leaves, targets)
    first = torch.autograd.grad(loss, leaves, torch.tensor(3.0), retain_graph=True)
    kept = [one.clone() for one in first]
    again = torch.autograd.grad(loss, leaves, torch.tensor(-2.0))
    assert_near(first, [3 * one for one in exact])
    assert_near(again, [-2 * one for one in exact])
    for one, before in zip(first, kept, strict=True):
        assert torch.equal(one, before)
    linear_cross_entropy(*leaves, targets).backward()
    assert_near([x.grad, weight.grad], exact)


def test_a_factor_of_one_moves_nothing_in_place():
    gradient = random((30, 200))
    for factor in (1.0, 0.5):
        wanted = gradient * factor
        ledger = traffic.count(scaled, torch.tensor(factor), gradient, in_place=True)
        moved = 0 if factor == 1 else 2 * gradient.nbytes
        assert ledger.bytes_unique == 4 + moved
        assert torch.equal(gradient, wanted)


def test_a_graph_keeps_it_whole_forward_and_backward():
    x, weight, targets = make(20, 24, 40)
    torch._dynamo.reset()
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    for reduction in ("mean", "none"):
        upstream = random(20) if reduction == "none" else None
        found = step(compiled, x, weight, targets, upstream, reduction=reduction)
        plain = step(linear_cross_entropy, x, weight, targets, upstream, reduction=reduction)
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other)


def test_the_operators_pass_pytorchs_own_checks():
    x, weight, targets = make(6, 8, 10)
    ours = torch.ops.fusing_kernels
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    for reduction in ("mean", "none"):
        told = targets, -100, 0.1, reduction, True, True
        dy = random(() if reduction == "mean" else 6)
        torch.library.opcheck(ours.linear_cross_entropy.default, (x, weight, *told))
        torch.library.opcheck(ours.linear_cross_entropy_backward.default, (dy, x, weight, *told))
    told = targets, -100, 0.1, "mean", True, True  # what isn't kept, with "none", holds nothing
    torch.library.opcheck(ours.linear_cross_entropy_with_grad.default, (*leaves, *told))
    torch.library.opcheck(ours.linear_cross_entropy_scaled.default, (random(()), x))


# ------------------------------------------------------------------------- bytes and memory


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_several_chunks_move_what_the_formula_says(dtype, small_chunks):
    case = Case((75, 24, 40), dtype)
    assert len(chunk_sizes(case)) > 1
    for pass_ in ("fwd", "train"):
        proving.moves(OP, OP.variant("fused"), case, pass_)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_operator_tells_what_it_moves(reduction, small_chunks):
    x, weight, targets = make(40, 24, 40)
    told = {"ignore_index": -100, "smoothing": 0.0, "reduction": reduction}
    for wants in ((False, False), (True, True), (reduction == "sum", reduction != "sum")):
        named = {**told, "wants_x": wants[0], "wants_weight": wants[1]}
        for name in ("", "_with_grad", "_backward") if any(wants) else ("",):
            given = {"x": x, "weight": weight, "targets": targets, **named}
            if name == "_backward":
                given = {"dy": random(40 if reduction == "none" else ()), **given}
            one = operator(f"linear_cross_entropy{name}")
            call = getattr(torch.ops.fusing_kernels, one.name)
            by_formula = one.moves(**given)
            ledger = traffic.count(lambda call=call, given=given: call(*given.values()))
            assert ledger.launches == by_formula.launches
            assert ledger.bytes_unique == by_formula.unique
            assert ledger.bytes_requested == by_formula.requested
            assert one.moves(**{**given, "x": x[:0], "targets": targets[:0]}) is None


def test_chunks_are_alike_and_fit():
    for tokens, words, size in itertools.product(
        (1, 100, 1000, 8192, 9001), (3, 50_257, 1 << 20), (2, 4)
    ):
        chunk = chunk_tokens(tokens, words, size)
        assert 1 <= chunk <= max(tokens, 1)
        fits = chunk * words * size <= configurations.LOGITS_BYTES
        eighth = -(-tokens // configurations.MOST_CHUNKS)
        assert fits or chunk <= max(eighth - 1, 0) + configurations.STEP
        assert -(-tokens // chunk) <= configurations.MOST_CHUNKS
        sizes = [min(chunk, tokens - first) for first in range(0, tokens, chunk)]
        assert sum(sizes) == tokens
        assert max(sizes) - min(sizes[:-1], default=max(sizes)) == 0


def hollow(case):
    return tuple(tree_map(aot._hollow, aten.fake_inputs(OP, case)).values())


@pytest.mark.parametrize("gradients", [False, True])
def test_the_formula_of_memory_is_what_is_alive(gradients):
    for case in (LARGE, Case((500, 64, 1000), torch.float32)):
        given = hollow(case)
        with recording(), Alive(given) as alive:
            found: Found = walk(
                *given, -100, 0.0, "mean", wants_x=gradients, wants_weight=gradients
            )
        beside = sum(one.nbytes for one in found[1:] if one is not None)
        tokens, width, words = case.shape
        assert alive.peak - beside == peak_bytes(tokens, width, words, case.dtype.itemsize)


def test_memory_is_a_tenth_of_pytorchs():
    workspace = 64 << 20  # more than cuBLAS takes
    theirs = peak_of_a_step(peers.torch_loss, *hollow(LARGE))
    logits = 8192 * 131_072 * 2
    # log-softmax's output, the gradient of it, and of the logits: less dx and dw, which come later.
    small = 1 << 20
    assert abs(theirs - (3 * logits - (8192 + 131_072) * 4096 * 2)) < small
    assert peak_bytes(*LARGE.shape, 2) + workspace <= theirs / 10


# ----------------------------------------------------------------------------- candidates, peers


def test_a_candidate_computes_the_loss_or_its_gradients(monkeypatch):
    monkeypatch.setattr(tuning, "_CHUNKS", (16, 32))
    case = Case((40, 8, 8), torch.float32)
    given = OP.make(case, "cpu", 0)
    exact = exact_step(*given.values())
    tried = OP.forward.candidates(case)
    assert len(tried) == 2 + len(tuning._TILES)
    for fn in list(tried.values())[:2]:
        assert_near([fn(**given)], exact[:1])
    for fn in list(OP.pass_("train").candidates(case).values())[:1]:
        assert_near(step(fn, *given.values()), exact)


def test_peers_that_are_absent_or_need_a_gpu_say_so(tmp_path, monkeypatch):
    assert list(OP.variants) == ["eager", "torch", "compile", "fused_simple", "fused", "liger"]
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert "GPU" in OP.variant("compile").unavailable(cpu)
    assert "iger" in OP.variant("liger").unavailable(cpu)
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    told = OP.variant("liger").unavailable(gpu)
    assert told.startswith("this release of liger-kernel has no chunked loss")
