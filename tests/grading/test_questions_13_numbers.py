"""Wrong numbers of set 13 get the remark meant for them."""

import pytest
import torch

from kernels.grading import check
from kernels.grading.questions.ch13 import kept
from tests.grading import submissions_13 as s
from tests.grading.known_wrong import fails


@pytest.mark.parametrize(
    ("fault", "means"),
    [
        (lambda p, dp, total: p * dp, "The sum is missing"),
        (lambda p, dp, total: p * (1 - p) * dp, "the diagonal alone"),
        (lambda p, dp, total: p * (dp - dp.mean(-1, keepdim=True)), "A mean is taken away"),
        (lambda p, dp, total: p * (dp - total / p.shape[-1]), "A mean is taken away"),
        (lambda p, dp, total: p * (dp - dp.sum(-1, keepdim=True)), "lacks its weights"),
        (lambda p, dp, total: dp - total, "The factor p is missing"),
        (lambda p, dp, total: p * dp - total, "The difference comes first"),
        (lambda p, dp, total: p * (dp + total), "The sum is added"),
        (lambda p, dp, total: p * (total - dp), "The sign is turned"),
        (lambda p, dp, total: p * (dp - (p * dp).sum(0)), "runs down the queries"),
        (lambda p, dp, total: p * (dp - (p * dp).sum()), "runs over all rows"),
        (lambda p, dp, total: s.score_gradient(torch.softmax(p, -1), dp), "a softmax already"),
    ],
)
def test_score_gradient_wrong(fault, means):
    fails(check("13.1", s.gradient_with(fault), seed=1), message="ds[", means=means)


