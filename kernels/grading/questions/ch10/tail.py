"""10.4: a tiled product whose last step along K reaches into the next row."""

from __future__ import annotations

from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.products import explain_product, product_cases
from kernels.grading.questions.kits.wrong_models import masked_lanes_named, right_or_told

_OUTSIDE = (
    "The last step along K has lanes beyond K. In every row but the last they read the next row's "
    "first elements, and nobody complains; in the last row there is no next one. Both loads take "
    "the mask k < K beside the one they have."
)


def grade_tail(attempt: Attempt) -> None:
    """Grade `my_product(x, weight)`: right for any K, in fp16 and bf16, in one launch."""
    cases = product_cases(attempt.seed, ("fp16", "bf16"))
    runs = right_or_told(attempt, cases, explain_product, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    ragged = [r for r in runs if r.case.x.shape[-1] % 16]
    masked_lanes_named(attempt, ragged)
    compiles(attempt, (r.case for r in runs))
