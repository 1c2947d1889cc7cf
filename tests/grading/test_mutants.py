"""The checks catch the mutants of every written kernel: dropped masks, bounds, operators, sums."""

import ast
import os
import time

import pytest

from kernels.grading import check, isolation
from kernels.grading.generate import BEGIN
from kernels.paths import ROOT
from tests.grading import verdict
from tests.grading.counted import PROPERTY
from tests.grading.mutation import Graded, answer_of, graded, mutants
from tests.grading.verdict import fault, faults, survivors

# Mutants that compute the same function with the same bytes, each with the reason.
_MASKED = "masked lanes never reach a store, nor the sums"
SAME: dict[tuple[str, str], str] = {
    (
        question,
        f"other filled: tl.load({name}_ptr + cols, mask=mask, other=0.0) -> "
        f"tl.load({name}_ptr + cols, mask=mask, other=1.0)",
    ): _MASKED
    for question in ("02.2", "02.6", "02.7", "03.8")
    for name in ("weight", "bias")
}


def _own_cells() -> list[tuple[Graded, str]]:
    """Each cell with a kernel that a reader writes, and the question it answers."""
    found: list[tuple[Graded, str]] = []
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        seen: set[str] = set()
        for asked in graded(path):
            for cell, source in asked.cells:
                if cell not in seen and "@triton.jit" in source and BEGIN in source:
                    found.append((asked, cell))
                seen.add(cell)
    return found


CELLS = _own_cells()
# One factor of a masked product may be anything finite: the other is 0 there.
_ZERO = "what is masked is multiplied by 0"
SAME |= {
    (question, f"other filled: tl.load({at}, other=0.0) -> tl.load({at}, other=1.0)"): _ZERO
    for question, places in {
        **dict.fromkeys(
            ("10.4", "10.5", "10.9", "11.3", "11.4", "11.5", "14.6"),
            ("x_rows + k[None, :], mask=x_mask", "weight_rows + k[:, None], mask=weight_mask"),
        ),
        "10.8": ("x_ptr + m[:, None] * K + k[None, :], mask=x_mask",),
        # In 11.6 x is masked where it is summed, and the weights are where it is multiplied.
        "11.6": (
            "x_rows + k[None, :], mask=mask",
            "norm_weight_ptr + k, mask=k < K",
            "norm_bias_ptr + k, mask=k < K",
            "weight_rows + k[:, None], mask=weight_mask",
        ),
        "11.9": ("folded_rows + k[:, None], mask=folded_mask",),
    }.items()
    for at in places
}
# An epilogue's vectors: columns beyond the last are never stored.
SAME |= {
    (
        question,
        f"other filled: tl.load({name}_ptr + cols, mask=cols < N, other=0.0) -> "
        f"tl.load({name}_ptr + cols, mask=cols < N, other=1.0)",
    ): _MASKED
    for question, names in {
        "11.3": "bias",
        "11.4": "bias",
        "11.9": "sums bias",
        "14.6": "bias",
    }.items()
    for name in names.split()
}
SAME[
    "14.6",
    "other filled: tl.load(residual_ptr + y_at, mask=y_mask, other=0.0) -> "
    "tl.load(residual_ptr + y_at, mask=y_mask, other=1.0)",
] = _MASKED
# Of attention: rows beyond the last are never stored, the score of a key that isn't seen is -inf
# whatever k holds, and its weight, which v or a split's part is multiplied by, is 0.
_UNSEEN = "no row that is stored, no score that is seen, or a weight of 0"
SAME |= {
    (question, f"other filled: tl.load({at}, other={had}) -> tl.load({at}, other=1.0)"): _UNSEEN
    for question, places in {
        "12.7": (
            ("q_ptr + within, mask=(rows < M)[:, None]", "0.0"),
            ("k_ptr + at, mask=(keys < N)[:, None]", "0.0"),
            ("v_ptr + at, mask=(keys < N)[:, None]", "0.0"),
            ("hidden_ptr + keys, mask=keys < N", "1"),
        ),
        "12.8": (
            ("q_ptr + first + within, mask=(rows < N)[:, None]", "0.0"),
            ("k_ptr + first + at, mask=(keys < N)[:, None]", "0.0"),
            ("v_ptr + first + at, mask=(keys < N)[:, None]", "0.0"),
        ),
        "12.9": (
            ("q_at, mask=(rows < M)[:, None]", "0.0"),
            ("k_ptr + at, mask=(keys < end)[:, None]", "0.0"),
            ("v_ptr + at, mask=(keys < end)[:, None]", "0.0"),
            ("parts_at, mask=there[:, None]", "0.0"),
        ),
        # Of a query that there is not, p meets do, dp - delta or q, and these are 0.
        "13.7": (
            ("q_ptr + first + within, mask=(rows < N)[:, None]", "0.0"),
            ("do_ptr + first + within, mask=(rows < N)[:, None]", "0.0"),
            ("lse_ptr + head * N + rows, mask=rows < N", "0.0"),
            ("delta_ptr + head * N + rows, mask=rows < N", "0.0"),
            ("k_ptr + first + at, mask=(keys < N)[:, None]", "0.0"),
            ("v_ptr + first + at, mask=(keys < N)[:, None]", "0.0"),
        ),
        "13.8": (
            ("k_ptr + first + within, mask=(keys < N)[:, None]", "0.0"),
            ("v_ptr + first + within, mask=(keys < N)[:, None]", "0.0"),
            ("q_ptr + first + at, mask=(rows < N)[:, None]", "0.0"),
            ("lse_ptr + head * N + rows, mask=rows < N", "0.0"),
            ("delta_ptr + head * N + rows, mask=rows < N", "0.0"),
        ),
    }.items()
    for at, had in places
}
# Of g = dy · weight one factor is 0 beyond the row, and so are g and g · x_hat.
SAME |= {
    (
        "15.8",
        f"other filled: tl.load({at}, mask=mask, other=0.0) -> tl.load({at}, mask=mask, other=1.0)",
    ): _ZERO
    for at in ("dy_ptr + at", "h_ptr + at", "weight_ptr + cols")
}

