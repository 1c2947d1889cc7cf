"""Products with a prologue or an epilogue by hand for Hopper, whose bytes Nsight Compute counts.

    ncu … --profile-from-start off python -m tests.gpu.around_child DONE.json

launches each of LAUNCHED once inside the profiler's window, compiled and warm, weights folded.
"""

import json
import sys
from pathlib import Path

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.registry import Case, get

# Operations and shapes; the second of each kind in tiles that divide nothing.
LAUNCHED = [
    ("linear_bias_gelu", (4096, 1024, 3072)),
    ("linear_bias_gelu", (1900, 1056, 6600)),
    ("linear_bias_residual", (4096, 1024, 3072)),
    ("linear_bias_residual", (1000, 1056, 4000)),
    ("linear_swiglu", (4096, 1024, 3072, 2)),
    ("linear_swiglu", (1900, 1056, 3304, 2)),
    ("qkv", (8, 512, 1024, 3, 16, 64)),
    ("layernorm_linear", (4096, 1024, 3072)),
    ("layernorm_linear", (2000, 1088, 6000)),
    ("rmsnorm_linear", (4096, 1024, 3072)),
    ("layernorm_linear_gelu", (4096, 1024, 3072)),
    ("layernorm_linear_gelu", (2000, 1088, 6000)),
]


@torch.no_grad()
def main(done_path):
    """Launch every one, and write how many there were."""
    for name, shape in LAUNCHED:
        op = get(name)
        given = op.make(Case(shape, torch.bfloat16), "cuda", seed=1)
        launch = op.variant("fused_hopper").fn
        launch(**given)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        launch(**given)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    Path(done_path).write_text(json.dumps(len(LAUNCHED)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
