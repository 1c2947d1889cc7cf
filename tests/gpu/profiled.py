"""What Nsight Compute counts of the kernels that a module of these tests launches."""

import os
import subprocess

import pytest

from kernels.lab.profiling import profile
from kernels.lab.profiling.ncu import METRICS, parse_csv
from kernels.paths import ROOT


def kernels_of(folder, child, metrics, count):
    """The `count` kernels inside the profiler's window of `python -m child DONE.json`.

    Skips the test where there is no Nsight Compute, or it may not read the counters.
    """
    if profile.find_ncu() is None:
        pytest.skip("needs Nsight Compute (ncu)")
    log, done = folder / "ncu.csv", folder / "done.json"
    command = profile.ncu_command(profile.find_ncu(), metrics, log, done, child)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    output = ended.stdout + ended.stderr
    if "ERR_NVGPUCTRPERM" in output:
        pytest.skip("this user may not read the GPU's counters")
    assert ended.returncode == 0, output
    kernels = parse_csv(log.read_text(encoding="utf-8"), METRICS[metrics])
    assert len(kernels) == count
    return kernels
