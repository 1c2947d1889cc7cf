"""Attention's backward written for Hopper, as far as that shows without one."""

import pytest
import torch

from kernels.launch import assume_capability, gluon, recording
from kernels.launch.gluon import is_gluon
from kernels.ops.attention import backward_configurations
from kernels.ops.attention.backward import backward
from kernels.ops.attention.backward_configurations import HOPPER_ROWS
from kernels.ops.attention.formula import Given
from kernels.registry import DTYPES

pytestmark = pytest.mark.skipif(gluon.no_gluon() is not None, reason="no Gluon for Hopper")


def recorded(given, d_out=None):
    lse = torch.empty(given.q.shape[:3])
    with recording() as launches:
        backward(given, given.q, lse, given.q if d_out is None else d_out, None, False)
    return list(launches)


@pytest.fixture
def taken(monkeypatch):
    monkeypatch.setattr(backward_configurations, "HOPPER_TAKEN", (64, 128))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_it_compiles_and_its_products_overlap(taken, d, causal):
    q, k = (torch.empty(2, 4, n, d, dtype=DTYPES["bf16"]) for n in (500, 300))
    launches = recorded(Given(q, k, k, causal=causal, by_hand=True))
    assert [one.name for one in launches] == ["attention_rows", "hopper_dkdv", "hopper_dq"]
    for launch in launches[1:]:
        compiled = launch.specialize(90).compile()
        assert compiled.matrix_instruction == "wgmma.mma_async"
        assert not compiled.serialized
        assert compiled.shared_bytes <= 232_448
        assert compiled.stack_bytes == 0


def test_where_it_steps_aside(taken, monkeypatch):
    q, k = torch.empty(2, 8, 256, 64, dtype=torch.half), torch.empty(2, 4, 300, 64).half()
    whole = Given(q, k, k, by_hand=True)

    def by_hand(given, d_out=None):
        return any(is_gluon(launch.kernel) for launch in recorded(given, d_out))

    assert by_hand(whole)
    lengths, padding = torch.full((2,), 9), torch.zeros(2, 300, dtype=torch.bool)
    seed = torch.zeros(2, dtype=torch.int64)
    for others in (
        {"by_hand": False},
        {"window": 8},
        {"k_lengths": lengths},
        {"q_lengths": lengths},
        {"key_padding_mask": padding},
        {"bias": torch.zeros(1, 1, 256, 300).half()},
        {"dropout_p": 0.1, "seed_offset": seed},
        {"causal": True, "top_left": True},
        {"q": q.float(), "k": k.float(), "v": k.float()},
    ):
        assert not by_hand(whole._replace(**others))
    assert by_hand(whole._replace(causal=True))
    assert not by_hand(whole, q[:1, :1].expand(q.shape))  # the copy engine takes no stride of 0
    with assume_capability(100):
        assert not by_hand(whole)
    monkeypatch.setattr(backward_configurations, "HOPPER_TAKEN", ())
    assert not by_hand(whole)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys_kept", [False, True])
@pytest.mark.parametrize(("kept", "passing"), [(1, 1), (500, 700), (700, 500), (4096, 4096)])
def test_every_tile_stands_in_the_table_once(causal, keys_kept, kept, passing):
    from kernels.ops.attention.hopper_backward import schedule

    heads, programs = 12, 8
    told = (heads, kept, passing, 128, causal, keys_kept, programs, torch.device("cpu"))
    table = schedule(*told)
    rows = [row[1 : 1 + row[0]] for row in table.tolist()]
    tiles = -(-kept // HOPPER_ROWS)
    found = sorted(code for row in rows for code in row)
    assert found == [head << 16 | tile for head in range(heads) for tile in range(tiles)]
    assert (table[:, 0] < table.shape[1] - 1).all()  # the entry behind the last is read too
    if tiles > 8 and causal:  # nobody is left with much more than the others

        def cost(code):
            tile = code & 0xFFFF
            return 2 + (tiles - tile if keys_kept else tile + 1)

        work = [sum(map(cost, row)) for row in rows]
        assert max(work) <= 1.1 * min(work)
