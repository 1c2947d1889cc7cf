"""Launches whose sectors are counted twice: on the emulator, and by Nsight Compute on a card.

    ncu … --profile-from-start off python -m tests.gpu.sectors_child DONE.json

runs every case on a GPU, each once inside the profiler's window, and writes how many launches each
one made.
"""

import json
import sys
from pathlib import Path

import torch

from kernels.cuda import cuda
from kernels.launch import recording
from kernels.ops.norms.layernorm import OP

COPIES = cuda(r"""
__global__ void copy(const float* x, float* y, int n, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i * step];
}
__global__ void copy_by_four(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
""")
N = 100_003


def _copy(x, n, step):
    COPIES.copy[-(-n // 256), 256](x, torch.empty(n, device=x.device), n, step)


def _copy_by_four(x, n):
    COPIES.copy_by_four[-(-n // 1024), 256](x, torch.empty(n, device=x.device), n // 4)


def _numbers(seed=0, size=N):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


# name -> (what is called, its inputs on the CPU)
CASES = {
    "copy": (lambda x: _copy(x, N, 1), {"x": _numbers()}),
    "copy from an odd place": (lambda x: _copy(x, N - 1, 1), {"x": _numbers()[1:]}),
    "copy of every third": (lambda x: _copy(x, N // 3, 3), {"x": _numbers()}),
    "copy by 16 bytes": (lambda x: _copy_by_four(x, N - 3), {"x": _numbers()}),
}
for _name, _variant in OP.variants.items():
    if _variant.counted == "cuda":
        for _dtype, _shape in (
            (torch.float16, (64, 1024)),
            (torch.float32, (33, 1000)),
            (torch.float16, (9, 1001)),
            (torch.float32, (5, 20_000)),
        ):
            CASES[f"{_name} {_dtype} {_shape}"] = (
                _variant.fn,
                OP.inputs(_shape, _dtype, "cpu", seed=1),
            )


def moved(inputs):
    """The inputs on the GPU, views still views of the same storage."""
    there = {}
    for name, value in inputs.items():
        storage = value.untyped_storage().cuda()
        empty = torch.empty(0, dtype=value.dtype, device="cuda")
        place = (value.storage_offset(), value.shape, value.stride())
        there[name] = empty.set_(storage, *place)
    return there


@torch.no_grad()
def main(done_path):
    """Run every case, compiled and warm, inside the profiler's window."""
    done = {}
    for name, (fn, inputs) in CASES.items():
        there = moved(inputs)
        with recording() as launches:
            fn(**there)
        done[name] = len(launches)
        fn(**there)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        fn(**there)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    Path(done_path).write_text(json.dumps(done), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
