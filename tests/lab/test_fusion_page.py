"""The fusion explorer's page in a browser, its text without one, and all that it refuses."""

import json
import re
import subprocess

import pytest
import traitlets

from kernels.lab import RooflineExplorer, Step, fusion
from kernels.lab.drawing.explorers.fusion.widget import FusionExplorer, fusion_cards
from tests.lab.test_explorers import CHROMIUM, PAGE

STATE = "chains cards names slides dtype chain sizes closed card launched".split()
STEPS = [Step("one", ["x"], ["a"]), Step("two", ["a"], ["y"])]
SIZES = {"x": 1, "a": 2, "y": 3}


def own(*steps, tensors=SIZES, **more):
    return fusion(list(steps), tensors=tensors, **more)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fusion("mlp"), "chain is 'mlp'; it takes a list of steps, or: bias_gelu_dropout_"),
        (lambda: fusion(5), "chain is 5; it takes a list of steps, or: bias_gelu"),
        (lambda: fusion("encoder_pre", (2, 3)), "shape is (2, 3); 'encoder_pre' takes (batch, len"),
        (lambda: fusion("encoder_pre", (2, 0, 64)), "length is 0; it takes a whole number from 1"),
        (lambda: fusion("encoder_pre", (2, 3, 64), heads=0), "heads is 0; it takes a whole number"),
        (lambda: fusion("encoder_pre", (2, 3, 65)), "width is 65; it takes a multiple of heads, 2"),
        (
            lambda: fusion("bias_gelu_dropout_residual", (2, 2.5)),
            "cols is 2.5; it takes a whole number from 1 to 1048576",
        ),
        (
            lambda: fusion("bias_gelu_dropout_residual", inner=4),
            "heads and inner belong to an encoder; 'bias_gelu_dropout_residual' has neither",
        ),
        (lambda: fusion("encoder_pre", dtype="fp64"), "dtype is 'fp64'; it takes: "),
        (lambda: fusion("encoder_pre", card="h300"), "card is 'h300'; it takes: h100-sxm, h200, "),
        (
            lambda: fusion("encoder_pre", closed="none"),
            "closed is 'none'; it takes one bool a joint, or one of: open, torch, book, hopper, ev",
        ),
        (
            lambda: fusion("encoder_pre", closed=[True] * 3),
            "closed has 3 joints; 'encoder_pre' has 11",
        ),
        (
            lambda: fusion("encoder_pre", closed=[True] * 11),
            "'QKV' and 'scores' can't be one launch: A query's scores need the keys of its whole",
        ),
        (lambda: fusion("encoder_pre", launched="twice"), "'twice'"),
        (
            lambda: fusion("encoder_pre", 5),
            "shape is 5; 'encoder_pre' takes (batch, length, width)",
        ),
        (lambda: fusion("encoder_pre", closed=True), "closed is True; it takes the name of a choi"),
        (lambda: own(*STEPS, tensors=[1, 2]), "tensors is [1, 2]; it takes the bytes of each tens"),
        (lambda: own(*STEPS, kept="a"), "kept is 'a'; it takes a list of names"),
        (
            lambda: fusion("encoder_pre", tensors={"x": 1}),
            "tensors and kept belong to a list of steps; a name has its own",
        ),
        (
            lambda: own(*STEPS, shape=(1, 2)),
            "shape, heads and inner belong to a chain by name; steps tell bytes",
        ),
        (
            lambda: fusion(STEPS),
            "tensors is missing; it takes the bytes of each tensor by its name",
        ),
        (lambda: own(), "steps is empty; a chain has at least one step"),
        (lambda: own("one"), "steps has 'one'; it takes steps as Step(name, reads, writes)"),
        (lambda: own(STEPS[0], STEPS[0]), "two steps are called 'one'; each takes a name of its"),
        (
            lambda: own(Step("one", "x", ["a"])),
            "step 'one' reads 'x'; it takes a list of names",
        ),
        (
            lambda: own(Step("one", ["z"], ["a"])),
            "step 'one' reads 'z', whose bytes are not told; tensors has: a, x, y",
        ),
        (lambda: own(Step("one", ["x"], [])), "step 'one' writes nothing; it takes at least one"),
        (
            lambda: own(*STEPS, Step("three", ["y"], ["a"])),
            "tensor 'a' is written by 'one' and by 'three'; each step gives what it makes a name",
        ),
        (
            lambda: own(Step("one", ["y"], ["a"]), STEPS[1]),
            "step 'one' reads 'y', which the later step 'two' writes",
        ),
        (lambda: own(Step("one", ["a"], ["a"])), "step 'one' reads 'a', which itself writes"),
        (
            lambda: own(*STEPS, tensors=SIZES | {"w": 4}),
            "tensor 'w' is neither read nor written by any step",
        ),
        (
            lambda: own(*STEPS, tensors=SIZES | {"x": -1}),
            "tensor 'x' has -1 bytes; it takes a number that is not negative",
        ),
        (
            lambda: own(*STEPS, tensors=SIZES | {"x": "1 MB"}),
            "tensor 'x' has '1 MB' bytes; it takes a number that is not negative",
        ),
        (
            lambda: own(STEPS[0], Step("two", ["a"], ["y"], flops=float("nan"))),
            "flops of 'two' is nan; it takes a number that is not negative",
        ),
        (
            lambda: own(STEPS[0], Step("two", ["a"], ["y"], arithmetic="int8")),
            "arithmetic of 'two' is 'int8'; it takes: ",
        ),
        (
            lambda: own(STEPS[0], Step("two", ["a"], ["y"], apart={"three": "Because."})),
            "apart of 'two' has 'three'; it takes earlier steps: one",
        ),
        (
            lambda: own(*STEPS, kept=["x"]),
            "kept has 'x'; it takes tensors that a step writes: a, y",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(call, sentence):
    with pytest.raises((ValueError, TypeError, traitlets.TraitError), match=re.escape(sentence)):
        call()


def test_a_page_refuses_what_a_call_does():
    page = fusion("encoder_pre")
    with pytest.raises(traitlets.TraitError, match=re.escape("chain is 'own'; it takes: encoder_")):
        page.chain = "own"
    with pytest.raises(traitlets.TraitError, match=re.escape("sizes['batch'] is 0; it takes a")):
        page.sizes = page.sizes | {"batch": 0}
    page.chain = "encoder_pre_training"
    assert page.closed == [False] * (len(page.chains[1]["steps"]) - 1)


@pytest.mark.parametrize("names", [("chain", "closed"), ("closed", "chain")])
def test_a_page_may_change_chain_and_joints_at_once(names):
    page, wanted = fusion("encoder_pre", closed="book"), fusion("encoder_pre", closed="training")
    page.set_state({name: getattr(wanted, name) for name in names})  # as a page's message does
    assert (page.chain, page.closed) == (wanted.chain, wanted.closed)
    assert page.plan() == wanted.plan()


def test_no_launch_is_made_up(tmp_path):
    with pytest.raises(ValueError, match=r"no launch is recorded in .*bench ceilings` does it"):
        fusion_cards(tmp_path)


def test_a_step_may_keep_apart_from_another():
    apart = Step("two", ["a"], ["y"], apart={"one": "They are too large."})
    assert len(own(STEPS[0], apart, closed="everything").plan().launches) == 2
    assert len(own(*STEPS, closed="everything").plan().launches) == 1


def test_the_text_tells_the_launches_where_no_widget_is_shown():
    bundle, _ = fusion("encoder_pre", (2, 64, 128), closed="book", card="t4")._repr_mimebundle_()
    lines = bundle["text/plain"].splitlines()
    assert lines[0].startswith("Encoder layer, pre-LN, inference: launches 7, ")
    assert "at least" not in lines[0]  # a T4 has no bf16
    assert lines[1].startswith("1. LayerNorm 1: 33.3 kB read, 32.8 kB written, 32.8 kB alive, ")
    assert lines[2].startswith("2. QKV: ")
    assert lines[2].endswith(" alive")
    measured = fusion("encoder_pre", (2, 64, 128), "fp16", "t4", closed="book").text()
    assert "at least" in measured.splitlines()[0]
    assert measured.count("-bound") == 7


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", FusionExplorer._esm)
    assert not re.search(r"@import|url\(", FusionExplorer._css)
    assert set(re.findall(r"https?://[^\"/]+", FusionExplorer._esm)) == {"http://www.w3.org"}


def test_two_explorers_have_the_same_state():
    first, second = (fusion("encoder_post").get_state() for _ in range(2))
    for name in ("layout", "tooltip"):
        first.pop(name), second.pop(name)
    assert first == second
    json.dumps(first, allow_nan=False)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers(tmp_path):
    actions = """
    const figures = () => [...root.querySelectorAll("dd strong")].map((one) => one.textContent);
    const joints = () => [...root.querySelectorAll(".joint button")];
    const say = () => seen.push([figures()[0], at(".text").textContent]);
    say();
    seen.push(joints().map((one) => one.textContent));
    joints()[0].focus(); joints()[0].click(); say();
    seen.push([document.activeElement === joints()[0], joints()[0].getAttribute("aria-label"),
      joints()[1].disabled, joints()[1].getAttribute("aria-label")]);
    joints()[0].click(); say();
    const [from, card, launched] = root.querySelectorAll("select");
    act(from, "6", "change"); say();
    seen.push([state.chain, joints().length, root.querySelectorAll(".step.first").length]);
    joints()[0].click();  // it is barred: nothing changes
    seen.push(from.value);
    act(from, "2", "change"); joints()[0].click();
    seen.push([from.value, from.selectedOptions[0].textContent]);
    act(launched, "host", "change"); say();
    seen.push(joints()[0].offsetWidth, getComputedStyle(at("svg .memory")).fill);
    act(card, "t4-maker", "change"); say();
    act(root.querySelector("input"), "0", "input");
    seen.push([state.sizes.batch, root.querySelector("input").getAttribute("aria-valuetext")]);
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select, button")].every(
      (c) => c.labels?.length || c.getAttribute("aria-label")));
    const smallest = [...root.querySelectorAll("*")].filter((one) => one.textContent.trim())
      .map((one) => parseFloat(getComputedStyle(one).fontSize));
    seen.push(Math.min(...smallest));
    """
    widget = fusion("encoder_pre", closed="book", card="h100-sxm")
    state = json.dumps({name: getattr(widget, name) for name in STATE})
    load = f"const blob = new Blob([{json.dumps(FusionExplorer._esm)}], "
    load += "{ type: 'text/javascript' });\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    # Another explorer of a page may bring the common style again, behind this one's.
    css = FusionExplorer._css + RooflineExplorer._css
    page = PAGE.format(css=css, state=state, esm_as_module=load, actions=actions)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    (
        first,
        buttons,
        folded,
        focus,
        back,
        training,
        shown,
        still,
        mine,
        host,
        wide,
        blue,
        lacks,
        *rest,
    ) = json.loads(body.group(1).replace("&lt;", "<").replace("&amp;", "&"))
    assert first[0] == "7"
    assert first[1].startswith("Encoder layer, pre-LN, inference (batch 32, length 512, width 1024")
    assert buttons[:4] == ["close", "stays open", "open", "open"]
    assert folded[0] == "6"
    assert folded[1].startswith("LayerNorm 1 and QKV are one launch now: 67.1 MB and ")
    assert focus == [
        True,
        "Open the joint between LayerNorm 1 and QKV",
        True,
        "Stays open: QKV and scores",
    ]
    assert back[1].startswith("LayerNorm 1 and QKV are two launches now: 67.1 MB and ")
    assert training[0] == "10"
    assert training[1].startswith("Encoder layer, pre-LN, training")
    assert shown == ["encoder_pre_training", 16, 10]
    assert still == "6"
    assert mine == ["own", "a choice of your own"]
    assert "Python, with 15.0 µs for a launch, can’t keep up" not in host[1]
    assert "No bf16 peak of Tesla T4 is at hand" in lacks[1]
    size, fits, labelled, smallest = rest
    assert size == [1, "1"]
    assert fits
    assert labelled
    assert smallest >= 10
    assert wide > 60
    assert blue == "rgb(86, 180, 233)"
