"""Launches beyond the registered ones that compile soundly, told by the digest of what they are.

    python -m tests.ops.sound

A compiler is deterministic: what `kernels.lab aot` and these tests found sound of a source, its
options, a card and the compilers' versions is sound again. Whatever differs in one of them is
compiled where it is tested. The command compiles all that `FILES` test, and writes `sound.txt`.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from kernels.hardware import LIMITS
from kernels.lab.counting import aot
from kernels.launch import Launch, compile_launch

KEPT = Path(__file__).with_name("sound.txt")
HEAD = "# Launches of tests that compile without a spill: python -m tests.ops.sound\n"
FILES = ("test_attention.py", "test_attention_backward.py", "test_summed.py")
WRITES = "KERNELS_WRITES_SOUND"


@functools.cache
def known() -> frozenset[str]:
    """The digests that are kept, here and with the registered launches."""
    return aot.known_sound() | frozenset(KEPT.read_text().splitlines()[1:])


def assert_sound(launch: Launch, card: int) -> None:
    """No thread keeps registers in memory, and a block has the shared memory that it takes."""
    wanted = launch.specialize(card)
    digest = aot.digest(aot.Job("", "", "", wanted))
    writes = WRITES in os.environ
    if digest in known() and not writes:
        return
    built = compile_launch(launch, card)
    assert built.stack_bytes == 0, (wanted.kernel, card, built.registers)
    assert built.shared_bytes <= LIMITS[card].shared_bytes_per_block
    if writes:
        with KEPT.open("a") as file:
            file.write(digest + "\n")


def main() -> int:
    """Compile all anew; return pytest's exit code."""
    KEPT.write_text(HEAD)
    os.environ[WRITES] = "1"
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    code = pytest.main(["-q", "-k", "compile", *files])
    KEPT.write_text(HEAD + "".join(sorted(set(KEPT.read_text().splitlines(True)[1:]))))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
