"""The sectors that the emulator counts are those that Nsight Compute counts on a card."""

import json
import os
import subprocess

import pytest
import torch

from kernels.lab.profiling import profile
from kernels.lab.profiling.ncu import METRICS, parse_csv
from kernels.launch import interpreting
from kernels.paths import ROOT
from tests.gpu.sectors_child import CASES

pytest.importorskip("cuda.core")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(profile.find_ncu() is None, reason="needs Nsight Compute (ncu)"),
]
WITHIN = 0.02


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The kernels of each case, as ncu saw them."""
    folder = tmp_path_factory.mktemp("sectors")
    log, done = folder / "ncu.csv", folder / "done.json"
    child = "tests.gpu.sectors_child"
    command = profile.ncu_command(profile.find_ncu(), "sectors", log, done, child)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    output = ended.stdout + ended.stderr
    if "ERR_NVGPUCTRPERM" in output:
        pytest.skip("this user may not read the GPU's counters")
    assert ended.returncode == 0, output
    kernels = iter(parse_csv(log.read_text(encoding="utf-8"), METRICS["sectors"]))
    found = {
        name: [next(kernels) for _ in range(launches)]
        for name, launches in json.loads(done.read_text(encoding="utf-8")).items()
    }
    assert next(kernels, None) is None
    return found


def emulated(name):
    """Load and store sectors of each launch of a case, on the emulator."""
    fn, inputs = CASES[name]
    with interpreting() as launches:
        fn(**inputs)
    sums = []
    for launch in launches:
        by_kind = {"load": 0, "store": 0}
        for line in launch.arena.lines:
            by_kind[line.kind] += line.sectors
        sums.append((launch.name.partition("<")[0], by_kind["load"], by_kind["store"]))
    return sums


@pytest.mark.proves(
    "kernels/cuda/emulator/runtime/requests.cpp",
    "kernels/cuda/emulator/runtime/vectors.h",
    "kernels.cuda.emulator.results",
    "kernels.ops.norms.layernorm_cuda",
)
@pytest.mark.parametrize("name", CASES)
def test_the_emulators_sectors_are_the_cards(name, profiled):
    counted, seen = emulated(name), profiled[name]
    assert len(counted) == len(seen)
    for (kernel, loads, stores), ncu in zip(counted, seen, strict=True):
        assert kernel in ncu.name
        assert ncu.load_sectors == pytest.approx(loads, rel=WITHIN), kernel
        assert ncu.store_sectors == pytest.approx(stores, rel=WITHIN), kernel