def _half(m, n, causal):
    return m * n // 2 if causal else m * n


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.flops_with(s.counted(1)), "forward", "There are two products"),
        (s.flops_with(s.counted(2, factor=1)), "forward", "There are two products"),
        (s.flops_with(None, s.counted(5)), "kept", "s is not computed again"),
        (s.flops_with(None, s.counted(3)), "kept", "dp is missing"),
        (s.flops_with(None, s.counted(4, factor=1)), "kept", "one for dp: four"),
        (s.flops_with(None, None, s.counted(4)), "one_kernel", "a fifth product"),
        (s.flops_with(None, None, s.counted(6)), "one_kernel", "o is not computed again"),
        (s.flops_with(None, None, s.counted(7)), "one_kernel", "once for all three"),
        (s.flops_with(None, None, s.counted(5, factor=1)), "one_kernel", "is two FLOPs"),
        (s.flops_with(None, None, None, s.counted(5)), "two_kernels", "share no tile"),
        (s.flops_with(None, None, None, s.counted(6)), "two_kernels", "in both kernels"),
        (s.flops_with(None, None, None, s.counted(10)), "two_kernels", "computes what it needs"),
        (s.flops_with(None, None, None, s.counted(8)), "two_kernels", "needs no dv"),
        (s.flops_with(s.counted(2, _half)), "forward", "n · (n + 1) / 2 pairs"),
        (s.flops_with(s.counted(2, lambda m, n, c: m * n)), "forward", "n · (n + 1) / 2 pairs"),
        (
            s.flops_with(s.counted(2, lambda m, n, c: n * (n - 1) // 2 if c else m * n)),
            "forward",
            "The diagonal is seen",
        ),
        (
            s.flops_with(s.counted(2, lambda m, n, c: n * (n + 1) // 2 if c else n * n)),
            "forward",
            "m · n pairs",
        ),
        (
            s.flops_with(lambda h, m, n, d, c: s.product_flops(1, m, n, d, c)[0]),
            "forward",
            "Each head has its own",
        ),
        (s.flops_with(lambda *args: 2.0), "returned a float", "makes a float"),
    ],
)
def test_products_wrong(answer, message, means):
    fails(check("13.3", answer, seed=1), message=message, means=means)


def _other(formula, **changed):
    return lambda *args: formula(*kept.Call(*args)._replace(**changed))


def _more(formula, more):
    """`formula` and more bytes, by a function of the call."""
    return lambda *args: formula(*args) + more(kept.Call(*args))


THREE, FLASH = kept.three_steps, kept.flash


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.kept_with(_other(THREE, itemsize=1)), "three_steps", "not bytes"),
        (s.kept_with(_other(THREE, batch=1)), "three_steps", "The whole batch"),
        (s.kept_with(_other(THREE, dropout=False)), "three_steps", "Dropout keeps more"),
        (s.kept_with(_more(THREE, lambda c: c.q * c.itemsize)), "three_steps", "o is not read"),
        (s.kept_with(_more(THREE, lambda c: c.p * c.itemsize)), "three_steps", "s is not read"),
        (s.kept_with(_more(THREE, lambda c: -c.p * c.itemsize)), "three_steps", "p itself"),
        (s.kept_with(_more(THREE, lambda c: -c.p * c.dropout)), "three_steps", "The mask is"),
        (
            s.kept_with(_more(THREE, lambda c: -c.p * c.dropout * c.itemsize)),
            "three_steps",
            "The dropped weights are missing",
        ),
        (
            s.kept_with(_more(THREE, lambda c: c.p * c.dropout * (c.itemsize - 1))),
            "three_steps",
            "not the size of a number",
        ),
        (s.kept_with(FLASH), "three_steps", "the bytes of flash"),
        (s.kept_with(None, THREE), "flash", "of the three steps"),
        (s.kept_with(None, _other(FLASH, itemsize=1)), "flash", "not bytes"),
        (s.kept_with(None, _more(FLASH, lambda c: -c.q * c.itemsize)), "flash", "o is missing"),
        (s.kept_with(None, _more(FLASH, lambda c: -4 * c.rows)), "flash", "L is missing"),
        (
            s.kept_with(None, _more(FLASH, lambda c: (c.itemsize - 4) * c.rows)),
            "flash",
            "L is fp32",
        ),
        (s.kept_with(None, _more(FLASH, lambda c: 4 * c.rows)), "flash", "keeps one number"),
        (s.kept_with(None, _more(FLASH, lambda c: -16 * c.dropout)), "flash", "8 bytes each"),
        (s.kept_with(None, _more(FLASH, lambda c: c.p * c.dropout)), "flash", "No mask is kept"),
        (
            s.kept_with(None, lambda *a: FLASH(*kept.Call(*a)._replace(kv_heads=a[1]))),
            "flash",
            "have kv_heads heads",
        ),
        (lambda *args: 1, "it takes the tuple (three_steps, flash)", ""),
    ],
)
def test_kept_wrong(answer, message, means):
    fails(check("13.4", answer, seed=1), message=message, means=means)


def _queries(head, i, j, group):
    return head, i


