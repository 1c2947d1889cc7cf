"""Every registered operation is right: forward, back, in bytes, and on every card it compiles for.

Nothing here names an operation. What a new one registers is what it is held to.
"""

import pytest
import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import passes, registry
from kernels.lab.counting import aot
from kernels.launch import assume_capability
from kernels.registry import DTYPES, Case, operators_of
from tests.ops import proving

OPS = registry.ops()
RUNNABLE = [(op, variant) for op in OPS for variant in proving.runnable(op)]


def every(pairs):
    return pytest.mark.parametrize(
        ("op", "variant"), [pytest.param(o, v, id=f"{o.name}-{v.name}") for o, v in pairs]
    )


@every((o, v) for o, v in RUNNABLE if not v.own_random)
def test_every_variant_is_right(op, variant):
    for case, layout in proving.combinations(op):
        if variant.fits(case):
            proving.forward(op, variant, case, layout)


@every((o, v) for o, v in RUNNABLE if v.has("train"))
def test_every_gradient_is_right(op, variant):
    for case, layout in proving.combinations(op):
        if variant.fits(case) and 0 not in case.shape:
            proving.backward(op, variant, case, layout)


@every((o, v) for o, v in RUNNABLE if v.moves)
def test_launches_move_what_the_formula_says(op, variant):
    for case in proving.moved_in(op):
        # What computes gradients in its forward has no backward alone: the whole step is counted.
        back = "bwd" if variant.has("bwd") else "train"
        for pass_ in (p for p in ("fwd", back) if variant.has(p) and variant.fits(case)):
            proving.moves(op, variant, case, pass_)


@every((o, v) for o in OPS for v in o.variants.values() if v.counted == "aten")
def test_operators_move_the_ideal_bytes_at_least(op, variant):
    for case in op.cases_of("fwd"):
        for pass_ in (p for p in ("fwd", "bwd", "train") if variant.has(p)):
            proving.moves_of_operators(op, variant, case, pass_)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_launch_compiles_for_every_card_without_a_spill(op):
    proving.compiled(op)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_shape_dtype_and_pass_is_compiled(op):
    variants, missing = aot.variants(op)
    found = aot.jobs(op, (80,))
    reached = {
        (j.variant, j.dtype, shape, p) for j in found for shape in j.shapes for p in j.passes
    }
    for variant in variants:
        for case, wanted in op.compiled_at(variant).items():
            with assume_capability(80):
                fits = variant.fits(case)
            if fits:
                dtype, shape = registry.dtype_name(case.dtype), aot.told(case)
                assert {(variant.name, dtype, shape, p) for p in wanted} <= reached
    assert not [sentence for sentence in missing if "cuda" not in sentence.lower()]


def test_what_is_known_to_be_sound_is_told_by_source_options_card_and_compilers(monkeypatch):
    jobs = [job for op in OPS for job in aot.jobs(op, (80, 90))]
    digests = [aot.digest(job) for job in jobs]
    assert len(set(digests)) == len({job.specialization.key for job in jobs})
    known = sum(one in aot.known_sound() for one in digests)
    assert known > len(digests) // 2, (
        f"{len(digests) - known} of {len(digests)} launches are compiled anew in every run: write "
        "down which are sound by `python -m kernels.lab aot --keep`, and commit sound.txt"
    )
    monkeypatch.setattr(aot.triton, "__version__", "0")
    assert not {aot.digest(job) for job in jobs} & set(digests)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_operation_has_what_readers_compare(op):
    for name in ("eager", "torch"):
        assert name in op.variants, (
            f"{op.name!r} has no variant {name!r}, which others stand beside"
        )
    assert any(name.startswith("fused") for name in op.variants), (
        f"{op.name!r} has no fused variant"
    )
    assert set(op.dtypes) <= set(DTYPES.values())


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """A block in which the package's operators are written down, by name, into `seen`."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fusing_kernels":
            self.seen.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


@every((o, v) for o, v in RUNNABLE if o.made_of and v.name.startswith("fused"))
def test_an_operation_made_of_others_calls_their_operators_alone(op, variant):
    own = {one.name for name in op.made_of for one in operators_of(name)}
    for options, pass_ in zip(op.options, ("fwd", "train"), strict=True):
        case = Case(proving.small(op)[1], torch.float32, options)
        if variant.has(pass_) and variant.fits(case):
            with Watch() as watch, torch.no_grad():
                passes.bind(op, variant, op.make(case, "cpu", seed=0), pass_)()
            assert len(set(watch.seen)) > 1
            assert set(watch.seen) <= own


@every((o, v) for o, v in RUNNABLE if v.name == "fused" and not o.made_of)
def test_a_fused_operation_meets_pytorch_as_one_operator(op, variant):
    """Compilers, fake tensors and ledgers see one operator of its own, whatever is wanted of it."""
    case = Case(proving.small(op)[0], torch.float32, op.options[0])
    inputs = op.make(case, "cpu", seed=0)
    own = {one.name for one in operators_of(op.name)}
    watch = Watch()
    with watch, torch.no_grad():
        variant.fn(**inputs)
    assert len(watch.seen) == 1
    assert set(watch.seen) <= own
    if variant.has("train"):
        with watch:
            passes.bind(op, variant, inputs, "train")()
        assert set(watch.seen) <= own
        assert len(set(watch.seen)) >= 2
