"""Each known-wrong submission fails with the diagnosis meant for it; right ones pass."""

import json
import math
import random
import re
import statistics

import numpy as np
import pytest

from kernels.grading import check
from kernels.grading.question import Attempt, Wrong, questions
from kernels.grading.questions.ch01 import cause as ch01_cause
from kernels.grading.questions.ch01 import fusion as ch01_fusion
from kernels.grading.questions.ch01 import least_time as ch01_time
from kernels.grading.questions.ch01 import ledger as ch01_ledger
from kernels.grading.questions.ch01 import predicted_bytes as ch01_bytes
from kernels.grading.questions.ch01 import warps as ch01_warps
from kernels.lab.cards.makers import CARDS
from kernels.lab.counting import aten
from kernels.paths import ROOT
from tests.grading import submissions_01 as s
from tests.grading.known_wrong import fails
from tests.grading.right import assert_all_pass_soon
from tests.grading.test_exercises import code_cells

RIGHT = {
    "01.1": (s.add_by_tensor, s.add_in_one_formula, s.add_by_numpy),
    "01.2": (s.bound_by_ridge, s.bound_by_time, s.bound_by_harmonic_sum),
    "01.3": (s.passes_by_sum, s.passes_by_loop, s.passes_by_fraction),
    "01.4": (s.share_by_bandwidth, s.share_by_time, s.share_in_one_formula),
    "01.5": (s.roof_by_time, s.roof_by_intensity, s.roof_by_cases),
    "01.6": (s.warps_in_ints, s.warps_by_ceil, s.warps_in_base_units, s.warps_step_by_step),
    "01.7": (s.plan_by_trying, s.plan_by_steps, s.plan_by_bytes_saved),
    "01.8": (s.cause_by_floors, s.cause_backwards, s.cause_by_ratios),
}


def verdict(question: str, answer, seed: int) -> Wrong | None:
    """Grade in this process: what is wrong, or None."""
    try:
        questions()[question].grade(Attempt(answer, seed))
    except Wrong as wrong:
        return wrong
    return None


@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_in_less_than_five_seconds(question):
    assert_all_pass_soon(question, RIGHT[question])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("question", RIGHT)
def test_right_answers_pass_whatever_the_seed(question, seed):
    for answer in RIGHT[question]:
        assert verdict(question, answer, seed) is None


@pytest.mark.parametrize(
    ("formula", "means"),
    [
        (lambda r, n, s: (r * n + n) * s, "The output is missing"),
        (lambda r, n, s: 2 * r * n * s, "The bias is missing"),
        (lambda r, n, s: 3 * r * n * s, "as if it had x's shape"),
        (lambda r, n, s: (2 * r * n + r) * s, "one for each column"),
        (lambda r, n, s: 2 * r * n + n, "These are elements"),
        (lambda r, n, s: (2 * r * n + n) * s * 8, "These are bits"),
        (lambda r, n, s: 4 * (2 * r * n + n), "4 bytes, whatever itemsize"),
        (lambda r, n, s: (2 * r * n + n) * s / 1, "float"),
        (lambda r, n, s: r + n + s, ""),
    ],
)
def test_add_wrong(formula, means):
    fails(check("01.1", formula, seed=1), means=means)


def product(intensity=None, bound=None):
    """The right answer, or one of its two parts by a wrong formula."""

    def product_bound(m, k, n, itemsize, bandwidth_gbs, peak_tflops):
        args = (m, k, n, itemsize, bandwidth_gbs, peak_tflops)
        right = s.bound_by_ridge(*args)
        return (
            intensity(*args) if intensity else right[0],
            bound(right[0], bandwidth_gbs, peak_tflops) if bound else right[1],
        )

    return product_bound


