"""Wrong numbers, words and places of set 14 get the remark meant for them."""

import pytest

from kernels.grading import check
from kernels.grading.questions.ch14 import bound, ledgers, masks, moved, strides, workspace
from tests.grading import submissions_14 as s
from tests.grading.known_wrong import fails


def _tokens(of_e, of_i, more=0):
    return lambda b, length, e, i, t: b * length * (of_e * e + of_i * i) * t + more


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.moved_with(before=_tokens(14, 2)), "before is", "the bytes written"),
        (s.moved_with(before=_tokens(18, 2)), "before is", "have changed places"),
        (s.moved_with(before=_tokens(30, 2)), "before is", "GELU reads I numbers"),
        (s.moved_with(before=_tokens(28, 4)), "before is", "residual is read too"),
        (s.moved_with(before=_tokens(15, 2)), "before is", "counted once"),
        (s.moved_with(after=_tokens(18, 4)), "after is", "GELU is no launch of its own here"),
        (s.moved_with(after=_tokens(16, 2)), "after is", "residual is read too"),
        (s.moved_with(after=_tokens(10, 1)), "after is", "the bytes read"),
        (s.moved_with(after=_tokens(14, 2)), "after is", "3 · E wide"),
        # As many bytes as of narrow copies have the copies themselves; one read left out may be
        # the residual, or two thirds of what attention reads.
        (s.moved_with(before=_tokens(22, 4)), "before is", "the copies are launches too"),
        (s.moved_with(before=_tokens(28, 4)), "before is", "attention reads queries, keys and"),
        (
            s.moved_with(
                after=lambda b, n, e, i, t: moved.AFTER(b, n, e, i, t) + (4 * e * e + 2 * e * i) * t
            ),
            "after is",
            "The weights are counted",
        ),
        (
            s.moved_with(before=lambda b, n, e, i, t: moved.BEFORE(b, n, e, i, 1)),
            "before is",
            "not bytes",
        ),
        (
            s.moved_with(after=lambda b, n, e, i, t: moved.AFTER(1, n, e, i, t)),
            "after is",
            "one sequence",
        ),
        (lambda *args: 1, "it takes the tuple (before, after)", ""),
        (s.moved_with(after=lambda b, n, e, i, t: 1.0 * b), "returned a float", "makes a float"),
    ],
)
def test_moved_wrong(answer, message, means):
    fails(check("14.1", answer, seed=1), message=message, means=means)


def _single(launch):
    """Whether a launch reads one tensor and writes as much."""
    return list(launch.reads.values()) == list(launch.writes.values())


