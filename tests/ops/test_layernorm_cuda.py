"""LayerNorm in CUDA C++ on the emulator: against float64, in bytes, and what it refuses."""

import re
import shutil

import pytest
import torch

from kernels.cuda import nvrtc
from kernels.lab.counting import traffic
from kernels.lab.counting.op_ledger import count_op
from kernels.launch import interpreting, recording
from kernels.launch.binary import disassembly
from kernels.ops.norms import layernorm_cuda as in_cuda
from kernels.ops.norms.layernorm import OP, reference
from kernels.registry import DTYPES
from tests.ops.test_layernorm import assert_close, layouts, make

VARIANTS = [name for name, variant in OP.variants.items() if variant.counted == "cuda"]
CHAINS = ("cuda_1", "cuda_2", "unfused_cuda")

WIDTHS = {"divisible": 1024, "ragged": 1000, "three": 3, "seventeen": 17, "one": 1, "wide": 20_000}


def call(name, *args, **kwargs):
    return OP.variant(name).fn(*args, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_width_and_dtype(name, width, dtype):
    inputs = make(3 if width == "wide" else 7, WIDTHS[width], dtype)
    assert_close(call(name, **inputs), reference(**inputs), dtype, (7, WIDTHS[width]))


@pytest.mark.parametrize("name", ["unfused_cuda", "fused_cuda"])
@pytest.mark.parametrize("rows", [1, 33, 300])
def test_every_number_of_rows(name, rows):
    inputs = make(rows, 40, torch.float32)
    assert_close(call(name, **inputs), reference(**inputs), torch.float32, (rows, 40))
    assert call(name, torch.empty(0, 8)).shape == (0, 8)


def test_more_rows_than_a_block_of_threads_has():
    inputs = make(70, 24, torch.float16)
    assert_close(call("cuda_1", **inputs), reference(**inputs), torch.float16, (70, 24))


@pytest.mark.parametrize(("layout", "x"), list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("name", ["unfused_cuda", "cuda_4", "fused_cuda"])
def test_every_layout(name, layout, x):
    weight, bias = torch.randn(x.shape[-1]), torch.randn(x.shape[-1])
    out = call(name, x, weight, bias, eps=1.0)
    assert out.is_contiguous()
    assert_close(out, reference(x, weight, bias, eps=1.0), x.dtype, (1, x.shape[-1]))


@pytest.mark.parametrize("name", VARIANTS)
def test_weight_and_bias_may_be_missing_or_strided(name):
    inputs = make(5, 48, torch.bfloat16)
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    wide = torch.randn(96).bfloat16()[::2]
    for w, b in ((None, None), (weight, None), (None, bias), (wide, bias)):
        assert_close(call(name, x, w, b), reference(x, w, b), torch.bfloat16, (5, 48))


@pytest.mark.parametrize("width", [1000, 1001, 40_000])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_large_mean_does_not_cancel(name, width):
    x = (1e3 + 1e-2 * torch.randn(2, width, dtype=torch.float64)).float()
    exact = reference(x, eps=1e-12)
    error = (call(name, x, eps=1e-12).double() - exact).norm() / exact.norm()
    # The mean is off by the roundings of a sum, each up or down: of a thread's own terms, and of
    # ten steps that put the threads' sums together. Σx²/N - mean² would be off by 1e6 · 2^-24.
    terms = width if name == "cuda_1" else width / 256 + 10
    assert error < terms**0.5 * 2**-24 * 1e3 / 1e-2


def test_a_row_in_registers_is_asked_for_once_and_in_a_chain_of_loops_three_times():
    inputs = make(4, 2048, torch.float16)
    size, row = 4 * 2048 * 2, 2048 * 2
    for name, times in (("cuda_3", 3), ("cuda_4", 3), ("fused_cuda", 1)):
        ledger = traffic.count(OP.variant(name).fn, **inputs)
        assert ledger.launches == 1
        assert {t: ledger.tensor(t) for t in ledger.tensors} == {
            "x": traffic.TensorTraffic("x", size, times * size, 0, 0),
            "weight": traffic.TensorTraffic("weight", row, size, 0, 0),
            "bias": traffic.TensorTraffic("bias", row, size, 0, 0),
            "y": traffic.TensorTraffic("y", 0, 0, size, size),
        }


@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_moves_what_its_steps_say(name):
    rows, cols = 8, 1000
    ledger = traffic.count(OP.variant(name).fn, **make(rows, cols, torch.float16))
    half, full, column, row = 2 * rows * cols, 4 * rows * cols, 4 * rows, 2 * cols
    assert [(step.read_unique, step.write_unique) for step in ledger] == [
        (half, column),
        (half + column, column),
        (half + 2 * column, full),
        (full + 2 * row, half),
    ]


def sectors(name, inputs, tensor="x"):
    """Sectors of each request for x, and the bytes a lane asks for, in the first launch."""
    with interpreting() as launches:
        OP.variant(name).fn(**inputs)
    lines = [line for line in launches.seen[0].arena.lines if line.argument == tensor]
    return {(line.sectors / line.requests, line.width) for line in lines}


def test_each_rung_asks_as_it_says():
    inputs = make(32, 1024, torch.float32)
    assert sectors("cuda_1", inputs) == {(32, 4)}  # a lane a row: each in a sector of its own
    assert sectors("cuda_2", inputs) == {(4, 4)}
    assert sectors("unfused_cuda", inputs) == {(4, 4)}
    assert sectors("cuda_3", inputs) == {(4, 4)}
    assert sectors("cuda_4", inputs) == {(16, 16)}
    assert sectors("fused_cuda", inputs) == {(16, 16)}


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 1001).half(),  # a width that 8 elements don't divide
        torch.randn(4, 1004).half()[:, :1000],  # rows that don't begin at multiples of 16 bytes
        torch.randn(4001).half()[1:].view(4, 1000),  # a tensor that doesn't
    ],
    ids=["width", "stride", "start"],
)
def test_what_does_not_permit_loads_of_16_bytes_gets_narrow_ones(x):
    assert {width for _, width in sectors("fused_cuda", {"x": x})} == {2}
    assert_close(in_cuda.fused(x), reference(x), torch.float16, (4, x.shape[-1]))