def _keys(head, i, j, group):
    return head // group, j


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.adders_with(lambda p, g: s.adders(p, g)[1]), "of_dq", "have changed places"),
        (s.adders_with(None, lambda p, g: s.adders(p, g)[0]), "of_dk", "have changed places"),
        (s.adders_with(s.visits(_queries)), "of_dq", "Those are visits"),
        (s.adders_with(None, s.visits(_keys)), "of_dk", "Those are visits"),
        (s.adders_with(s.programs_at(lambda h, i, j, g: i)), "of_dq", "Each head has queries"),
        (s.adders_with(None, s.programs_at(lambda h, i, j, g: j)), "of_dk", "Each head has"),
        (
            s.adders_with(None, s.programs_at(lambda h, i, j, g: (h, j))),
            "of_dk",
            "share their keys",
        ),
        (
            s.adders_with(None, s.programs_at(lambda h, i, j, g: (h % g, j))),
            "of_dk",
            "head // group, and not head % group",
        ),
        (
            s.adders_with(s.programs_at(lambda h, i, j, g: (h // g, i))),
            "of_dq",
            "queries of its own",
        ),
        (s.adders_with(s.programs_at(_queries, min)), "of_dq", "to which most programs add"),
        (s.adders_with(None, s.programs_at(_keys, len)), "of_dk", "how many tiles there are"),
        (s.adders_with(lambda p, g: len(p)), "of_dq", "That is all programs"),
        (
            s.adders_with(lambda p, g: max(len({t[:2] for t in tiles}) for tiles in p)),
            "of_dq",
            "to how many tiles a program adds",
        ),
        (s.adders_with(lambda p, g: s.adders(p, g)[0] - 1), "of_dq", "is 1: it needs no atomic"),
        (s.adders_with(lambda p, g: s.adders(p, g)[0] > 1), "a bool; of_dq is an int", ""),
    ],
)
def test_adders_wrong(answer, message, means):
    fails(check("13.5", answer, seed=1), message=message, means=means)


def _last(t, b, n):
    return min((t + 1) * b, n) - 1


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.bounds_with(lambda t, m, b, n: t * b), "begin", "a multiple of it"),
        (s.bounds_with(lambda t, m, b, n: -(-t * b // m) * m), "begin", "Rounded up"),
        (s.bounds_with(lambda t, m, b, n: t * m), "begin", "tile * block_n"),
        (s.bounds_with(lambda t, m, b, n: 0), "begin", "needn't begin at 0"),
        (s.bounds_with(lambda t, m, b, n: (t + 1) * b // m * m), "begin", "not behind the tile"),
        (s.bounds_with(lambda t, m, b, n: t * b // m), "begin", "the number of a tile"),
        (s.bounds_with(None, lambda t, m, b, n: t * b // m * m), "unmasked", "The last key of"),
        (
            s.bounds_with(None, lambda t, m, b, n: -(-(_last(t, b, n) + 1) // m) * m),
            "unmasked",
            "(tile + 1) * block_n - 1, and",
        ),
        (
            s.bounds_with(None, lambda t, m, b, n: -(-((t + 1) * b - 1) // m) * m),
            "unmasked",
            "ends at n",
        ),
        (
            s.bounds_with(None, lambda t, m, b, n: _last(t, b, n) // m * m),
            "unmasked",
            "a tile too early",
        ),
        (s.bounds_with(None, lambda t, m, b, n: _last(t, b, n)), "unmasked", "a multiple of it"),
        (s.bounds_with(None, None, lambda t, m, b, n: (t + 1) * m), "end", "ends at n"),
        (s.bounds_with(None, None, lambda t, m, b, n: n), "end", "sees nothing"),
        (s.bounds_with(None, None, lambda t, m, b, n: _last(t, m, n)), "end", "its own key too"),
        (s.bounds_with(None, None, lambda t, m, b, n: t * m), "end", "not of its first one"),
        (
            s.bounds_with(None, None, lambda t, m, b, n: min((t + 1) * b, n)),
            "end",
            "not at that of block_n",
        ),
        (
            s.bounds_with(None, None, lambda t, m, b, n: -(-min((t + 1) * m, n) // b) * b),
            "end",
            "cut off at the key",
        ),
    ],
)
def test_bounds_wrong(answer, message, means):
    fails(check("13.6", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("told", "right", "means"),
    [
        ("another offset", "turned index", "is it forward's transpose?"),
        ("another offset", "unpadded rows", "With N a multiple of 8"),
        ("turned index", "unpadded rows", "With N a multiple of 8"),
        ("nothing", "unpadded rows", "try 7 keys"),
        ("nothing", "dp of p", "Take another p"),
        ("dp unscaled", "dp undropped", "Does dp have zeros?"),
        ("nothing", "dv undropped", "all of dv are alike"),
        ("nothing", "another offset", "however you turn them"),
        ("nothing", "turned index", "the other's transpose"),
        ("nothing", "dp unscaled", "what is kept lacks the scale"),
        ("nothing", "dp undropped", "no zeros where forward dropped"),
        ("dp of p", "nothing", "Take another p"),
    ],
)
def test_dropout_wrong(told, right, means):
    answer = s.dropout_fault_with({right: told})
    fails(
        check("13.9", answer, seed=1), message=f"says {told!r} where it is {right!r}", means=means
    )


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.fault_by_trying, "9 experiments", "on which one fault alone shows"),
        (lambda layer: "nothing", "says 'nothing' where", None),
        (lambda layer: "turned", "a verdict is one of", ""),
    ],
)
def test_verdicts_wrong(answer, message, means):
    fails(check("13.9", answer, seed=1), message=message, means=means)
