"""05.4, 05.5 and 05.8: three kernels fused, an addition in packs, dropout with a call for eight."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.cuda_checks import in_cuda, lines_of, within_sectors
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.cuda_cases import (
    Tensor,
    at_end,
    blocks_enough,
    nearly_right,
    right_in_cuda,
)
from kernels.grading.questions.kits.packs import (
    ideal_bytes,
    in_packs,
    rounded_once,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import Models, drawn, recognised
from kernels.philox import keeps, scale, threshold
from kernels.registry import Tolerance

_GUARD = (
    "The last block has more threads than there are elements left: whoever has none does nothing."
)
_ROUNDED = (
    "It is right to three digits: on its way a value went through fp16. Convert to float when you "
    "load, and back when you store."
)

_SEVERAL = (
    "If several threads take the elements behind the last whole pack, each takes all of them: they "
    "belong to one thread, or to a few that take one each."
)
_REST = (
    "The elements behind the last whole pack were never stored: they are fewer than 8, and go one "
    "by one."
)


def _gate_case(rng: random.Random, rows: int, cols: int) -> Case:
    x, residual = (drawn(rng, (rows, cols), torch.float16) for _ in range(2))
    bias = drawn(rng, (cols,), torch.float16)
    v = x.double() + bias.double()
    reference = residual.double() + v * torch.sigmoid(v)
    inputs = {"x": x, "bias": bias, "residual": residual}
    return Case(inputs, (), reference, rounded_once(reference))


def _gate_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, bias, residual = (tensor.double() for tensor in case.tensors.values())
    v = x + bias
    silu = v * torch.sigmoid(v)
    yield "residual is not added.", silu
    yield "bias is not added.", residual + x * torch.sigmoid(x)
    yield "That is x + bias + residual: silu is missing.", residual + v
    yield "That is the sigmoid: silu(v) is v * sigmoid(v).", residual + torch.sigmoid(v)
    yield "The sign of the exponent is lost: sigmoid(v) = 1 / (1 + exp(-v)).", residual + v - silu
    whole = v + residual
    yield "silu is taken of all three: residual is added last.", whole * torch.sigmoid(whole)
    yield "Only the sigmoid takes the bias: v = x + bias is both.", residual + x * torch.sigmoid(v)
    if len(x) > 1:
        first = x + bias[0]
        yield (
            "All rows and columns take bias[0]: column c takes bias[c].",
            residual + first * torch.sigmoid(first),
        )


def _explain_gate(runs: list[Run]) -> str:
    if told := recognised(runs, _gate_models):
        return told
    if unstored(runs):
        return (
            "Elements that are nan were never stored: a guard is too strict, or the grid has too "
            "few blocks. Their number is a quotient rounded up."
        )
    return _ROUNDED if nearly_right(runs) else ""


def grade_gate(attempt: Attempt) -> None:
    """Grade `my_gate(x, bias, residual)`: residual + silu(x + bias) in fp16, in one launch."""
    rng = random.Random(attempt.seed)
    shapes = [(32, 64), (3, 17), (5, 300), (1, 1), (70, 1), (2, 1030), (130, 64)]
    shapes.append((rng.randrange(2, 40), rng.randrange(65, 300)))
    cases = [_gate_case(rng, *shape) for shape in shapes]
    runs = right_in_cuda(attempt, cases, _explain_gate, _GUARD)
    in_cuda(attempt, runs, launches=1)
    for name in ("x", "residual"):
        reads_once(attempt, runs, name)
    within_bytes(attempt, runs, ideal_bytes, "x, bias and residual read, the output written")
    for name in ("x", "residual", "the output"):
        within_sectors(attempt, [r for r in runs if r.case.x.shape[1] % 16 == 0], name)
    blocks_enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


GATE_SPEED = Speed(lambda seed: _gate_case(random.Random(seed), 8192, 4096), 0.5)


def _sizes(rng: random.Random) -> list[int]:
    ragged = [rng.randrange(9, 64), rng.randrange(2051, 4000)]
    return [1, 7, 8, 9, 2047, 2048, 2049, *ragged, 8 * rng.randrange(2049, 2200)]


def _add_case(rng: random.Random, n: int) -> Case:
    inputs = {name: drawn(rng, (n,), torch.float16) for name in ("x", "y")}
    reference = inputs["x"].double() + inputs["y"].double()
    return Case(inputs, (), reference, rounded_once(reference))


def _add_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, y = (tensor.double() for tensor in case.tensors.values())
    yield "y is not added: the sum is x alone.", x
    yield "x is added to itself.", 2 * x
    n = len(x)
    whole = torch.arange(n) < n // 8 * 8
    lost = torch.full_like(x, torch.nan)
    yield _REST, torch.where(whole, x + y, lost)
    yield (
        "Of each pack only the first element was stored: a pack has 8, each with a sum of its own.",
        torch.where(whole & (torch.arange(n) % 8 > 0), lost, x + y),
    )
    yield "Only the elements behind the last whole pack are right.", torch.where(whole, x, x + y)


def _explain_packs(runs: list[Run], models: Models) -> str:
    failed = [r for r in runs if r.fault is not None]
    if any(r.case.x.numel() % 8 == 0 for r in failed) and (told := at_end(runs)):
        return told  # more is missing than a rest
    return recognised(runs, models) or at_end(runs)


def _explain_add(runs: list[Run]) -> str:
    return _explain_packs(runs, _add_models)


def _stored_once(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if an element of the output is stored more than once."""
    for r in runs:
        moved = r.traffic(r.output)
        if moved.write_requested > moved.write_unique:
            more = (moved.write_requested - moved.write_unique) // r.output.element_size()
            raise Wrong(
                f"{attempt.name} stores {more:,} elements of the output once more on {r.case}.",
                f"Lanes that store the same number do no harm, and no good. {_SEVERAL}",
            )
    attempt.held.append("each element of the output is stored once")


