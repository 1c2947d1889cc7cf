"""Answers to 09.1, 09.3 to 09.5 and 09.10: right ones written differently, and known-wrong ones."""

import torch

# 09.1
FORECASTS = {
    "glu": (1, True),
    "masked_softmax": (1, True),
    "product": (1, False),
    "columns": (1, False),
    "logged": (2, False),
    "dropped": (1, False),
}


def forecast_by_table(name):
    return FORECASTS[name]


def forecast_by_rule(name):
    graphs = 2 if name == "logged" else 1
    return [graphs, name in ("glu", "masked_softmax")]


def forecast_by_match(name):
    match name:
        case "glu" | "masked_softmax":
            return 1, True
        case "logged":
            return 2, False
        case _:
            return 1, False


def forecast_with(**changed):
    """The right forecasts, some of them replaced."""
    return lambda name: changed.get(name, FORECASTS[name])


# 09.3
def rounded_by_operators(a, b, c):
    return a + b + c, (a.float() + b.float() + c.float()).to(a.dtype)


def rounded_in_steps(a, b, c):
    first = torch.add(a, b)
    total = a.float()
    total += b.float()
    total += c.float()
    return [torch.add(first, c), total.type_as(a)]


def rounded_by_hand(a, b, c):
    two = (a.float() + b.float()).to(a.dtype)
    once = torch.stack([t.float() for t in (a, b, c)])
    return (two.float() + c.float()).to(a.dtype), (once[0] + once[1] + once[2]).to(a.dtype)


def rounded_with(eager=None, compiled=None):
    """The right results, one of them replaced: a function of (a, b, c)."""

    def rounded(a, b, c):
        right = rounded_by_operators(a, b, c)
        return tuple(
            f(a, b, c) if f else value for f, value in zip((eager, compiled), right, strict=True)
        )

    return rounded


def fused(a, b, c):
    return rounded_by_operators(a, b, c)[1]


# 09.4
def asked_by_access(rows, cols, itemsize, xblock):
    """Each access by itself: lanes of a program, times programs."""
    programs, tile, row = rows // xblock, xblock * cols, cols
    lanes = [tile, tile, tile, tile, row, tile]  # a, b, a, b, c, y
    return sum(lanes) * programs * itemsize, (3 * rows * cols + cols) * itemsize


def asked_by_tensor(rows, cols, itemsize, xblock):
    whole, row = rows * cols * itemsize, cols * itemsize
    asked = {"a": 2 * whole, "b": 2 * whole, "c": rows // xblock * row, "y": whole}
    return [sum(asked.values()), sum((whole, whole, row, whole))]


def asked_by_rows(rows, cols, itemsize, xblock):
    each = 5 * xblock + 1  # rows that a program asks for
    return rows // xblock * each * cols * itemsize, (1 + 3 * rows) * itemsize * cols


def asked_with(requested=None, unique=None):
    """The right numbers, each with something added that a reader may count or forget."""

    def asked_for(*args):
        right = asked_by_access(*args)
        return tuple(
            number + (off(*args) if off else 0)
            for number, off in zip(right, (requested, unique), strict=True)
        )

    return asked_for


# 09.5
def chain_by_launch(rows, cols, itemsize):
    matrix, row = rows * cols * itemsize, cols * itemsize
    norm = matrix + 2 * row + matrix + 2 * 4 * rows
    gelu = matrix + matrix
    dropout = matrix + matrix + rows * cols
    total = norm + gelu + dropout + 3 * matrix
    kernel = (2 * matrix + 2 * row + 8 + 4 * rows * cols) + (4 * rows * cols + matrix)
    return total, 8 + kernel


def chain_by_element(rows, cols, itemsize):
    n, rest = rows * cols, 2 * cols * itemsize
    return [n * (9 * itemsize + 1) + rest + 8 * rows, n * (3 * itemsize + 8) + rest + 16]


def chain_by_tensor(rows, cols, itemsize):
    passes = {"x": 1, "h": 2, "g": 2, "d": 2, "residual": 1, "y": 1}
    matrix = rows * cols * itemsize
    eager = sum(passes.values()) * matrix + rows * cols * 1 + rows * 4 + rows * 4
    compiled = sum(passes[name] for name in ("x", "residual", "y")) * matrix
    parameters = cols * itemsize + cols * itemsize
    return eager + parameters, compiled + parameters + (4 + 4) * rows * cols + 8 + 8


def chain_with(eager=None, compiled=None):
    """The right numbers, each with something added that a reader may count or forget."""

    def chain_bytes(*args):
        right = chain_by_launch(*args)
        return tuple(
            number + (off(*args) if off else 0)
            for number, off in zip(right, (eager, compiled), strict=True)
        )

    return chain_bytes


# 09.10
def totals_by_call(rows, eager_ns, compiled_ns, compile_s):
    """Call by call, as it happens."""
    eager = default = static = 0.0
    first, symbolic, graphs = None, False, set()
    for r in rows:
        eager += r * eager_ns / 1e9
        if first is None:
            first, default = r, default + compile_s
        elif r != first and not symbolic:
            symbolic, default = True, default + compile_s
        default += r * compiled_ns / 1e9
        if r not in graphs and len(graphs) < 8:
            graphs.add(r)
            static += compile_s
        static += r * (compiled_ns if r in graphs else eager_ns) / 1e9
    return eager, default, static


def totals_by_shape(rows, eager_ns, compiled_ns, compile_s):
    shapes = sorted(set(rows), key=rows.index)
    times = {shape: rows.count(shape) * shape for shape in shapes}
    fast = sum(times[shape] for shape in shapes[:8])
    slow = sum(times[shape] for shape in shapes[8:])
    compilations = compile_s if len(shapes) == 1 else 2 * compile_s
    return [
        (fast + slow) * eager_ns * 1e-9,
        (fast + slow) * compiled_ns * 1e-9 + compilations,
        (fast * compiled_ns + slow * eager_ns) * 1e-9 + len(shapes[:8]) * compile_s,
    ]


def totals_from_eager(rows, eager_ns, compiled_ns, compile_s):
    """What each way saves of the eager time."""
    eager = sum(rows) * eager_ns * 1e-9
    saved = (eager_ns - compiled_ns) * 1e-9
    kept = list(dict.fromkeys(rows))[:8]
    served = sum(r for r in rows if r in kept)
    default = eager - saved * sum(rows) + compile_s * (1 + (len(set(rows)) > 1))
    return eager, default, eager - saved * served + compile_s * len(kept)


def totals_with(eager=None, default=None, static=None):
    """The right times, some replaced: a function of (rows, eager_ns, compiled_ns, compile_s)."""

    def totals(*args):
        right = totals_by_call(*args)
        return tuple(
            f(*args) if f else value
            for f, value in zip((eager, default, static), right, strict=True)
        )

    return totals
