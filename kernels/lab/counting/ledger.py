"""The ledger: which bytes each step of a computation touches, and which it asks for.

A step is one launch of a kernel or one PyTorch operator. For every tensor a step knows four
numbers, all in bytes:

- `read_unique`, `write_unique`: distinct bytes touched by the step. Summed over the steps they
  are `bytes_unique`, the number that compares variants.
- `read_requested`, `write_requested`: what the lanes ask for. A masked lane asks for nothing, a
  broadcast lane asks each time. An atomic is one read and one write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TensorTraffic:
    """The bytes one step, or several added up, moved of one tensor."""

    tensor: str
    read_unique: int = 0
    read_requested: int = 0
    write_unique: int = 0
    write_requested: int = 0

    @property
    def unique(self) -> int:
        """Distinct bytes read plus distinct bytes written."""
        return self.read_unique + self.write_unique

    @property
    def requested(self) -> int:
        """Bytes asked for by loads plus bytes asked for by stores."""
        return self.read_requested + self.write_requested

    @property
    def times_read(self) -> float:
        """How often each byte that was read was asked for, on average; 0.0 if none was read."""
        return self.read_requested / self.read_unique if self.read_unique else 0.0

    def __add__(self, other: TensorTraffic) -> TensorTraffic:
        return TensorTraffic(
            self.tensor,
            self.read_unique + other.read_unique,
            self.read_requested + other.read_requested,
            self.write_unique + other.write_unique,
            self.write_requested + other.write_requested,
        )


@dataclass(frozen=True)
class Step:
    """One launch of a kernel (`kind` "launch") or one PyTorch operator (`kind` "aten").

    `grid` is a launch's grid. `lanes` counts the lanes of all its loads, stores and atomics, and
    `masked_lanes` those that a mask switched off; both are 0 for a PyTorch operator. `note` says
    what the count could not judge, if anything. `bytes_sectors` are the 32-byte sectors of each
    warp's request, in bytes; None where no warps were seen: Triton and PyTorch operators.
    """

    name: str
    kind: str
    tensors: tuple[TensorTraffic, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    lanes: int = 0
    masked_lanes: int = 0
    note: str = ""
    bytes_sectors: int | None = None

    @property
    def programs(self) -> int:
        """How many programs the launch ran."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def read_unique(self) -> int:
        """Distinct bytes read, all tensors together."""
        return sum(tensor.read_unique for tensor in self.tensors)

    @property
    def write_unique(self) -> int:
        """Distinct bytes written, all tensors together."""
        return sum(tensor.write_unique for tensor in self.tensors)

    @property
    def bytes_unique(self) -> int:
        """Distinct bytes read plus distinct bytes written."""
        return self.read_unique + self.write_unique

    @property
    def bytes_requested(self) -> int:
        """Bytes the lanes asked for, loads and stores together."""
        return sum(tensor.requested for tensor in self.tensors)

    def tensor(self, name: str) -> TensorTraffic:
        """Return one tensor's traffic in this step; all zero if the step left it alone."""
        found = [tensor for tensor in self.tensors if tensor.tensor == name]
        return sum(found, TensorTraffic(name))