def _elementwise(attempt: Attempt, runs: list[Run], names: tuple[str, ...]) -> None:
    """`Wrong` unless one launch takes each byte once, 16 bytes an access."""
    _stored_once(attempt, runs)
    # An element of a rest that is dropped need not be loaded: then not all of x is.
    judged = [r for r in runs if r.case.x.numel() % 8 == 0 or len(r.launches) != 1 or r.operators]
    in_cuda(attempt, judged, launches=1)
    for name in names:
        reads_once(attempt, runs, name)
    within_bytes(attempt, runs, ideal_bytes, f"{', '.join(names)} read, the output written")
    for name in (*names, "the output"):
        in_packs(attempt, runs, name)
        # A thread that takes a rest one by one makes a request for each.
        within_sectors(attempt, [r for r in runs if r.case.x.numel() % 8 == 0], name)
    blocks_enough(attempt, runs)


def grade_packed_add(attempt: Attempt) -> None:
    """Grade `packed_add(x, y)`: both (n,) in fp16, their sum, 16 bytes an access."""
    rng = random.Random(attempt.seed)
    cases = [_add_case(rng, n) for n in _sizes(rng)]
    runs = right_in_cuda(attempt, cases, _explain_add, _GUARD, met=_SEVERAL)
    _elementwise(attempt, runs, ("x", "y"))
    compiles(attempt, (r.case for r in runs))


ADD_SPEED = Speed(lambda seed: _add_case(random.Random(seed), 32 * 2**20), 0.85)

# What dropout_words loads of seed_offset at each call.
_CALL_BYTES = 16
_IDLE = 1024


def _dropout_case(rng: random.Random, n: int, p: float, trait: str = "") -> Case:
    x = drawn(rng, (n,), torch.float16)
    x = torch.where(x == 0, 1.0, x).half()  # so that a zero of the output was dropped
    seed, offset = rng.getrandbits(63), rng.getrandbits(40)
    kept = torch.from_numpy(keeps((n,), p, seed, offset))
    if trait:
        x[~kept] = torch.inf
    reference = torch.where(kept, x.double() * scale(p), 0.0)
    # All may be dropped; then every element is exactly 0.
    near = rounded_once(reference) if bool(kept.any()) else Tolerance(2.0**-11, 0.0)
    inputs = {"x": x, "seed_offset": torch.tensor([seed, offset])}
    return Case(inputs, (threshold(p), scale(p)), reference, near, trait)


