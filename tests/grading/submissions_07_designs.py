"""Answers to 07.8, a design told from its ledger and its price: right ones and wrong ones."""


def design_by_reads(ledger):
    readers = [step for step in ledger if step.tensor("x").read_unique]
    if len(readers) == 2:
        (other,) = (step for step in readers if not step.tensor("dx").write_unique)
        return "second reading", sum(t.read_requested for t in other.tensors)
    return ("atomics", "partial sums")[ledger.launches - 1], _of_first(ledger)


def _of_first(ledger):
    return sum(step.tensor("buffer 1").requested for step in ledger)


def design_by_buffers(ledger):
    steps = list(ledger)
    both = [s for s in steps if s.tensor("buffer 1").read_unique]
    if not both:
        other = steps[0] if steps[1].tensor("dx").write_unique else steps[1]
        return [
            "second reading",
            sum(other.tensor(n).read_requested for n in ("x", "dy", "inv_rms")),
        ]
    name = "atomics" if both[0].tensor("buffer 1").write_unique else "partial sums"
    return [name, _of_first(ledger)]


def design_by_launches(ledger):
    steps = {bool(step.tensor("dx").write_unique): step for step in ledger}
    if False not in steps:
        t = steps[True].tensor("buffer 1")
        return "atomics", 2 * t.write_requested
    if steps[False].tensor("dy").read_unique:
        return "second reading", steps[False].bytes_requested - steps[False].tensor(
            "buffer 1"
        ).requested
    return "partial sums", 2 * steps[True].tensor("buffer 1").write_requested


def design_without_passes(ledger):
    """Take every second launch for a sum of partial sums."""
    return ("atomics", "partial sums")[ledger.launches - 1], _of_first(ledger)


def design_with(price):
    """The right design, and a price of one's own: price(name, ledger)."""

    def design(ledger):
        name, _ = design_by_reads(ledger)
        return name, price(name, ledger)

    return design


def priced_by_distinct_bytes(name, ledger):
    if name == "second reading":
        return design_by_reads(ledger)[1]
    return sum(step.tensor("buffer 1").unique for step in ledger)


def priced_by_writes(name, ledger):
    if name == "second reading":
        return design_by_reads(ledger)[1]
    return sum(step.tensor("buffer 1").write_requested for step in ledger)


def priced_by_matrices(name, ledger):
    if name != "second reading":
        return _of_first(ledger)
    return sum(step.tensor(n).read_unique for step in ledger for n in ("x", "dy")) // 2


def priced_by_last_launch(name, ledger):
    """Take the launch that comes last for the one that makes dweight."""
    if name != "second reading":
        return _of_first(ledger)
    return sum(t.read_requested for t in list(ledger)[-1].tensors)
