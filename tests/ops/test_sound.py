"""What is known to be sound is not compiled again; what isn't known is, and a spill is seen."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.lab.counting import aot
from kernels.launch import assume_capability, recording
from kernels.ops.attention.forward import forward
from tests.ops import sound
from tests.ops.test_attention import options_to_compile


@triton.jit
def hoard(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places)
    tl.store(y_ptr + places, x / tl.sum(x, axis=0))  # all of x is kept until its sum is known


def of_hoard():
    x = torch.empty(8192)
    with recording() as launches:
        hoard[(1,)](x, torch.empty_like(x), BLOCK=8192, num_warps=1)
    return launches.seen[0]


def test_a_spill_of_what_is_not_known_is_seen():
    with pytest.raises(AssertionError, match="hoard"):
        sound.assert_sound(of_hoard(), 90)


def test_what_is_known_is_not_compiled(monkeypatch):
    launch = of_hoard()
    digest = aot.digest(aot.Job("", "", "", launch.specialize(90)))
    monkeypatch.setattr(sound, "known", lambda: {digest})
    monkeypatch.delenv(sound.WRITES, raising=False)
    sound.assert_sound(launch, 90)
    with pytest.raises(AssertionError, match="hoard"):
        sound.assert_sound(launch, 80)


def test_most_options_are_known_to_be_sound():
    given = [torch.empty(2, 2, n, 64, dtype=torch.bfloat16) for n in (128, 512, 512)]
    digests = []
    for name in ("window", "padding", "lengths", "dropout"):
        options = {**options_to_compile(name, torch.bfloat16), "scale": 0.1}
        for card in (86, 90, 100, 120):
            with assume_capability(card), recording() as launches:
                forward(*given, want_lse=True, **options)
            digests.append(aot.digest(aot.Job("", "", "", launches.seen[0].specialize(card))))
    known = sum(one in sound.known() for one in digests)
    assert known > len(digests) // 2, (
        f"{len(digests) - known} of {len(digests)} launches are compiled anew in every run: write "
        "down which are sound by `python -m tests.ops.sound`, and commit sound.txt"
    )
