"""Attention by hand for Hopper, forward and back, whose bytes Nsight Compute counts.

    ncu … --profile-from-start off python -m tests.gpu.attention_child DONE.json

launches each of LAUNCHED once inside the profiler's window, compiled and warm.
"""

import json
import sys
from pathlib import Path

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.passes import bind
from kernels.registry import Case, get

# Shape, options, pass, and how many kernels that is.
LAUNCHED = [
    (shape, options, pass_, count)
    for shape in ((2, 16, 2048, 64), (1, 16, 2048, 128), (1, 8, 1100, 64))
    for options in ((), (("causal", True),))
    for pass_, count in (("fwd", 1), ("bwd", 3))
]


def main(done_path):
    """Launch every one, and write how many kernels there were."""
    op = get("attention")
    variant = op.variant("fused_hopper")
    for shape, options, pass_, _ in LAUNCHED:
        case = Case(shape, torch.bfloat16, options)
        given = op.make(case, "cuda", seed=1)
        call = bind(op, variant, given, pass_)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    Path(done_path).write_text(json.dumps(sum(one[3] for one in LAUNCHED)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