def side(intensity, ridge):
    return "memory" if intensity < ridge else "arithmetic"


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            product(lambda m, k, n, s, *_: m * k * n / ((m * k + k * n + m * n) * s)),
            "the intensity is",
            "counted as 1 FLOP",
        ),
        (
            product(lambda m, k, n, s, *_: 2 * m * k * n / ((m * k + k * n) * s)),
            "the intensity is",
            "The output is missing",
        ),
        (
            product(lambda m, k, n, s, *_: 2 * m * k * n / (m * k + k * n + m * n)),
            "the intensity is",
            "FLOPs per element",
        ),
        (
            product(lambda m, k, n, s, *_: (m * k + k * n + m * n) * s / (2 * m * k * n)),
            "the intensity is",
            "bytes per FLOP",
        ),
        (product(bound=lambda i, bw, peak: side(i, peak / bw)), "you say", "You say arithmetic"),
        (product(bound=lambda i, bw, peak: side(i, peak * 1e6)), "you say", "You say memory"),
        (
            product(bound=lambda i, bw, peak: side(-i, -peak * 1e3 / bw)),
            "you say",
            "the wrong way round",
        ),
        (product(bound=lambda *_: "compute"), "returned 'compute' as bound", ""),
        (product(bound=lambda *_: 1), "returned an int as bound", ""),
        (lambda *args: s.bound_by_ridge(*args)[0], "returned a float; it takes the tuple", ""),
    ],
)
def test_bound_wrong(answer, message, means):
    fails(check("01.2", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (s.passes_by_lines, "You count lines. A step may read only a part"),
        (s.passes_with_writes, "What was written is counted too"),
        (lambda *args: s.passes_by_sum(*args) * args[1][args[2]], "These are bytes"),
        (lambda *args: int(s.passes_by_sum(*args)), "rounded to a whole number"),
        (lambda *args: s.passes_by_sum(*args) * args[1][args[2]] / args[1]["x"], "the size of x"),
        (lambda lines, sizes, name: sum(line[2] for line in lines) / sizes[name], "all tensors"),
        (lambda lines, sizes, name: 1, ""),
    ],
)
def test_passes_wrong(answer, means):
    fails(check("01.3", answer, seed=1), message="should be", means=means)


def share(tensors=3, giga=1e9, times=1.0):
    def share_of_roof(rows, cols, itemsize, time_us, bandwidth_gbs):
        moved = tensors * rows * cols * itemsize
        return times * moved / (time_us / 1e6) / giga / bandwidth_gbs

    return share_of_roof


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (share(2, 2**30), "Both faults are still there"),
        (share(2), "The output is missing"),
        (share(giga=2**30), "2**30 is a GiB"),
        (share(4), "the output is written and not read"),
        (share(times=100), "in percent"),
        (lambda *args: 1 / share()(*args), "inverse"),
        (lambda *args: share()(*args) * args[-1], "the bandwidth that was reached"),
        (share(times=0.9), ""),
    ],
)
def test_share_wrong(answer, means):
    fails(check("01.4", answer, seed=1), message="the ledger counted", means=means)


def roof(seconds=None, rate=None):
    """The right answer, or one of its two parts by a wrong formula."""

    def roofline(*args):
        right = s.roof_by_time(*args)
        return (seconds(*args) if seconds else right[0], rate(*args) if rate else right[1])

    return roofline


def sums(kernels):
    return (sum(flops for flops, _ in kernels), sum(moved for _, moved in kernels))


def as_one(kernels, bandwidth, peak):
    """The whole chain as one kernel."""
    return s.roof_by_time([sums(kernels)], bandwidth, peak)