# Mutants of a cell that a whole check is made of, as a reader sees it.
_COUNTED = 3


@pytest.mark.parametrize(
    ("asked", "cell"), CELLS, ids=[f"{asked.question}-{cell}" for asked, cell in CELLS]
)
def test_mutants_are_caught(asked, cell):
    assert fault(asked.question, answer_of(asked)) == ""
    made = list(mutants(asked, cell))
    lived = survivors(asked, made)
    unknown = [told for told in lived if (asked.question, told) not in SAME]
    equal = len(lived) - len(unknown)
    assert len(made) >= 8
    assert len(unknown) <= 0.02 * (len(made) - equal), unknown


@pytest.mark.parametrize(
    ("asked", "cell"), CELLS, ids=[f"{asked.question}-{cell}" for asked, cell in CELLS]
)
def test_some_mutants_are_refused_and_counted(asked, cell, record_property):
    made = [m for m in mutants(asked, cell) if (asked.question, m.told) not in SAME]
    for mutant in made[:: max(len(made) // _COUNTED, 1)][:_COUNTED]:
        result = check(asked.question, answer_of(asked, mutant), seed=1)
        assert not result.passed, mutant.told
        record_property(PROPERTY, [asked.question, result.passed, bool(result.means)])


def test_a_fault_is_what_the_check_tells():
    asked, cell = next(pair for pair in CELLS if pair[0].question == "02.2")
    one_of_each = {mutant.told.split(":")[0]: mutant for mutant in mutants(asked, cell)}
    passed = []
    for mutant in one_of_each.values():
        answer = answer_of(asked, mutant)
        result, told = check(asked.question, answer, seed=1), fault(asked.question, answer)
        assert result.passed == (told == "")
        assert result.passed or result.message.startswith(told.split(";")[0].rstrip("."))
        passed += [mutant.told] if result.passed else []
    assert [(asked.question, told) in SAME for told in passed] == [True]


def _ends():
    os._exit(3)


def _sleeps():
    time.sleep(60)


def _takes_all_memory():
    return bytearray(1 << 40)


def test_answers_in_one_fork_are_told_as_each_by_itself(monkeypatch):
    asked, cell = next(pair for pair in CELLS if pair[0].question == "02.2")
    answers = [answer_of(asked, mutant) for mutant in mutants(asked, cell)]
    right, wrong = answer_of(asked), answers[:3]

    def doing(harm):
        def answer(*given):
            harm()
            return right(*given)

        return answer

    monkeypatch.setattr(isolation, "LIMIT_S", 3.0)
    monkeypatch.setattr(verdict, "_AT_ONCE", 5)
    given = [right, doing(_ends), *wrong, doing(_sleeps), doing(_takes_all_memory), right]
    given += [*answers[3:6], doing(_ends)]
    told = faults(asked.question, given)
    assert "did not end within 3 seconds" in told.pop(5)
    del given[5]
    assert told == [fault(asked.question, answer) for answer in given]
    assert [number for number, why in enumerate(told) if not why] == [0, 6]
    assert "exit code 3" in told[1]
    assert told[1] == told[-1]
    assert "MemoryError" in told[5]


def test_a_mutant_has_one_change():
    asked, cell = next(pair for pair in CELLS if pair[0].question == "02.2")
    source = dict(asked.cells)[cell]
    told = [m.told for m in mutants(asked, cell)]
    assert len(told) == len(set(told)) + sum(told.count(t) - 1 for t in set(told))
    assert {t.split(":")[0] for t in told} == {
        "mask dropped",
        "other filled",
        "bound one up",
        "bound one down",
        "operator swapped",
        "accumulator narrowed",
    }
    for mutant in mutants(asked, cell):
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(source))
