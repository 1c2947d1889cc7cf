"""A ledger at many rows from ledgers at a few, where the numbers lie on a line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kernels.lab.counting import by_programs
from kernels.lab.counting.ledger import Ledger, extend_rows


def by_rows(
    at: Callable[[int], Ledger], call_at: Callable[[int], Callable[[], object]], rows: int
) -> Ledger:
    """The ledger at `rows` rows, extended from `at(few rows)` where the numbers lie on a line.

    Where they don't, or where `rows` are few, it is `at(rows)` itself.

    `call_at(rows)` makes the same call on tensors without values; its launches are recorded, not
    run. They show whether grids grow with the rows. Where a fixed number of programs share all
    rows, a few programs of each launch stand for all (see `by_programs`).
    """
    whole = by_programs.recorded(call_at(rows))
    for counts in by_programs.ROW_COUNTS:
        few = [by_programs.recorded(call_at(n)) for n in counts if n < rows]
        if all(len(seen) == len(whole) for seen in few) and len(few) == len(counts):
            grow = [launch.grid == seen.grid for launch, seen in zip(whole, few[0], strict=True)]
            same = zip(*few, whole, strict=True)
            if not any(grow) and all(
                by_programs.stands_for(one[:-1], counts, one[-1], rows) for one in same
            ):
                with contextlib.suppress(ValueError):
                    return extend_rows([(n, at(n)) for n in counts], rows)
    if rows > max(by_programs.ROW_COUNTS[0]):
        with contextlib.suppress(ValueError):
            return by_programs.count(call_at, rows)
    return at(rows)