def _dropout_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    seed, offset = case.tensors["seed_offset"].tolist()
    dropped, factor = case.options
    p = dropped / 65536
    n = len(x)
    kept = torch.from_numpy(keeps((n,), p, seed, offset))

    def masked(mask: Tensor, by: float = factor) -> Tensor:
        return torch.where(mask, x * by, 0.0)

    yield "Kept values are not multiplied by scale.", masked(kept, 1.0)
    yield "What is kept and what is dropped have changed places.", masked(~kept)
    yield "Nothing is dropped.", masked(torch.ones(n, dtype=torch.bool))
    yield "Everything is dropped.", masked(torch.zeros(n, dtype=torch.bool))
    yield (
        "All eight elements of a block take the first number: element i of the eight takes number "
        "i.",
        masked(kept[::8].repeat_interleave(8)[:n]),
    )
    first = torch.from_numpy(keeps((8,), p, seed, offset))
    yield (
        "Every eight elements take the numbers of block 0: the block of element e is e / 8.",
        masked(first.repeat(n // 8 + 1)[:n]),
    )
    rest = torch.arange(n) >= n // 8 * 8
    yield _REST, torch.where(rest, torch.nan, masked(kept))
    yield "The offset is left out of the counter.", masked(torch.from_numpy(keeps((n,), p, seed)))
    each = torch.from_numpy(keeps((8 * n,), p, seed, offset))
    yield (
        "The block is the element's own index: it takes that divided by 8, the number of the "
        "eight.",
        masked(each.view(n, 8)[torch.arange(n), torch.arange(n) % 8]),
    )
    strided = each.view(-1, 8)[torch.arange(n) // 8 * 8, torch.arange(n) % 8]
    yield "The block is the first element's index: it takes that divided by 8.", masked(strided)


def _explain_dropout(runs: list[Run]) -> str:
    if told := _explain_packs(runs, _dropout_models):
        return told
    if unstored(runs):
        return "Elements that are nan were never stored: each of the eight has a store."
    failed = [r for r in runs if r.fault is not None]
    if all(r.case.trait and r.wrong.numel() for r in failed):
        return (
            "An infinity that is dropped gave nan: inf * 0 is nan. Choose between the value and 0, "
            "and don't multiply by a mask."
        )
    return ""


def _calls(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if `dropout_words` is called more than once for eight elements."""
    for r in runs:
        n = r.case.x.numel()
        if n < 4096:
            continue
        loads = lines_of(r, r.case.tensors["seed_offset"])
        calls = sum(line.bytes_requested for _, line in loads) // _CALL_BYTES
        if calls > n / 8 + _IDLE:
            raise Wrong(
                f"seed_offset is asked for {calls:,} times on {r.case}: a call of dropout_words "
                f"for every {n / calls:.1f} elements. {-(-n // 8):,} calls will do.",
                "A call makes the numbers of eight elements. A thread that takes one element "
                "throws seven of them away, and its ten rounds cost more than the memory.",
                hint="Give a thread the eight elements of one block: 8 * i to 8 * i + 7.",
            )
    attempt.held.append("a call of Philox makes the numbers of eight elements")


def grade_dropout(attempt: Attempt) -> None:
    """Grade `my_dropout(x, seed_offset, threshold, scale)`: x (n,) in fp16, `keeps` bit for bit."""
    rng = random.Random(attempt.seed)
    chances = [0.1, 0.5, 0.25, rng.choice((0.3, 0.7))]
    cases = [_dropout_case(rng, n, chances[i % 4]) for i, n in enumerate(_sizes(rng))]
    cases += [_dropout_case(rng, 500, p) for p in (0.0, 1.0)]
    cases.append(_dropout_case(rng, 300, 0.5, "infinite where it is dropped"))
    runs = right_in_cuda(attempt, cases, _explain_dropout, _GUARD, met=_SEVERAL)
    _calls(attempt, runs)
    _elementwise(attempt, runs, ("x",))
    compiles(attempt, (r.case for r in runs))


DROPOUT_SPEED = Speed(lambda seed: _dropout_case(random.Random(seed), 32 * 2**20, 0.1), 0.8)