@dataclass(frozen=True)
class Ledger:
    """The steps of a computation in order, and how they were counted (`method`).

    `full`: every program was interpreted. `linear`: a few rows were, and each number extended
    linearly in the rows. `polynomial`: a few sizes were, and each number extended along several.
    `formula`: nothing was run; tests hold the formula to what is counted at small sizes. `aten`:
    PyTorch operators on fake tensors, where asked for and unique bytes are the same since every
    operator reads each input once. `arguments`: launches that were written down and not run, each
    taken to move what it is given once; tests hold that to what is counted at small sizes.
    """

    steps: tuple[Step, ...]
    method: str = "full"

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def launches(self) -> int:
        """Launches of kernels that were counted."""
        return sum(step.kind == "launch" for step in self.steps)

    @property
    def aten_ops(self) -> int:
        """PyTorch operators that move bytes; on a GPU most are one launch, some are several."""
        return sum(step.kind == "aten" for step in self.steps)

    @property
    def read_unique(self) -> int:
        """Distinct bytes read, summed over the steps."""
        return sum(step.read_unique for step in self.steps)

    @property
    def write_unique(self) -> int:
        """Distinct bytes written, summed over the steps."""
        return sum(step.write_unique for step in self.steps)

    @property
    def bytes_unique(self) -> int:
        """Distinct bytes read and written, summed over the steps."""
        return self.read_unique + self.write_unique

    @property
    def bytes_requested(self) -> int:
        """Bytes asked for, summed over the steps."""
        return sum(step.bytes_requested for step in self.steps)

    @property
    def bytes_sectors(self) -> int | None:
        """Bytes of the sectors that warps asked for; None unless every step was counted so."""
        known = [step.bytes_sectors for step in self.steps if step.bytes_sectors is not None]
        return sum(known) if known and len(known) == len(self.steps) else None

    @property
    def masked_lanes(self) -> int:
        """Lanes that a mask switched off, summed over the launches."""
        return sum(step.masked_lanes for step in self.steps)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors that were touched, in the order they were first met."""
        return tuple(dict.fromkeys(t.tensor for step in self.steps for t in step.tensors))

    def tensor(self, name: str) -> TensorTraffic:
        """Return one tensor's traffic, summed over the steps; KeyError if it is unknown."""
        if name not in self.tensors:
            known = ", ".join(self.tensors) or "none"
            raise KeyError(f"tensor {name!r} was not touched; touched: {known}")
        return sum((step.tensor(name) for step in self.steps), TensorTraffic(name))

    def table(self) -> str:
        """Return the ledger as a Markdown table: a row a step and tensor, a total at the end.

        Below it stand the notes of steps, each once.
        """
        head = "| step | tensor | reads, unique B | reads, asked B | writes, unique B |"
        lines = [head, "|:--|:--|--:|--:|--:|"]
        for number, step in enumerate(self.steps, 1):
            for tensor in step.tensors:
                lines.append(
                    f"| {number} {step.name} | {tensor.tensor} | {tensor.read_unique:,} "
                    f"| {tensor.read_requested:,} | {tensor.write_unique:,} |"
                )
        asked = sum(t.read_requested for step in self.steps for t in step.tensors)
        lines.append(
            f"| **all** | | **{self.read_unique:,}** | **{asked:,}** | **{self.write_unique:,}** |"
        )
        noted: dict[str, list[str]] = {}
        for number, step in enumerate(self.steps, 1):
            if step.note:
                noted.setdefault(f"{step.name}: {step.note}", []).append(str(number))
        notes = [f"Step {', '.join(numbers)}, {told}." for told, numbers in noted.items()]
        return "\n".join([*lines, *(["", *notes] if notes else [])])

    def _repr_markdown_(self) -> str:
        return self.table()


def extend_rows(counts: Iterable[tuple[int, Ledger]], rows: int) -> Ledger:
    """Extend ledgers counted at small numbers of rows to `rows`, linearly and exactly.

    `counts` holds (rows, ledger) of the same computation, three or more. Each number of each
    tensor is the line through the first two, and the others must lie on it: ValueError names
    the step and tensor where they do not, since then nothing may be extended.
    """
    counts = list(counts)
    if len(counts) < 3:
        raise ValueError(f"a line needs a third count to confirm it; got {len(counts)} counts")
    shapes = {tuple((s.name, tuple(t.tensor for t in s.tensors)) for s in led) for _, led in counts}
    if len(shapes) > 1:
        raise ValueError("the steps differ between the row counts; nothing can be extended")

    def line(values: list[int], what: str) -> int:
        (r0, _), (r1, _) = counts[:2]
        rise, run = values[1] - values[0], r1 - r0
        for (r, _), value in zip(counts, values, strict=True):
            if (value - values[0]) * run != rise * (r - r0):
                raise ValueError(f"{what} is not linear in the rows: {values}")
        extended, rest = divmod(rise * (rows - r0), run)
        if rest:
            raise ValueError(f"{what} is not a whole number at {rows} rows")
        return values[0] + extended

    numbers = ("read_unique", "read_requested", "write_unique", "write_requested")
    steps = []
    for index, step in enumerate(counts[0][1]):
        same = [ledger.steps[index] for _, ledger in counts]
        tensors = tuple(
            TensorTraffic(
                tensor.tensor,
                *(
                    line([getattr(s.tensors[i], n) for s in same], f"{step.name} {n}")
                    for n in numbers
                ),
            )
            for i, tensor in enumerate(step.tensors)
        )
        grid = tuple(line([s.grid[d] for s in same], f"{step.name} grid") for d in range(3))
        lanes = line([s.lanes for s in same], f"{step.name} lanes")
        masked = line([s.masked_lanes for s in same], f"{step.name} masked lanes")
        sectors = [s.bytes_sectors for s in same if s.bytes_sectors is not None]
        steps.append(
            replace(
                step,
                tensors=tensors,
                grid=(grid[0], grid[1], grid[2]),
                lanes=lanes,
                masked_lanes=masked,
                bytes_sectors=line(sectors, f"{step.name} sectors") if sectors else None,
            )
        )
    return Ledger(tuple(steps), "linear")
