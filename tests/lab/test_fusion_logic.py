"""The fusion explorer's JavaScript: its sums are Python's, its sentences say what they show."""

import json
import math
import random
import subprocess

import pytest

from kernels.lab import fusion
from kernels.lab.drawing.explorers.fusion import model
from kernels.lab.drawing.explorers.fusion.widget import FusionExplorer
from tests.lab.test_explorers import NODE, needs_node
from tests.lab.test_fusion import CARD, a_chain, every_chain, layer


def run_js(expression, *values):
    script = f"{FusionExplorer._esm}\nconst values = {json.dumps(values)};\n"
    script += f"console.log(JSON.stringify({expression}));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def choices():
    """Chains of all kinds with joints closed at random, on two cards, launched either way."""
    draw = random.Random(0)
    own = a_chain(kept=["a"])
    chains = [(chain, fusion(name, shape).sizes) for chain, name, shape in every_chain().values()]
    for chain, sizes in [*chains, (own._chains["own"], {})]:
        for likely in (0.0, 0.3, 0.7, 1.0):
            closed = [False] * chain.joints
            for joint in draw.sample(range(chain.joints), chain.joints):
                free = model.barred(chain, closed, joint) is None
                closed[joint] = free and draw.random() < likely
            for card in (CARD, CARD | {"peaks": {"fp32": 1e9}}, None):
                yield chain, sizes, closed, card, draw.choice(model.LAUNCHED)


@needs_node
def test_the_page_adds_up_as_python_does():
    told = list(choices())
    given = [(chain.as_data(), *rest) for chain, *rest in told]
    found = run_js(
        "values.map(([c, s, closed, card, l]) => ({ plan: plan(c, s, closed, card, l), "
        "barred: closed.map((shut, at) => (shut ? null : barred(c, closed, at))) }))",
        *given,
    )
    barred = 0
    for (chain, sizes, closed, card, launched), theirs in zip(told, found, strict=True):
        ours = model.plan(chain, sizes, closed, card, launched)
        page = theirs["plan"]
        assert (page["moved"], page["memory"]) == (ours.bytes_moved, ours.memory_bytes)
        assert page["timeUs"] == (None if ours.time_us is None else pytest.approx(ours.time_us))
        for one, launch in zip(page["launches"], ours.launches, strict=True):
            assert tuple(chain.steps[at].name for at in one["steps"]) == launch.steps
            assert [one[name] for name in ("read", "write", "alive")] == [
                launch.read,
                launch.write,
                launch.alive,
            ]
            time = None if launch.time_us is None else pytest.approx(launch.time_us)
            assert (one["timeUs"], one["bound"]) == (time, launch.bound)
        reasons = [
            None if shut else model.barred(chain, closed, at) for at, shut in enumerate(closed)
        ]
        assert theirs["barred"] == reasons
        barred += sum(why is not None for why in reasons)
    assert barred > 20


def a_state(page, **changes):
    keys = "chains cards names slides dtype chain sizes closed card launched".split()
    return {key: getattr(page, key) for key in keys} | {"cards": [CARD], "card": "a"} | changes


@needs_node
def test_a_joint_says_what_closing_it_saves():
    own = a_state(a_chain())
    shut = own | {"closed": [True, False, True]}
    kept = a_state(a_chain(kept=["b"]), closed=[False, True, False])
    opened, closed, written = (
        [(one["words"], one.get("saved")) for one in joints]
        for joints in run_js("values.map((one) => reckon(one).joints)", own, shut, kept)
    )
    assert opened == [
        ("a is read back", 100),  # the fourth step reads a too
        ("b is written and read back", 400),
        ("c is written and read back", 600),
    ]
    assert closed[0] == ("a is still written (a later step reads it)", 100)
    assert closed[2] == ("c never leaves the launch", 600)
    assert written[1] == ("b is still written (it is kept)", 200)
    x_twice = a_state(a_chain(), closed=[True, False, False])
    assert run_js("reckon(values[0]).joints[1]", x_twice)["words"] == (
        "b is written and read back; x is read twice"
    )


@needs_node
def test_the_sentences_say_what_the_figures_show():
    page = fusion("bias_gelu_dropout_residual", (1000, 500))
    said, changed, unknown, lacks = run_js(
        "[words(values[0], reckon(values[0])), changed(reckon(values[0]).chain, 0, true, "
        "reckon(values[0])), words(values[1], reckon(values[1])), "
        "words(values[2], reckon(values[2]))]",
        a_state(page, closed=[True, False, False]),
        a_state(page, card="rtx-3060"),
        a_state(layer(True), cards=[CARD | {"peaks": {"fp32": 1e9}}]),
    )
    assert said == [
        "Bias, GELU, dropout, residual (rows 1000, cols 500; bf16): 4 steps in 3 launches, which "
        "move 7.00 MB; with every joint open it is 4 launches and 9.00 MB.",
        "Most memory, 2.00 MB, is taken in launch 2, where g and d are alive.",
        "On Card A it takes at least 10.0 ms: 5000 µs wait for bytes, 5000 µs wait for arithmetic "
        "and 1.50 µs are the launches themselves. With every joint open it would be 11.5 ms.",
    ]
    assert changed == "bias and GELU are one launch now: 2.00 MB and 1502 µs less."
    assert "The card “rtx-3060” is unknown: no ceilings of it are at hand" in unknown[2]
    assert lacks[2] == "No bf16 peak of Card A is at hand, so its time can’t be told."


@needs_node
def test_what_python_cannot_launch_in_time_is_said():
    told = a_state(layer(True, "book"), launched="host")
    found = run_js("words(values[0], reckon(values[0])).at(-1)", told)
    assert found.startswith("Python, with 3.00 µs for a launch, can’t keep up: the card would need")
    slow = told | {"cards": [CARD | {"host_us": 0.1}]}
    assert "Python" not in run_js("words(values[0], reckon(values[0])).at(-1)", slow)


@needs_node
def test_the_bars_stay_inside_their_box():
    pages = (layer(True, "book"), a_chain(), layer(False, "training"))
    states = [a_state(page, launched=one) for page in pages for one in model.LAUNCHED]
    unknown = a_state(a_chain(), card="rtx-3060")
    widths = (300, 640)
    *charts, none = run_js(
        "values[1].flatMap((w) => values[0].map((one) => timeChart(reckon(one), w)))",
        [*states, unknown],
        widths,
    )
    assert none["shapes"] == []
    del charts[len(states)]  # the same at the first width
    for number, chart in enumerate(charts):
        width = widths[number // len(states)]
        assert chart["shapes"]
        for tag, box, _ in chart["shapes"]:
            assert 0 <= box.get("x", 0) + box.get("width", 0) <= width - 40
            assert 0 <= box.get("y", 0) + box.get("height", 0) <= chart["height"]
            assert tag != "rect" or math.isfinite(box["width"])