def rates(kernels, bandwidth, peak):
    return [s.roof_by_time([kernel], bandwidth, peak)[1] for kernel in kernels]


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (as_one, "the time is", "The kernels are taken for one"),
        (
            roof(lambda k, bw, peak: sums(k)[1] / bw + sums(k)[0] / peak),
            "the time is",
            "A kernel's two times are added",
        ),
        (
            roof(lambda k, bw, peak: sum(min(b / bw, f / peak) for f, b in k)),
            "the time is",
            "the shorter of each",
        ),
        (roof(lambda k, bw, peak: sums(k)[1] / bw), "the time is", "Only the bytes"),
        (roof(lambda k, bw, peak: sums(k)[0] / peak), "the time is", "Only the FLOPs"),
        (
            roof(lambda k, *card: max(s.roof_by_time([one], *card)[0] for one in k)),
            "the time is",
            "the longest kernel alone",
        ),
        (roof(lambda *args: 1e6 * s.roof_by_time(*args)[0]), "the time is", "microseconds"),
        (roof(rate=lambda *args: statistics.mean(rates(*args))), "the rate is", "don't average"),
        (roof(rate=lambda *args: sum(rates(*args))), "the rate is", "The rates are added"),
        (roof(rate=lambda *args: as_one(*args)[1]), "the rate is", "the intensity of all together"),
        (roof(rate=lambda k, bw, peak: peak), "the rate is", "That is the peak"),
        (lambda k, bw, peak: 1.0, "returned a float; it takes the tuple", ""),
        (lambda k, bw, peak: (0.0, 0.0, 0.0), "returned a tuple of 3; it takes the tuple", ""),
        (
            lambda k, bw, peak: (1.0, sums(k)[1] / sums(k)[0]),
            "raised ZeroDivisionError",
            "Copies compute nothing",
        ),
        (lambda k, bw, peak: (1.0, k[9]), "raised IndexError", ""),
        (lambda k, bw, peak: (0.0, 0.0), "the time is", ""),
    ],
)
def test_roofline_wrong(answer, message, means):
    fails(check("01.5", answer, seed=1), message=message, means=means)


