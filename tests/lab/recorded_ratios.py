"""How many times as fast as another a variant was in a cell of a recorded suite."""

from kernels.lab.records.data import Recording


def ratio(
    card: Recording,
    op: str,
    shape: str,
    variant: str,
    baseline: str,
    *,
    pass_: str = "fwd",
    options: str = "",
    timing: str = "graph",
) -> float:
    """The cell's paired ratio in bf16, sample by sample; of medians where the cell has none."""
    where = {"op": op, "shape": shape, "dtype": "bf16", "options": options, "pass_": pass_}
    theirs, mine = (card.one(**where, variant=v, timing=timing) for v in (baseline, variant))
    told = card.provenance.get("speed_ups_host" if timing == "host" else "speed_ups", {})
    paired = told.get(mine.cell_name, {}).get(variant, {}).get(baseline)
    return paired["ratio"] if paired else theirs.time_us_p50 / mine.time_us_p50
