"""The checks catch the mutants of every kernel in CUDA C++: barriers, guards, shuffles, sums."""

import pytest

from kernels.paths import ROOT
from tests.grading.cuda_mutation import answer_of, kernels_of, merged, mutants
from tests.grading.mutation import graded
from tests.grading.verdict import count_some, fault, faults

ASKED = {one.question: one for one in graded(ROOT / "solutions/04_unfused_cuda_kernels.ipynb")}
WRITTEN = {
    "04.3": "adding",
    "04.4": "gating",
    "04.5": "summing",
    "04.6": "measuring",
    "04.7": "scaling",
    "04.9": "turning",
}
# Mutants that compute the same function with the same requests, each with the reason.
_EACH_HAS_IT = "every thread has the sum there"
SAME = {
    "another thread stores: if (threadIdx.x == 0) sums[blockIdx.x] = part[0]; -> "
    "if (threadIdx.x == 1) sums[blockIdx.x] = part[0];": "behind the barrier any one may store",
    "another thread stores: if (threadIdx.x == 0) out[blockIdx.x] = rsqrtf(sum / n_cols + eps); -> "
    "if (threadIdx.x == 1) out[blockIdx.x] = rsqrtf(sum / n_cols + eps);": _EACH_HAS_IT,
    "another lane stores: if (lane == 0) of_warp[warp] = sum; -> "
    "if (lane == 1) of_warp[warp] = sum;": _EACH_HAS_IT,
}


@pytest.mark.parametrize("question", WRITTEN)
def test_mutants_are_caught_and_counted(question, record_property):
    asked, name = ASKED[question], WRITTEN[question]
    made = list(mutants(kernels_of(asked)[name]))
    assert len(made) >= 8
    compiled = merged([m.source for m in made], 2.0)
    answers = [answer_of(asked, name, kernels) for kernels in compiled]
    told = faults(question, answers)
    # All are compiled as one: what the compiler refuses would be a fault of every mutant.
    assert [why for why in told if "doesn't compile" in why] == []
    lived = [mutant.told for mutant, why in zip(made, told, strict=True) if not why]
    unknown = [told for told in lived if told not in SAME]
    assert len(unknown) <= 0.02 * (len(made) - len(lived) + len(unknown)), unknown
    count_some(question, answers, told, record_property)


def test_kernels_that_are_merged_are_right_alone():
    for question, name in WRITTEN.items():
        asked = ASKED[question]
        (kernels,) = merged([kernels_of(asked)[name]])
        assert fault(question, answer_of(asked, name, kernels)) == ""


def test_a_mutant_has_one_change():
    source = kernels_of(ASKED["04.9"])["turning"]
    for mutant in mutants(source):
        pairs = zip(source.splitlines(), mutant.source.splitlines(), strict=True)
        changed = [(before.strip(), after.strip()) for before, after in pairs if before != after]
        assert len(changed) == 1
        assert mutant.told.endswith(" -> ".join(changed[0]))
    named = {mutant.told.split(":")[0] for mutant in mutants(source)}
    assert {"barrier dropped", "padding dropped", "bound one up", "operator swapped"} <= named