def warps(formula):
    """Bytes on their way, and a warp's on every multiprocessor, put into a wrong formula."""

    def warps_needed(bandwidth_gbs, latency_ns, sms, loads, width):
        return formula(bandwidth_gbs * latency_ns, sms, loads, width)

    return warps_needed


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (warps(lambda on, sms, n, w: on // (sms * 32 * n * w)), "rounded down"),
        (warps(lambda on, sms, n, w: on // (sms * 32 * n * w) + 1), "One warp too many"),
        (warps(lambda on, sms, n, w: round(on / (sms * 32 * n * w))), "to the nearest"),
        (warps(lambda on, sms, n, w: math.ceil(on / (sms * n * w))), "These are threads"),
        (warps(lambda on, sms, n, w: math.ceil(on / (32 * n * w))), "the whole card"),
        (warps(lambda on, sms, n, w: math.ceil(on / (sms * 32 * w))), "one load on its way"),
        (warps(lambda on, sms, n, w: math.ceil(on / (sms * 32 * n))), "not their bytes"),
        (warps(lambda on, sms, n, w: math.ceil(on * 8 / (sms * 32 * n * w))), "taken for bits"),
        (warps(lambda on, sms, n, w: on / (sms * 32 * n * w)), "float"),
        (warps(lambda on, sms, n, w: 7), ""),
    ],
)
def test_warps_wrong(answer, means):
    fails(check("01.6", answer, seed=1), means=means)


def test_a_wrong_number_of_warps_says_what_the_right_one_has():
    told = check("01.6", lambda *args: s.warps_in_ints(*args) + 1, seed=1).message
    words = r"\((\d+(?:, \d+)*)\) is .*: (\d+) warps on each .* on their way, (\d+) have fewer"
    args, enough, fewer = re.search(words, told).groups()
    bandwidth_gbs, latency_ns, sms, loads, width = map(int, args.split(", "))
    on_their_way, a_warp = bandwidth_gbs * latency_ns, 32 * sms * loads * width
    assert int(fewer) * a_warp < on_their_way <= int(enough) * a_warp


def test_a_tensor_of_a_chain_is_read_later_or_is_a_result():
    for seed in range(50):
        for chain in ch01_fusion.chains(random.Random(seed)):
            made = {written for _, written in chain.steps}
            read = {name for reads, _ in chain.steps for name in reads}
            assert made <= read | set(chain.results)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.plan_filled, "moves", "Each kernel is filled"),
        (s.plan_of_fewest_kernels, "moves", "as few kernels as can be"),
        (lambda steps, *_: [1] * len(steps), "moves", "Nothing is fused"),
        (s.plan_with("elements"), "moves", "Tensors are counted, not bytes"),
        (s.plan_with("all written"), "moves", "made and used up within one kernel"),
        (s.plan_with("no results"), "moves", "Every result has to be in memory"),
        (s.plan_as_cuts, "at most", "These look like the places of the cuts"),
        (lambda steps, *_: [len(steps)], "at most", None),
        (lambda steps, *_: [1, len(steps) - 1], "at most", None),
        (lambda steps, *_: [1] * (len(steps) - 1), "steps in all; the chain has", None),
        (lambda steps, *_: [0, *[1] * (len(steps) - 1)], "a kernel has one step at least", None),
        (lambda steps, *_: [1] * 1000, "returned 1,000 kernels for", None),
        (lambda *_: "12", "returned a str; it takes a list of lengths", None),
        (lambda steps, *_: [1.0] * len(steps), "a kernel's length is an int", "float"),
    ],
)
def test_plan_wrong(answer, message, means):
    fails(check("01.7", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (lambda row: "roof", "should say", "the same cause for every row"),
        (s.cause_without_time, "should say 'latency'", "is it compared at all"),
        (s.cause_with_time_in_seconds, "should say 'latency'", "in the same unit?"),
        (s.cause_with_passes_first, "should say 'misses'", "Compare these two first"),
        (s.cause_of_one_launch, "should say 'launches'", "all of them together"),
        (s.cause_by_bytes_first, "should say", "look at the floors first"),
        (s.cause_with_floors(seconds=True), "should say", "The units are mixed"),
        (s.cause_with_floors(dram="bytes_ideal"), "says 'latency'", "made of the ideal bytes"),
        (s.cause_with_floors(dram="bytes_unique"), "says 'latency'", "made of the unique bytes"),
        (s.cause_without_dram, "should say 'misses'", "compare DRAM's bytes with the unique"),
        (s.cause_without_ideal, "should say 'passes'", "compare the unique bytes with the ideal"),
        (lambda row: "slow", "returned 'slow'; it takes one of", ""),
        (lambda row: 3, "returned an int; it takes one of", ""),
    ],
)
def test_cause_wrong(answer, message, means):
    fails(check("01.8", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize("question", RIGHT)
@pytest.mark.parametrize(
    "odd",
    ["6", 10**5000, float("nan"), float("inf"), True, [], (None, None), object(), 1j],
    ids=["str", "huge", "nan", "inf", "bool", "list", "pair", "object", "complex"],
)
def test_odd_answers_get_a_sentence(question, odd):
    wrong = verdict(question, lambda *_: odd, seed=1)
    assert wrong is not None
    assert "returned" in wrong.sentence


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("digits", [None, 1, 2])
def test_a_rounded_result_is_told(digits, seed):
    def product_bound(*args):
        intensity, bound = s.bound_by_ridge(*args)
        return round(intensity, digits), bound

    wrong = verdict("01.2", product_bound, seed)
    assert wrong is not None
    assert "its result is rounded" in wrong.means


def test_the_models_of_a_cause_follow_the_page():
    rng = random.Random(2)
    for cause in ch01_cause.CAUSES * 100:
        row = ch01_cause._made(cause, rng)
        assert ch01_cause.by_floors(row, row.floors_us) == cause
    for _ in range(100):
        row = ch01_cause._made("misses", rng, handed_on=True)
        assert ch01_cause.by_floors(row, row.floors_us) == "misses"
        assert row.bytes_dram > 1.99 * row.bytes_unique > 1.99**2 * row.bytes_ideal


@pytest.mark.parametrize("question", RIGHT)
def test_no_answer_is_none(question):
    for empty in (None, ...):
        assert "Not answered yet" in check(question, lambda *_, empty=empty: empty).message


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ((float("nan"), "memory"), "returned nan as the intensity"),
        ((-math.inf, "memory"), "returned -inf as the intensity"),
        ((10**400, "memory"), "a number beyond 2**63 as the intensity"),
        (("1", "memory"), "returned a str; the intensity is a number"),
    ],
)
def test_odd_numbers_in_a_pair_are_named(value, sentence):
    assert sentence in verdict("01.2", lambda *_: value, seed=1).sentence


def test_whole_numbers_of_numpy_are_ints():
    assert verdict("01.6", lambda *args: np.int64(s.warps_in_ints(*args)), seed=1) is None