def launched(shape, dtype, name="fused_cuda"):
    with recording() as launches:
        OP.variant(name).fn(torch.empty(shape, dtype=dtype))
    (launch,) = launches
    assert launch.grid == (shape[0], 1, 1)
    return launch.name, launch.block[0]


def test_the_width_chooses_what_a_thread_holds():
    half, single = torch.float16, torch.float32
    assert launched((3, 1), half) == ("layer_norm<__half, 1, 8>", 32)
    assert launched((3, 1024), half) == ("layer_norm<__half, 8, 2>", 64)
    assert launched((3, 4096), half) == ("layer_norm<__half, 8, 2>", 256)
    assert launched((3, 16_384), half) == ("layer_norm<__half, 8, 4>", 512)
    assert launched((3, 16_384), single) == ("layer_norm<float, 4, 8>", 512)
    assert launched((3, 4095), single) == ("layer_norm<float, 1, 16>", 256)
    assert launched((3, 16_392), half) == ("layer_norm_wide<__half, 8>", 256)
    assert launched((3, 4097), half) == ("layer_norm_wide<__half, 1>", 256)
    for width in (8, 1032, 4104, 8192):
        kernel, threads = launched((1, width), half)
        assert threads * int(kernel.split()[-1][:-1]) * 8 >= width


def test_a_row_too_wide_for_the_registers_is_read_twice():
    x = torch.randn(2, 20_000).half()
    ledger = traffic.count(in_cuda.fused, x)
    assert ledger.tensor("x").times_read == 2.0
    assert_close(in_cuda.fused(x), reference(x), torch.float16, x.shape)


def test_the_compiler_keeps_loads_and_stores_of_16_bytes():
    for dtype in (torch.float16, torch.float32):
        with recording() as launches:
            in_cuda.fused(torch.empty(1, 1000, dtype=dtype))
        name = launches.seen[0].name
        cubin, _ = nvrtc.compile_cubin(in_cuda.module(dtype).source, (name,), 90)
        accesses = re.findall(r"\b(?:LDG|STG)\.E\S*", disassembly(cubin))
        assert accesses
        assert all(".128" in access for access in accesses), accesses


@pytest.mark.parametrize("name", VARIANTS)
def test_the_count_at_many_rows_is_a_line_through_few(name):
    ledger = count_op(OP, name, (128, 64), torch.float16)
    assert ledger.method == "linear"
    full = traffic.count(OP.variant(name).fn, **make(128, 64, torch.float16))
    assert ledger.steps == full.steps


def test_without_a_compiler_the_variants_say_so_and_are_not_counted(monkeypatch):
    cpu = torch.device("cpu")
    assert all(OP.variant(name).unavailable(cpu) is None for name in VARIANTS)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for name in VARIANTS:
        assert "g++, which isn't installed" in OP.variant(name).unavailable(cpu)
    with pytest.raises(ValueError, match=r"'fused_cuda' .* can't be counted here: .*g\+\+"):
        count_op(OP, "fused_cuda", (64, 64), torch.float32)


def test_without_cuda_core_a_gpu_has_no_such_variant(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    told = OP.variant("fused_cuda").unavailable(torch.device("cuda"))
    assert told == "cuda.core, which compiles CUDA C++ on a GPU, is not installed"


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (lambda x, w: (x.double(), w), TypeError, "x has dtype torch.float64; it takes"),
        (lambda x, w: (x, w.half()), TypeError, "weight has dtype torch.float16; with x of"),
        (lambda x, w: (x, w[:3]), ValueError, r"weight has the shape \(3,\).*\(8,\)"),
        (lambda x, w: (x.requires_grad_(), w), RuntimeError, "no backward pass"),
    ],
)
@pytest.mark.parametrize("name", ["unfused_cuda", "fused_cuda"])
def test_bad_input_gets_one_sentence(name, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        call(name, *arguments(torch.randn(4, 8), torch.randn(8)))
