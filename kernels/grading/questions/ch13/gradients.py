"""13.7 and 13.8: dq, with faults to mend, and dk with dv, to write; causal, on the tensor cores."""

from __future__ import annotations

from collections.abc import Callable

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.ch13.bounds import begin
from kernels.grading.questions.kits.attention import (
    HIGH,
    all_nan,
    by_trait,
    keys_asked_for,
    within_requests_of,
)
from kernels.grading.questions.kits.attention_backward import (
    ALONE,
    TOO_LARGE,
    UNSCALED,
    backward_cases,
    backward_models,
)
from kernels.grading.questions.kits.gradients import no_atomics, right_gradient
from kernels.grading.questions.kits.tensor_cores import (
    all_on_tensor_cores,
    compiles_in_both,
    on_tensor_cores,
)
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second
from kernels.grading.questions.kits.wrong_models import lanes_named, recognised

_EDGE, _MOST = 32, 64
_OUTSIDE = (
    "Rows and keys are masked by < N in each load and store. A head begins at head * N * d, and "
    "in lse and delta at head * N."
)
_OPERANDS = (
    "Operands of 16 bits stay so: q, k, v and do as they are, and p and ds converted to their "
    "dtype. An operand in fp32 sends its product to the ordinary cores, at a small part of the "
    "rate."
)


def _overflowed(run: Run) -> bool:
    return run.wrong.numel() > 0 and not bool(run.output.isfinite().all())


def _explain(of: str) -> Callable[[list[Run]], str]:
    models = backward_models(of)

    def explain(runs: list[Run]) -> str:
        if told := recognised(runs, models) or by_trait(runs, {HIGH: TOO_LARGE}):
            return told
        # An infinite exponential times what rounding left of 0: no model knows the sign.
        finite = [r for r in runs if r.case.trait != HIGH or not _overflowed(r)]
        if len(finite) < len(runs) and (told := recognised(finite, models)) in (UNSCALED, ALONE):
            return told
        if all_nan(runs):
            return (
                f"An element of {of} that is nan was never stored, or comes from an exponential "
                "that is infinite: is L taken away before it, and is p set to 0, by tl.where, "
                "where a query doesn't see the key?"
            )
        return ""

    return explain


def budget_of_dq(case: Case) -> int:
    """The bytes of k and v that tiles of 32 queries and keys ask for, up to the diagonal."""
    heads, n, d = case.x.shape
    return 2 * int(heads) * keys_asked_for(n, _EDGE, _EDGE, causal=True) * d * case.x.itemsize


def budget_of_dkdv(case: Case) -> int:
    """The bytes of q and do that tiles of 32 keys and queries ask for, from the diagonal on."""
    heads, n, d = case.x.shape
    rows = sum(n - begin(tile, _EDGE, _EDGE, n) for tile in range(-(-n // _EDGE)))
    return 2 * int(heads) * rows * d * case.x.itemsize


def _least(case: Case) -> int:
    heads, n, _ = case.x.shape
    return int(heads) * -(-int(n) // _MOST)


def _fits(attempt: Attempt, runs: list[Run], what: str) -> None:
    """Programs, lanes and cores, which both questions ask for alike."""
    cases = [r.case for r in runs]
    enough_programs(attempt, runs, _least, f"one for every {_MOST} {what} of a head")
    on_tensor_cores(attempt, cases)
    all_on_tensor_cores(attempt, cases, _OPERANDS)
    compiles_in_both(attempt, cases)


def _ragged(runs: list[Run]) -> list[Case]:
    return [r.case for r in runs if r.case.x.shape[1] % 16][:2]


def grade_dq(attempt: Attempt) -> None:
    """Grade `query_gradient(q, k, v, do, lse, delta)`: dq, in the budget, and it fits."""
    (cases,) = backward_cases(attempt.seed, ("dq",))
    runs = right_gradient(attempt, cases, _explain("dq"), "dq", _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    within_requests_of(
        attempt,
        runs,
        budget_of_dq,
        "tiles of 32 queries and 32 keys that stop at the diagonal",
        "Behind its last query's key a tile sees nothing: its loop ends at min((tile + 1) * "
        "BLOCK_M, N). What lies behind is masked anyway, and it costs bytes and products.",
    )
    lanes_named(attempt, _ragged(runs))
    _fits(attempt, runs, "queries")


def grade_dkdv(attempt: Attempt) -> None:
    """Grade `key_gradients(q, k, v, do, lse, delta)`: (dk, dv), one launch, no atomics."""
    of_dk, of_dv = backward_cases(attempt.seed, ("dk", "dv"))
    are_two(attempt, of_dk[0], "(dk, dv)")
    part, alone = (Part(attempt.answer, place) for place in (0, 1))
    first, second = (Attempt(one, attempt.seed) for one in (part, alone))
    runs = right_gradient(first, of_dk, _explain("dk"), "dk", _OUTSIDE)
    of_v = graded_second(
        of_dv,
        runs,
        part.returned,
        lambda: right_gradient(second, of_dv, _explain("dv"), "dv", _OUTSIDE),
    )
    attempt.held.append(f"dk and dv right on {len(runs)} random inputs")
    no_atomics(attempt, of_dk[1])
    computed_by_kernels(attempt, runs, launches=1)
    computed_by_kernels(first, of_v, launches=1)
    within_requests_of(
        attempt,
        runs,
        budget_of_dkdv,
        "tiles of 32 keys and 32 queries that begin at the diagonal",
        "Queries before a tile's first key see none of its keys: its loop begins with the tile of "
        "the query that has this key's number. And p is made once for both gradients.",
        ("q", "do"),
    )
    for one, seen in ((first, runs), (second, of_v)):
        lanes_named(one, _ragged(seen))
    _fits(attempt, runs, "keys")