def test_a_number_may_be_rounded_to_fp32():
    assert verdict("01.4", lambda *args: np.float32(share()(*args)), seed=1) is None
    assert verdict("01.4", lambda *args: round(share()(*args), 3), seed=1) is not None


def test_a_chain_that_its_answer_empties_is_graded_as_it_was():
    def roofline(kernels, bandwidth, peak):
        told = s.roof_by_time(kernels, bandwidth, peak)
        kernels.clear()
        return told

    assert verdict("01.5", roofline, seed=1) is None


MISTAKES = [
    ("01.1", ch01_bytes.ADD_MISTAKES, lambda f: f),
    ("01.2", ch01_bytes.INTENSITY_MISTAKES, product),
    ("01.3", ch01_ledger.READ_MISTAKES, lambda f: f),
    ("01.4", ch01_bytes.SHARE_MISTAKES, lambda f: f),
    ("01.5", ch01_time.SECONDS_MISTAKES, roof),
    ("01.5", ch01_time.RATE_MISTAKES, lambda f: roof(rate=f)),
    ("01.6", ch01_warps.WARP_MISTAKES, lambda f: f),
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("question", "mistakes", "answer"), MISTAKES)
def test_every_known_mistake_is_told_from_the_others(question, mistakes, answer, seed):
    for means, formula in mistakes:
        wrong = verdict(question, answer(formula), seed)
        assert wrong is not None
        assert wrong.means == means


def test_known_mistakes_of_a_plan_are_told_from_one_another():
    for telling in ch01_fusion.TELLING:
        wrong = verdict("01.7", s.plan_least_by(telling.moved), seed=1)
        assert wrong is not None
        assert wrong.means == telling.means


@pytest.mark.parametrize("telling", ch01_fusion.TELLING)
def test_a_telling_chain_tells(telling):
    chain = telling.chain
    best = ch01_fusion.least(chain, ch01_fusion.played)
    assert not set(best) & set(ch01_fusion.least(chain, telling.moved))
    assert ch01_fusion.filled(chain) not in best
    assert (1,) * len(chain.steps) not in best


def test_chains_keep_what_the_page_says():
    for seed in range(200):
        for chain in ch01_fusion.chains(random.Random(seed)):
            names = [written for _, written in chain.steps]
            assert len(names) <= 8
            assert len(set(names)) == len(names)
            assert chain.most >= 2
            assert set(chain.results) <= set(names)
            known = {"x", "w"}
            for reads, written in chain.steps:
                assert set(reads) <= known <= {"x", "w", *names}
                known.add(written)
            assert all(chain.sizes[name] > 0 for name in known & set(chain.sizes))


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_every_card_has_a_latency_for_every_case(width):
    for card in CARDS.values():
        if card.sms:
            for loads in (2, 3, 4):
                assert ch01_warps.between(card, loads, width, 0.1, 0.4)
                assert ch01_warps.between(card, loads, width, 0.6, 0.9)


def test_quotients_are_whole_or_far_from_it():
    for seed in range(100):
        cases = ch01_warps.warp_cases(random.Random(seed))
        rests = [ch01_warps.warps_and_rest(case)[1] for case in cases]
        assert rests.count(0) == 2
        assert all(rest == 0 or 0.1 < rest < 0.4 or 0.6 < rest < 0.9 for rest in rests)


def test_rows_keep_the_distances_that_the_page_names():
    rng = random.Random(1)
    for cause in ch01_cause.CAUSES * 200:
        row = ch01_cause._made(cause, rng)
        *others, longest = sorted(row.floors_us.values())
        assert longest > 1.99 * max(others)
        dram = row.floors_us["DRAM"] == longest
        ratios = {
            "latency": row.time_us / longest,
            "misses": row.bytes_dram / row.bytes_unique,
            "passes": row.bytes_unique / row.bytes_ideal,
        }
        for name, ratio in ratios.items():
            assert 0.999 <= ratio <= 1.2 or ratio > 1.99
            if dram or name == "latency":
                assert (ratio > 1.2) == (cause == name) or cause == "latency"


