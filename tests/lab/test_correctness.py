"""The float64 reference, part by part: the same error, whatever a part is."""

from dataclasses import replace

import pytest
import torch

import kernels.ops  # noqa: F401
from kernels import registry
from kernels.lab.measuring import correctness
from kernels.registry import Case


def attention_case():
    op, case = registry.get("attention"), Case((2, 3, 40, 16), torch.float32, (("causal", True),))
    inputs = op.make(case, "cpu", seed=1)
    return op, case, inputs, op.variant("eager").fn(**inputs)


@pytest.mark.parametrize("elements", [1, 40 * 40, 3 * 40 * 40, 1 << 30])
def test_scores_are_cut_by_batch_and_heads(elements, monkeypatch):
    op, case, inputs, out = attention_case()
    whole = correctness.relative_error(op, case.shape, inputs, out)
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", elements)
    parts = list(correctness._parts(op, case.shape))
    # 40 × 40 scores a head, 6 heads: not the 16 numbers of a row are what a part holds.
    assert len(parts) == {1: 6, 1600: 6, 4800: 2, 1 << 30: 1}[elements]
    assert correctness.relative_error(op, case.shape, inputs, out) == pytest.approx(whole, rel=1e-9)


def test_a_reference_is_computed_once_for_all_variants():
    op, case, inputs, out = attention_case()
    known: correctness.Known = {}
    first = correctness.relative_error(op, case.shape, inputs, out, known=known)
    assert len(known) == 1
    op = replace(op, reference=lambda **_: pytest.fail("computed again"))
    assert correctness.relative_error(op, case.shape, inputs, out, known=known) == first
    assert correctness.relative_error(op, case.shape, inputs, 2 * out, known=known) > 0.9


def test_a_large_reference_is_not_kept(monkeypatch):
    op, case, inputs, out = attention_case()
    monkeypatch.setattr(correctness, "MOST_KEPT", 10)
    known: correctness.Known = {}
    correctness.relative_error(op, case.shape, inputs, out, known=known)
    assert not known


@pytest.mark.parametrize("elements", [1, 3 * 40 * 40, 1 << 30])
def test_gradients_of_what_lacks_a_dimension_are_added_up(elements, monkeypatch):
    op, case = registry.get("layernorm"), Case((6, 24), torch.float32)
    inputs = op.make(case, "cpu", seed=1)
    leaves = {
        n: x.detach().requires_grad_() if isinstance(x, torch.Tensor) else x
        for n, x in inputs.items()
    }
    out = op.reference(**{n: x.double() if torch.is_tensor(x) else x for n, x in leaves.items()})
    above = torch.randn(out.shape, dtype=torch.float64)
    names = [n for n, x in leaves.items() if torch.is_tensor(x)]
    gradients = torch.autograd.grad(out, [leaves[n] for n in names], above)
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", elements)
    errors = correctness.gradient_errors(op, case.shape, inputs, [above], gradients)
    assert set(errors) == set(names)
    assert max(errors.values()) < 1e-6
