"""Products whose bytes Nsight Compute counts, by the kernel written for Hopper.

    ncu … --profile-from-start off python -m tests.gpu.hopper_child DONE.json

launches each of SHAPES once inside the profiler's window, compiled and warm.
"""

import json
import sys
from pathlib import Path

import torch

from kernels.ops.products import hopper

SHAPES = [(4096, 1024, 3072), (4096, 4096, 4096), (1000, 1056, 6000)]  # M, K, N


def product(m, k, n):
    """One launch on fresh tensors; x and weight before it, so that nothing else is launched."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: hopper.launch(x, weight, bias, y)


@torch.no_grad()
def main(done_path):
    """Launch every product, and write how many there were."""
    for shape in SHAPES:
        launch = product(*shape)
        launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    Path(done_path).write_text(json.dumps(len(SHAPES)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