PAGE = ROOT / "exercises" / "01_memory_and_the_roofline.ipynb"


def text_of(cell_id: str) -> str:
    cells = json.loads(PAGE.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["id"] == cell_id)


@pytest.fixture(scope="module")
def page():
    """The names that the exercise's own cells define before an answer is written."""
    names = {}
    for cell_id, source in code_cells(PAGE):
        if cell_id not in ("setup", "q4-try") and not cell_id.endswith("check"):
            exec(source, names)
    return names


@pytest.mark.parametrize(
    ("cell", "call", "told"),
    [
        ("q1-text", "add_bytes(2, 3, 4)", "60"),
        ("q6-text", "warps_needed(2048, 512, 128, 2, 4)", "32"),
        ("q6-text", "warps_needed(2048, 513, 128, 2, 4)", "33"),
        ("q3-ask", 'passes_over(lines, sizes, "x")', "1.5"),
        ("q3-ask", 'passes_over(lines, sizes, "mul2")', "0"),
        ("q7-ask", "best_plan(steps, sizes, results, 2)", "`[1, 2, 1]`"),
        ("q2-text", "product_bound(1, 8192, 8192, 2, 2000.0, 300.0)", '`(0.99976, "memory")`'),
        ("q5-text", "roofline([(10**9, 4 * 10**9)], 2e12, 3e14)", "`(0.002, 5e11)`"),
        (
            "q5-text",
            "roofline([(0, 4 * 10**9), (3 * 10**12, 4 * 10**9)], 2e12, 3e14)",
            "`(0.012, 2.5e14)`",
        ),
        ("q4-try", "share_of_roof(20_000, 5_000, 4, 600.0, 2500.0)", "0.8"),
    ],
)
def test_the_examples_on_the_page_are_right(page, cell, call, told):
    question = f"01.{cell[1]}"
    name = call.partition("(")[0]
    assert call in text_of(cell)
    assert told in text_of("q4-try-text" if cell == "q4-try" else cell)
    # 01.3 and 01.7 both have `sizes`; each is the one of its own cells.
    names = {}
    for cell_id in {"3": ("imports", "q3-steps", "q3-lines"), "7": ("q7-chain",)}.get(cell[1], ()):
        exec(text_of(cell_id), names)
    got = eval(call, {**names, name: RIGHT[question][0]})
    expected = eval(told.strip("`"))
    if isinstance(expected, tuple) and isinstance(expected[1], str):
        assert (round(got[0], 5), got[1]) == expected
    else:
        assert got == pytest.approx(expected, rel=1e-12)


def test_the_sizes_on_the_page_of_01_3_are_those_of_its_ledger(page):
    names = {}
    for cell_id in ("imports", "q3-steps", "q3-lines"):
        exec(text_of(cell_id), names)
    ledger = aten.count(names["few_steps"], names["x"], names["w"])
    made = {name: written for _, name, _, written in names["lines"] if written}
    assert names["sizes"] == {"x": 4000, "w": 40, **made}
    assert names["lines"] == [
        (f"{number} {step.name}", t.tensor, t.read_unique, t.write_unique)
        for number, step in enumerate(ledger, 1)
        for t in step.tensors
    ]


def test_the_plans_on_the_page_of_01_7_move_what_it_says(page):
    chain = ch01_fusion.Chain(tuple(page["steps"]), page["sizes"], page["results"], 2)
    assert ch01_fusion.played(chain, (2, 2)) == 14_000 + 16_000
    assert ch01_fusion.played(chain, (1, 2, 1)) == 7_000 + 8_000 + 11_000
    assert ch01_fusion.least(chain, ch01_fusion.played) == [(1, 2, 1)]


def test_the_row_on_the_page_of_01_8_has_the_cause_it_says(page):
    assert 'Here is a row whose cause is `"passes"`' in text_of("q8-text")
    assert s.cause_by_floors(page["row"]) == "passes"


def test_the_function_on_the_page_of_01_4_has_both_faults(page):
    wrong = verdict("01.4", page["share_of_roof"], seed=1)
    assert "Both faults are still there" in wrong.means
