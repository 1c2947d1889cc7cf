"""What a kernel's fault means on a GPU, in words: Triton's programs, and threads of CUDA C++."""

from __future__ import annotations

from kernels.grading.question import PLACEHOLDER

NO_KERNEL = (
    f"the kernel cell still holds `#error {PLACEHOLDER}`. Write the kernel, run its cell and the "
    "launch's, then this one."
)
_TWO_STORES = "also stores, on the same line"

_TRITON = {
    "bounds": "A lane that no mask switches off reaches past its tensor: the mask is too wide, or "
    "the index is that of a larger tensor. A GPU says nothing then: it reads, or overwrites, "
    "whatever lies there.",
    "race": "Two programs meet at one element. A GPU runs programs in any order, so the result is "
    "chance. Each program should store only to elements of its own.",
    "pointer": "A pointer must be one of the kernel's arguments plus an offset.",
}
_CUDA = {
    "bounds": "A thread that no guard stops reaches past the end: the guard is too wide, or the "
    "index is that of a larger tensor. A GPU says nothing then: it reads, or overwrites, whatever "
    "lies there.",
    "threads race": "Two threads of a block meet at one element, one of them storing. Its warps "
    "run in any order, so what is read is chance. Between the store and the other access stands a "
    "__syncthreads(), which every thread of the block passes.",
    "stores race": "Two threads of a block meet at one element, and one line of the source stores "
    "both. A barrier orders one line after another, and is no help here: give each element to one "
    "thread.",
    "blocks race": "Two blocks meet at one element. A GPU runs blocks in any order, so the result "
    "is chance. Each block should store only to elements of its own.",
    "barrier": "__syncthreads() waits for all threads of the block. In a branch or a loop that "
    "some of them skip, the others wait for ever, or go on too early. Move it to where every "
    "thread passes.",
    "uninitialised": "New memory holds what was left there, and shared memory too. What is read "
    "has to be stored first, each element of it.",
    "collective": "A shuffle hands values between lanes that reach it together. Keep it out of "
    "branches that part a warp, and give each lane of the mask the same number of turns.",
    "misaligned": "A wide access, as of a float4, takes an address that is a multiple of its own "
    "size. A row of a width that 4 doesn't divide begins elsewhere.",
    "pointer": "A pointer must be one of the kernel's arguments plus an offset.",
    "shared": "Shared memory is given by the launch, or declared with a size.",
    "timeout": "On a GPU this launch would never end. Look at what the loop counts, and where it "
    "stops.",
}


def meaning(kind: str, sentence: str) -> str:
    """What a KernelError means and what mends it; "" if its own sentence says all."""
    if ", block (" not in sentence:
        return _TRITON.get(kind, "")
    if kind == "race":
        if _TWO_STORES in sentence:
            return _CUDA["stores race"]
        among = "threads" if "with no barrier between them" in sentence else "blocks"
        return _CUDA[f"{among} race"]
    return _CUDA.get(kind, "")


def unwritten(sentence: str) -> bool:
    """Whether a CudaError is that of a source as it was given out, with nothing written yet."""
    return f"#error {PLACEHOLDER}" in sentence
