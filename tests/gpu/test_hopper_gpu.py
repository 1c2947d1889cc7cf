"""The product written for Hopper, on a card: right, and its bytes those of its formula."""

import os
import subprocess

import pytest
import torch
import torch.nn.functional as F

from kernels.lab.counting.tile_order import waves
from kernels.lab.profiling import profile
from kernels.lab.profiling.ncu import METRICS, parse_csv
from kernels.ops.products.configurations import (
    HOPPER_COLS,
    HOPPER_GROUP,
    HOPPER_ROWS,
    hopper_tiles,
)
from kernels.ops.products.moves import hopper_moves
from kernels.paths import ROOT
from kernels.registry import Case

if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
    from kernels.ops.products import hopper
    from tests.gpu.hopper_child import SHAPES
else:
    SHAPES = [()]
    hopper = None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(hopper is None, reason="needs a GPU of compute capability 9.0"),
]
SECTOR = 32  # bytes
SM_WITHIN, DRAM_WITHIN = 0.03, 0.10
# Rows that begin within a line of 128 bytes make the copy engine fetch some parts twice: 5.4 % of
# them on an H200.
STRADDLING_WITHIN, LINE = 0.08, 128


def matrices(m, k, n, dtype, *, mean=0.0, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(m, k, device="cuda", generator=g) + mean
    weight = torch.randn(n, k, device="cuda", generator=g) * k**-0.5
    bias = torch.randn(n, device="cuda", generator=g)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def error(y, x, weight, bias):
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return ((y.double() - exact).norm() / exact.norm()).item()


def launched(x, weight, bias, **options):
    y = torch.full((len(x), len(weight)), float("nan"), device="cuda", dtype=x.dtype)
    hopper.launch(x, weight, bias, y, **options)
    return y


@pytest.mark.proves("kernels.ops.products.hopper", "kernels.ops.products.hopper_kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape",
    [
        (128, 256, 256),
        (16384, 64, 8),  # a sum of one step, a tile of eight columns
        (20_000, 8, 264),  # and one of an eighth of a step
        (1000, 328, 8776),
        (4100, 1096, 3080),
        (1, 4096, 40_000),
        (2048, 8192, 2048),
    ],
)
def test_as_near_as_pytorch(shape, dtype):
    for mean in (0.0, 10.0):
        x, weight, bias = matrices(*shape, dtype, mean=mean)
        for given in (bias, None):
            y = launched(x, weight, given)
            theirs = error(F.linear(x, weight, given), x, weight, given)
            assert error(y, x, weight, given) <= 1.1 * theirs
            assert torch.equal(y, launched(x, weight, given, group=8))


@pytest.mark.proves("kernels.ops.products.hopper", "kernels.ops.products.hopper_kernels")
def test_rows_with_gaps_and_nothing_written_beside_them():
    x, weight, bias = matrices(2000, 520, 2056, torch.bfloat16)
    wide = torch.full((2000, 2072), 7.0, device="cuda", dtype=torch.bfloat16)
    apart = torch.randn(2000, 640, device="cuda", dtype=torch.bfloat16)
    apart[:, :520] = x
    hopper.launch(apart[:, :520], weight, bias, wide[:, :2056])
    assert torch.equal(wide[:, :2056], launched(x, weight, bias))
    assert (wide[:, 2056:] == 7.0).all()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """What Nsight Compute saw of each of SHAPES."""
    if profile.find_ncu() is None:
        pytest.skip("needs Nsight Compute (ncu)")
    folder = tmp_path_factory.mktemp("hopper")
    log, done = folder / "ncu.csv", folder / "done.json"
    command = profile.ncu_command(
        profile.find_ncu(), "requested", log, done, "tests.gpu.hopper_child"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    output = ended.stdout + ended.stderr
    if "ERR_NVGPUCTRPERM" in output:
        pytest.skip("this user may not read the GPU's counters")
    assert ended.returncode == 0, output
    kernels = parse_csv(log.read_text(encoding="utf-8"), METRICS["requested"])
    assert len(kernels) == len(SHAPES)
    return dict(zip(SHAPES, kernels, strict=True))


def fetched(m, k, n):
    """Bytes of x and weight that DRAM gives: each once where the L2 holds both, else for each wave.

    A wave is the tiles that programs compute at one time: it fetches its distinct blocks.
    """
    both = 2 * (m * k + n * k)
    card = torch.cuda.get_device_properties(0)
    if both <= card.L2_cache_size:
        return both
    across = waves(*hopper_tiles(m, n), card.multi_processor_count, HOPPER_GROUP)
    rows = sum(one.x_blocks * HOPPER_ROWS + one.weight_blocks * HOPPER_COLS for one in across)
    return 2 * rows * k


@pytest.mark.alone
@pytest.mark.proves("kernels.ops.products.hopper", "kernels.ops.products.hopper_kernels")
@pytest.mark.parametrize("shape", SHAPES)
def test_its_bytes_are_those_of_the_formula(shape, profiled):
    m, k, n = shape
    within = STRADDLING_WITHIN if k * 2 % LINE else SM_WITHIN
    seen, told = profiled[shape], hopper_moves(Case(shape, torch.bfloat16), "fwd")
    written = m * n * 2
    assert seen.sm_read == pytest.approx(told.requested - written, rel=within)
    assert seen.sm_write == pytest.approx(written, rel=SM_WITHIN)
    assert seen.l2_read_sectors * SECTOR < seen.sm_read  # neighbours' requests reach it as one
    assert seen.dram_read == pytest.approx(fetched(*shape), rel=DRAM_WITHIN)
