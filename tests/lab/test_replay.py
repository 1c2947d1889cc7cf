"""What a replay tells is what the ledger counts."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import traitlets
import triton
import triton.language as tl

from kernels.cuda import CudaError, cuda
from kernels.cuda.emulator.results import KINDS
from kernels.lab import replay
from kernels.lab.counting import traffic
from kernels.lab.drawing.explorers.replay import catalogue, trace
from kernels.lab.drawing.explorers.replay.catalogue import CATALOGUE
from kernels.lab.drawing.explorers.replay.trace import MOST_ELEMENTS, recorded, runs
from kernels.lab.drawing.explorers.replay.widget import Replay
from kernels.ops.norms.layernorm import OP
from tests.book.test_chapter_02 import cells

MOST_BYTES = 60_000  # of a recording's state in a page
IN_CUDA = {"layer_norm_chain", "row_mean_by_threads", *(key for key in CATALOGUE if "cuda" in key)}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def named(*keys):
    return [pytest.param(key, marks=needs_compiler if key in IN_CUDA else ()) for key in keys]


every_one = pytest.mark.parametrize("key", named(*CATALOGUE))


def elements(places):
    """What runs of first, count and step stand for."""
    parts = [first + step * np.arange(count) for first, count, step in np.reshape(places, (-1, 3))]
    return np.concatenate(parts)


def times(told, name, side):
    """How many requests wanted each place of a tensor in the end; `side` is load or store."""
    (number,) = (i for i, tensor in enumerate(told["tensors"]) if tensor["name"] == name)
    counts = np.zeros(told["tensors"][number]["elements"], int)
    for _, _, _, tensor, kind, _, _, place in told["requests"]:
        if tensor == number and KINDS[kind] in (side, "atomic"):
            counts[elements(told["places"][place])] += 1
    return counts


@every_one
def test_a_recording_holds_the_bytes_of_the_ledger(key):
    told = CATALOGUE[key].record()
    ledger = traffic.count(CATALOGUE[key].call)
    for number, step in enumerate(ledger):
        asked, distinct = {}, {}
        for launch, _, _, tensor, kind, _, size, place in told["requests"]:
            if launch != number:
                continue
            own = told["tensors"][tensor]
            for side in ("load", "store"):
                if KINDS[kind] in (side, "atomic"):
                    where = own["name"], side
                    asked[where] = asked.get(where, 0) + size
                    distinct.setdefault(where, set()).update(elements(told["places"][place]))
        sizes = {tensor["name"]: tensor["itemsize"] for tensor in told["tensors"]}
        unique = {where: len(found) * sizes[where[0]] for where, found in distinct.items()}
        for counted, side in [("read", "load"), ("write", "store")]:
            for moved in step.tensors:
                where = moved.tensor, side
                assert asked.get(where, 0) == getattr(moved, f"{counted}_requested")
                assert unique.get(where, 0) == getattr(moved, f"{counted}_unique")
        assert step.bytes_requested == sum(asked.values())


@every_one
def test_a_recording_is_small_and_each_request_has_its_line(key):
    told = CATALOGUE[key].record()
    assert len(json.dumps(told).encode()) < MOST_BYTES
    access = r"tl\.(load|store|atomic_add)\(" if told["language"] == "Triton" else r"[\w)]\["
    for line in {request[5] for request in told["requests"]}:
        assert line >= 0
        assert re.search(access, told["source"][line])
    assert told["look"].endswith(".")
    assert told["group"]
    assert max(tensor["width"] for tensor in told["tensors"]) <= 128  # seen on a phone


@needs_compiler
def test_all_of_the_catalogue_is_in_one_page():
    page = replay()
    assert [told["key"] for told in page.recordings] == list(CATALOGUE)
    languages = {told["language"] for told in page.recordings}
    assert languages == {"Triton", "CUDA C++"}
    assert len(json.dumps(page.recordings).encode()) < 2 * MOST_BYTES


EXPECTED = {
    # key: how often the numbers of some tensors are wanted, reads by "load"
    "copy": {("x", "load"): {1}, ("y", "store"): {1}},
    "row_sum": {("x", "load"): {1}, ("sums", "store"): {1}},
    "layer_norm_loops": {("x", "load"): {3}, ("weight", "load"): {6}, ("y", "store"): {1}},
    "layer_norm_row": {("x", "load"): {1}, ("weight", "load"): {6}, ("bias", "load"): {6}},
    "layer_norm_tiles": {("x", "load"): {2}},
    "layer_norm_loops_cuda": {("x", "load"): {3}},
    "layer_norm_packs_cuda": {("x", "load"): {3}},
    "layer_norm_held_cuda": {("x", "load"): {1}},
    "layer_norm_chain": {
        ("x", "load"): {3},
        ("mean", "store"): {1},
        ("mean", "load"): {2},
        ("variance", "load"): {1},
        ("normalised", "load"): {1},
        ("normalised", "store"): {1},
    },
    "add_row_atomically": {("dweight", "load"): {8}, ("dweight", "store"): {8}},
    "share_rows": {("dweight", "store"): {1}, ("weight", "load"): {3}},
    "product": {("a", "load"): {4}, ("b", "load"): {3}, ("c", "store"): {1}},
    "attention": {("q", "load"): {1}, ("k", "load"): {1, 2, 3, 4}, ("out", "store"): {1}},
}


@pytest.mark.parametrize("key", named(*EXPECTED))
def test_a_kernel_asks_as_often_as_is_said_of_it(key):
    told = CATALOGUE[key].record()
    found = {where: set(times(told, *where).tolist()) for where in EXPECTED[key]}
    assert found == EXPECTED[key]


@needs_compiler
def test_packs_are_four_times_as_wide_and_a_quarter_as_many():
    one, four = (CATALOGUE[f"layer_norm_{how}_cuda"].record() for how in ("loops", "packs"))
    sizes = [{request[6] for request in told["requests"]} for told in (one, four)]
    assert sizes == [{128}, {512}]
    assert len(one["requests"]) == 4 * len(four["requests"])


@needs_compiler
@pytest.mark.parametrize("key", ["transpose_cuda", "row_mean_by_threads"])
def test_a_warp_that_goes_down_a_column_takes_a_place_a_row(key):
    told = CATALOGUE[key].record()
    down = [request for request in told["requests"] if request[3] == (key == "transpose_cuda")]
    width = told["tensors"][down[0][3]]["width"]
    for request in down:
        assert told["places"][request[7]][1:] == [32, width]


@pytest.mark.parametrize("key", named("layer_norm_row", "layer_norm_held_cuda", "layer_norm_chain"))
def test_the_ideal_is_that_of_the_operation(key):
    told = CATALOGUE[key].record()
    (x,) = (tensor for tensor in told["tensors"] if tensor["name"] == "x")
    cost = OP.cost(tuple(x["shape"]), torch.float32, "fwd")
    assert told["ideal"] == cost.read_bytes + cost.write_bytes


def test_the_ideal_of_an_atomic_is_a_read_and_a_write():
    told = CATALOGUE["add_row_atomically"].record()
    assert told["ideal"] == 4 * (2 * 8 * 48 + 2 * 8 + 2 * 48)


def test_the_page_says_what_the_recordings_show():
    text = "\n".join(cells("markdown", "replay.ipynb"))
    loops, made = (CATALOGUE[key].record() for key in ("layer_norm_loops", "product"))
    of_first = [request for request in loops["requests"] if request[1] == 0]
    assert f"That makes {len(of_first)}." in text
    asked = sum(request[6] for request in made["requests"])
    assert f"{asked:,} bytes in all" in text
    assert f"The ideal is each once: {made['ideal']:,} bytes" in text
    tiles = times(CATALOGUE["attention"].record(), "k", "load").reshape(4, -1)
    assert tiles.min(1).tolist() == tiles.max(1).tolist() == [4, 3, 2, 1]


@needs_compiler
def test_the_page_says_what_the_chain_moves():
    text = "\n".join(cells("markdown", "replay.ipynb"))
    ledger = traffic.count(catalogue.layer_norm_chain)
    ideal = CATALOGUE["layer_norm_chain"].record()["ideal"]
    assert f"{ledger.bytes_unique:,} bytes against {ideal:,}" in text


# Recording


def test_runs_tell_each_element_once():
    for wanted in ([5], [0, 1, 2], [0, 4, 8], [0, 1, 16, 17, 32, 33], [0, 5, 6, 7, 40]):
        assert elements(runs(np.array(wanted))).tolist() == wanted
    assert runs(np.arange(3, 99)) == [3, 96, 1]


@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def test_a_call_of_the_readers_own_is_replayed():
    x, middle, y = torch.zeros(40), torch.empty(40), torch.empty(40)

    def twice():
        add_one[(3,)](x, middle, 40, BLOCK=16)
        add_one[(3,)](middle, y, 40, BLOCK=16)

    (told,) = replay(twice).recordings
    assert told["label"] == "add_one → add_one"
    assert [tensor["name"] for tensor in told["tensors"]] == ["x", "y", "y (2)"]
    assert told["ideal"] == 2 * 40 * 4  # what is handed over is no part of it
    assert told["source"].count("def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):") == 1
    assert len(told["requests"]) == 2 * 3 * 2
    assert torch.equal(y, torch.full((40,), 2.0))


@pytest.mark.parametrize(
    ("view", "width", "elements_of_it", "own"),
    [
        (torch.zeros(6, 20), 20, 120, 120),
        (torch.zeros(6, 64)[:, :20], 64, 340, 120),
        (torch.zeros(20, 6).T, 6, 120, 120),
        (torch.zeros(2, 3, 20), 20, 120, 120),
        (torch.zeros(20, 1), 1, 20, 20),
        (torch.zeros(1, 20), 20, 20, 20),
        (torch.zeros(20).expand(6, 20), 20, 20, 20),
        (torch.zeros(200), 64, 200, 200),
        (torch.tensor(0.0), 1, 1, 1),
    ],
)
def test_a_tensor_is_drawn_as_it_lies_in_memory(view, width, elements_of_it, own):
    y = torch.empty(1)
    told = recorded(lambda: add_one[(1,)](view, y, 1, BLOCK=1), key="view")
    panel = told["tensors"][0]
    assert (panel["width"], panel["elements"], panel["own"]) == (width, elements_of_it, own)


@needs_compiler
def test_lanes_that_share_an_element_all_count():
    source = "__global__ void all(const float* x, float* y) {\n    y[threadIdx.x] = x[0];\n}\n"
    x, y = torch.ones(1), torch.zeros(64)
    told = recorded(lambda: cuda(source)["all"][1, 64](x, y), key="all")
    loads = [request for request in told["requests"] if KINDS[request[4]] == "load"]
    assert [(r[2], r[6], told["places"][r[7]]) for r in loads] == [
        (0, 128, [0, 1, 1]),
        (1, 128, [0, 1, 1]),
    ]
    assert told["source"][loads[0][5]].strip() == "y[threadIdx.x] = x[0];"


# What is refused


def test_a_name_that_is_not_known_is_told():
    with pytest.raises(ValueError, match="no replay is called 'layer_norm'; there are: copy, "):
        replay("layer_norm")


def test_a_call_without_a_launch_is_told():
    with pytest.raises(ValueError, match="the call launched no kernel that loads or stores"):
        replay(lambda: None)


def test_what_is_too_large_is_told(monkeypatch):
    x = torch.zeros(MOST_ELEMENTS)
    y = torch.zeros(16)
    with pytest.raises(ValueError, match="16,400 elements, and a replay shows at most 16,384"):
        replay(lambda: add_one[(1,)](x, y, 16, BLOCK=16))
    assert trace.MOST_REQUESTS == 4000  # as the docstring says
    monkeypatch.setattr(trace, "MOST_REQUESTS", 1000)
    with pytest.raises(ValueError, match="makes 1,002 requests, and a replay shows at most 1,000"):
        replay(lambda: add_one[(501,)](x, x, 501, BLOCK=1))


@needs_compiler
def test_a_part_of_an_element_is_told():
    source = "__global__ void first(const float* x, float* y) { y[0] = *(const char*)x; }"
    x, y = torch.ones(1), torch.zeros(1)
    with pytest.raises(ValueError, match="a load takes 1 bytes of 'x', whose elements have 4"):
        replay(lambda: cuda(source).first[1, 1](x, y))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"kernel": "add"}, "kernel is 'add'; it takes: copy"),
        ({"step": 0}, "step is 0; it takes a whole number from 1 to 8"),
        ({"step": 9}, "step is 9; it takes a whole number from 1 to 8"),
    ],
)
def test_a_wrong_choice_is_refused(choices, sentence):
    with pytest.raises(traitlets.TraitError, match=re.escape(sentence)):
        replay("copy", **choices)
    with pytest.raises(traitlets.TraitError, match="recordings is empty"):
        Replay([])


def test_another_kernel_begins_at_its_first_request():
    page = replay("copy", "row_sum", kernel="row_sum", step=16)
    assert (page.kernel, page.step) == ("row_sum", 16)
    page.kernel = "copy"
    assert page.step == 1


def test_without_a_compiler_all_but_cuda_is_replayed(monkeypatch):
    def missing():
        raise CudaError("CUDA C++ on a CPU is compiled by g++, which isn't installed")

    monkeypatch.setattr(catalogue, "_cuda", missing)
    told = replay().recordings
    assert {one["language"] for one in told} == {"Triton"}
    assert [one["key"] for one in told] == [key for key in CATALOGUE if key not in IN_CUDA]
    with pytest.raises(CudaError, match="g\\+\\+, which isn't installed"):
        replay("copy_cuda")