def _by_first_readers(otherwise):
    """The word by who reads a residual first: a norm, or not."""
    return lambda ledger: "pre" if ledgers._past_a_norm(ledger) else otherwise


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda ledger: "pre", "says 'pre'", "the same word for every ledger"),
        (lambda ledger: "pre" if _single(ledger[0]) else "post", "says", "first launch need not"),
        (lambda ledger: "post" if _single(ledger[-1]) else "pre", "says", "last launch need not"),
        (
            lambda ledger: "pre" if any(map(_single, ledger)) else ledgers.VERDICTS[1],
            "should say 'post'",
            "in every ledger where norms are launches",
        ),
        (s.norm_place_by_the_last_sum, "says", "the next sum reads it too, behind the cut"),
        (_by_first_readers("post"), "should say 'pre, norms in products'", "not yet post-LN"),
        (_by_first_readers(ledgers.VERDICTS[1]), "should say 'post'", "in post-LN it is so too"),
        (
            lambda ledger: ledgers.where(ledger).partition(",")[0],
            "should say 'pre, norms in products'",
            "You tell pre from post",
        ),
        (
            lambda ledger: {"pre": "post", "post": "pre"}.get(*[ledgers.where(ledger)] * 2),
            "says",
            "pre and post have changed places",
        ),
        (
            lambda ledger: {"pre": ledgers.VERDICTS[1]}.get(*[ledgers.where(ledger)] * 2),
            "should say 'pre'",
            "Each residual is read twice",
        ),
        (lambda ledger: "pre-LN", "it takes one of", ""),
    ],
)
def test_ledgers_wrong(answer, message, means):
    fails(check("14.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.strides_with(batch=lambda n, h, d, by: n * h * d), "batch is", "a copy of its own"),
        (s.strides_with(batch=lambda n, h, d, by: 3 * h * d), "batch is", "length rows"),
        (s.strides_with(head=lambda n, h, d, by: n * d), "head is", "a copy of its own"),
        (s.strides_with(head=lambda n, h, d, by: d), "head is", "by_head is left out"),
        (s.strides_with(head=lambda n, h, d, by: 3 * d), "head is", "Only by_head"),
        (s.strides_with(head=lambda n, h, d, by: d if by else 3 * d), "head is", "its meaning"),
        (s.strides_with(row=lambda n, h, d, by: h * d), "row is", "keys and values of all heads"),
        (s.strides_with(row=lambda n, h, d, by: 6 * h * d), "row is", "and not bytes"),
        (s.strides_with(k_offset=lambda n, h, d, by: h * d), "k_offset is", "left out"),
        (s.strides_with(k_offset=lambda n, h, d, by: n * h * d), "k_offset is", "the same row"),
        (s.strides_with(k_offset=strides.v_offset), "k_offset is", "have changed places"),
        (s.strides_with(v_offset=strides.k_offset), "v_offset is", "where the keys begin"),
        (s.strides_with(v_offset=lambda n, h, d, by: 2 * d), "v_offset is", "of all heads"),
        (lambda *args: (1, 2, 3), "it takes the tuple (batch, head, row", ""),
    ],
)
def test_strides_wrong(answer, message, means):
    fails(check("14.3", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.masks_with(as_bool=lambda b, h, n, e, i, t, m: b * n * t),
            "as_bool is",
            "A bool has one byte",
        ),
        (
            s.masks_with(as_bool=lambda b, h, n, e, i, t, m: b * h * n),
            "as_bool is",
            "no axis of heads",
        ),
        (
            s.masks_with(as_bool=lambda b, h, n, e, i, t, m: b * n * n),
            "as_bool is",
            "one axis of tokens",
        ),
        (
            s.masks_with(as_table=lambda b, h, n, e, i, t, m: b * n * n * t),
            "as_table is",
            "for every head",
        ),
        (
            s.masks_with(as_table=lambda b, h, n, e, i, t, m: b * h * n * n),
            "as_table is",
            "not bytes",
        ),
        (
            s.masks_with(asked_bool=lambda b, h, n, e, i, t, m: b * h * (n // m) * n),
            "asked_bool is",
            "round up",
        ),
        (
            s.masks_with(asked_bool=lambda b, h, n, e, i, t, m: b * h * n * n),
            "asked_bool is",
            "once for every row",
        ),
        (
            s.masks_with(
                asked_bool=lambda b, h, n, e, i, t, m: b * h * -(-n // m) * -(-n // m) * m
            ),
            "asked_bool is",
            "only the number of tiles is rounded up",
        ),
        (
            s.masks_with(asked_bool=lambda b, h, n, e, i, t, m: -(-b * h * n // m) * n),
            "asked_bool is",
            "within one head of one sequence",
        ),
        (
            s.masks_with(least_length=lambda b, h, n, e, i, t, m: -(-(9 * e + i) // h)),
            "least_length is",
            "That is each tensor once",
        ),
        (s.masks_with(asked_bool=masks.as_bool), "asked_bool is", "the distinct bytes"),
        (
            s.masks_with(asked_bool=lambda b, h, n, e, i, t, m: b * -(-n // m) * n),
            "asked_bool is",
            "programs of its own",
        ),
        (
            s.masks_with(least_length=lambda b, h, n, e, i, t, m: (18 * e + 2 * i) // h),
            "least_length is",
            "Rounded down",
        ),
        (
            s.masks_with(least_length=lambda b, h, n, e, i, t, m: -(-(30 * e + 4 * i) // h)),
            "least_length is",
            "operator by operator",
        ),
        (
            s.masks_with(least_length=lambda b, h, n, e, i, t, m: 18 * e + 2 * i),
            "least_length is",
            "divide by what both have",
        ),
        (
            s.masks_with(least_length=lambda b, h, n, e, i, t, m: (18 * e + 2 * i) / h),
            "returned a float",
            "makes a float",
        ),
    ],
)
def test_mask_bytes_wrong(answer, message, means):
    fails(check("14.5", answer, seed=1), message=message, means=means)


def _grained(*lists):
    """The largest sum of lists of widths, each a function of E and I, rounded up one by one."""

    def formula(b, n, e, i, t):
        def taken(wide):
            return -(-b * n * wide(e, i) * t // 512) * 512

        return max(sum(map(taken, one)) for one in lists)

    return formula


def _e(times):
    return lambda e, i: times * e


def _i(e, i):
    return i


def _two_i(e, i):
    return 2 * i


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.workspace_with(before=_grained((_e(3), _e(3)), (_i, _i), (_e(1), _i), (_e(1),) * 3)),
            "before is",
            "h is missing",
        ),
        (
            s.workspace_with(after=_grained((_e(3),), (_e(1), _i))),
            "after is",
            "and so does what it writes",
        ),
        (
            s.workspace_with(after=lambda b, n, e, i, t: b * n * t * max(4 * e, 2 * e + i)),
            "after is",
            "a multiple of 512",
        ),
        (
            s.workspace_with(
                after=lambda b, n, e, i, t: -(-b * n * t * max(4 * e, 2 * e + i) // 512) * 512
            ),
            "after is",
            "rounded up by itself",
        ),
        (
            s.workspace_with(after=_grained((_e(1), _e(3), *(_e(1),) * 4, _i))),
            "after is",
            "Nothing is used again",
        ),
        (s.workspace_with(after=_grained((_e(1), _e(3)))), "after is", "the MLP takes more"),
        (
            s.workspace_with(after=_grained((_e(1), _e(1), _i))),
            "after is",
            "QKV and attention take more",
        ),
        (
            s.workspace_with(before=_grained((_e(1), _i, _i), (_e(1), _e(1), _i), (_e(1),) * 3)),
            "before is",
            "QKV and attention take more",
        ),
        (s.workspace_with(before=workspace.AFTER), "before is", "have changed places"),
        (
            s.workspace_with(after=_grained((_e(1), _e(1), _e(3)), (_e(1), _e(1), _e(1), _i))),
            "after is",
            "x is the caller's",
        ),
        (s.workspace_with(after=_grained((_e(3),), (_i,))), "after is", None),
        (
            s.workspace_with(before=_grained((_e(3), _e(3)), (_i, _i), (_e(1),) * 2)),
            "before is",
            "lives while the MLP runs",
        ),
        (
            s.workspace_with(before=_grained((_e(6),), (_e(1), _two_i))),
            "before is",
            "those of one size too",
        ),
        (
            s.workspace_with(before=_grained((_e(3), _e(3), _e(1)), (_e(1), _i, _i))),
            "before is",
            "x is the caller's",
        ),
        (
            s.workspace_with(
                after=lambda b, n, e, i, t: b * n * workspace.AFTER(1, 1, e, i, t),
            ),
            "after is",
            "not each token's part",
        ),
    ],
)
def test_workspace_wrong(answer, message, means):
    fails(check("14.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("fault", "message", "means"),
    [
        ("nothing again", "live at once at most", "Nothing is used again"),
        ("launch by launch", "live at once at most", "Place the largest first"),
        ("smallest first", "live at once at most", "Place the largest first"),
        ("a hole", "live at once at most", "Nothing begins at byte 0"),
        ("rounded up", "live at once at most", "not rounded up"),
        ("longest first", "live at once at most", "some by holes"),
        ("over what is read", "over it", "programs run in any order"),
        ("first reader", "lies over it", "until its last reader"),
        ("all at 0", "over it", "programs run in any order"),
        ("no result", "a dict without", "the result too"),
        ("x too", "and for no other", "x has one already"),
        ("floats", "returned a float", "makes a float"),
        ("below 0", "at -256", "count from 0"),
        ("a list", "it takes a dict", ""),
    ],
)
def test_places_wrong(fault, message, means):
    fails(check("14.9", s.places_with(fault), seed=1), message=message, means=means)


def test_of_two_of_one_size_the_earlier_goes_first():
    told = {seed: check("14.9", s.places_with("ties turned"), seed=seed) for seed in range(6)}
    failed = [result for result in told.values() if not result.passed]
    assert failed
    for result in failed:
        fails(result, message="live at once at most", means="The largest first is the rule")


def _bound(launches, of_e, of_i, weights=(4, 2), each=0):
    def formula(gbs, ns, e, i, t):
        left = launches * ns * gbs - (weights[0] * e * e + weights[1] * e * i) * t
        return max(0, (left + each) // ((of_e * e + of_i * i) * t))

    return formula


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.bound_with(before=_bound(12, 30, 4, (0, 0))), "before is", "The weights are missing"),
        (s.bound_with(before=_bound(12, 30, 4, (2, 2))), "before is", "E² more"),
        (s.bound_with(after=_bound(7, 18, 2, each=-1)), "after is", "At least as long is asked"),
        (s.bound_with(before=_bound(12, 30, 4, each=-1)), "before is", "At least as long is asked"),
        (s.bound_by_floats, "before is", "a float on the way may not"),
        (s.bound_by_seconds, "before is", "a float on the way may not"),
        (
            s.bound_with(
                before=lambda g, n, e, i, t: max(
                    0, (12 * n * g - 4 * e * e - 2 * e * i) // ((30 * e + 4 * i) * t)
                )
            ),
            "before is",
            "a weight's too",
        ),
        (s.bound_with(before=_bound(12, 30, 4, (3, 2))), "before is", "E² more"),
        (s.bound_with(after=_bound(7, 18, 2, (4, 1))), "after is", "two products"),
        (s.bound_with(after=_bound(7, 18, 2, (0, 2))), "after is", "attention are missing"),
        (s.bound_with(before=_bound(7, 30, 4)), "before is", "The launches are those"),
        (s.bound_with(after=_bound(7, 30, 4)), "after is", "of the other layer"),
        (s.bound_with(before=bound.AFTER), "before is", "have changed places"),
        (s.bound_with(after=_bound(1, 18, 2)), "after is", "That is one launch"),
        (
            s.bound_with(before=lambda g, n, e, i, t: bound.BEFORE(1000 * g, n, e, i, t)),
            "before is",
            "no other factor",
        ),
        (
            s.bound_with(
                after=lambda g, n, e, i, t: (
                    (7 * n * g - (4 * e * e + 2 * e * i) * t) // ((18 * e + 2 * i) * t)
                )
            ),
            "after is",
            "can't be below 0",
        ),
        (
            s.bound_with(after=lambda g, n, e, i, t: bound.AFTER(g, n, e, i, t) + 1),
            "after is",
            None,
        ),
        (s.bound_with(before=lambda *args: bound.BEFORE(*args) / 1), "a float", "makes a float"),
    ],
)
def test_bound_wrong(answer, message, means):
    fails(check("14.10", answer, seed=1), message=message, means=means)
