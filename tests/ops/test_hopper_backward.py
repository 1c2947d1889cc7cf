"""Attention's backward written for Hopper, as far as that shows without one."""

import re
from itertools import pairwise

import pytest
import torch

from kernels.lab.counting.instructions import instructions
from kernels.launch import assume_capability, gluon, recording
from kernels.launch.gluon import is_gluon
from kernels.launch.tape import Tape
from kernels.ops.attention import backward_configurations, dropped_bits
from kernels.ops.attention.backward import backward
from kernels.ops.attention.backward_configurations import HOPPER_ROWS
from kernels.ops.attention.dropped_bits_kernels import attention_dropped_bits
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.philox import keeps, threshold
from kernels.registry import DTYPES

if gluon.no_gluon() is None:
    from kernels.ops.attention.hopper_backward import BITS_ROWS, BITS_WORDS
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


@pytest.mark.parametrize("causal", [False, True])
def test_what_comes_behind_the_second_kernel_comes_behind_the_first_too(taken, causal):
    q = torch.empty(1, 2, 256, 64, dtype=DTYPES["bf16"])
    launches = recorded(Given(q, q, q, causal=causal, by_hand=True))
    _, dkdv, dq = (one.specialize(90) for one in launches)
    # dQ may start before dK and dV are whole, so the end of its grid has to wait for them.
    assert dq.options["launch_pdl"]
    assert not dkdv.options.get("launch_pdl")
    assert dkdv.compile().ptx.count("griddepcontrol.launch_dependents;") == 1
    ptx = dq.compile().ptx
    assert ptx.count("griddepcontrol.wait;") == 1
    behind = ptx[ptx.index("griddepcontrol.wait;") :]
    assert not any(one in behind for one in ("st.global", "cp.async", "bra", "wgmma"))


def room(given):
    """For the bits that a forward leaves, where it is only recorded."""
    with recording():
        return dropped_bits.left_by_forward(given)


@pytest.mark.parametrize("causal", [False, True])
def test_with_dropout_it_compiles_without_spills_and_its_products_overlap(taken, causal):
    q, k = (torch.empty(2, 4, n, 64, dtype=DTYPES["bf16"]) for n in (500, 300))
    seed = torch.zeros(2, dtype=torch.int64)
    given = Given(q, k, k, causal=causal, by_hand=True, dropout_p=0.1, seed_offset=seed)
    launches = recorded(given)
    names = ["attention_rows", "attention_dropped_bits", "hopper_dkdv", "hopper_dq"]
    assert [one.name for one in launches] == names
    for launch in launches:
        compiled = launch.specialize(90).compile()
        assert compiled.stack_bytes == 0
        assert not compiled.serialized
    left = room(given)
    assert left.shape == (8, 12, 512)
    for bits in (None, left):
        with recording() as launches:
            forward(*given._replace(want_lse=True), bits=bits)
        (launch,) = launches
        compiled = launch.specialize(90).compile()
        assert compiled.matrix_instruction == "wgmma.mma_async"
        assert compiled.stack_bytes == 0
        assert not compiled.serialized
        assert (launch.arguments["bits_ptr"] is None) == (bits is None)
        # Eight warps wait for room, one of them asks: it may not fill the room before all have seen
        # it, or a warp would wait for the next turn of a barrier that has turned twice.
        met = r"mbarrier\.try_wait|bar\.sync\s+\d+, 256|cp\.async\.bulk\.tensor\.\w+\.shared"
        events = re.findall(met, compiled.ptx)
        asked = [before for before, one in pairwise(events) if one.startswith("cp")]
        assert len(asked) == 2 + 2  # K, V, the queries of two groups
        assert all(before.startswith("bar.sync") for before in asked)


def places_of_keys():
    """Where in a word the bit of each of its 32 keys stands: half, word and call of its number."""
    n, q, e = torch.meshgrid(*map(torch.arange, (4, 4, 2)), indexing="ij")
    return (16 * e + 4 * q + n).flatten().to(torch.int32)


@pytest.mark.parametrize("p", [2**-16, 0.3, 0.5, 0.75, 1 - 2**-16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "first", "n_queries", "n_keys"), [(3, 0, 40, 77), (2, 5, 129, 64)]
)
def test_bits_say_what_the_mask_drops(heads, first, n_queries, n_keys, causal, p):
    padded, keys_8 = -(-n_queries // HOPPER_ROWS) * HOPPER_ROWS, -(-n_keys // 8) * 8
    n_words = -(-n_keys // HOPPER_ROWS) * HOPPER_ROWS // 32
    bits = torch.zeros(heads, n_words, padded, dtype=torch.int32)
    seed, shift = 2**40 + 17, n_keys - n_queries
    attention_dropped_bits[(heads * padded // BITS_ROWS * n_words // BITS_WORDS,)](
        *(torch.tensor([seed, 3]), bits, first, shift, n_queries, keys_8, padded, n_words),
        threshold(p), CAUSAL=causal, ROWS=BITS_ROWS, WORDS=BITS_WORDS,
    )  # fmt: skip
    told = bits[..., None] >> places_of_keys() & 1  # (heads, words, rows, 32)
    told = told.permute(0, 2, 1, 3).reshape(heads, padded, -1)[:, :n_queries, :n_keys].bool()
    shape = (first + heads, n_queries, keys_8)
    dropped = ~torch.from_numpy(keeps(shape, p, seed, 3))[first:, :, :n_keys]
    rows = torch.arange(n_queries)[:, None]
    seen = torch.arange(n_keys) <= rows + shift if causal else torch.ones_like(told[0])
    assert torch.equal(told & seen, dropped & seen)
    if causal:  # tiles that no row of theirs sees are left
        assert not bits[:, (n_queries - 1 + shift) // 128 * 4 + 4 :].any()


@pytest.mark.parametrize("most", [1, 100, 1000, 10_000])
@pytest.mark.parametrize(("batches", "heads"), [(1, 1), (8, 12), (3, 5)])
def test_sections_hold_every_head_once(monkeypatch, batches, heads, most):
    monkeypatch.setattr(dropped_bits, "MOST_MADE", most)
    of_batch, some = dropped_bits.sections(batches, heads, 100)
    assert of_batch == 1 or some == heads
    assert of_batch * some * 100 <= max(most, 100)
    assert 1 <= some <= heads
    assert 1 <= of_batch <= batches


def test_eight_bits_are_some_seventy_instructions():
    """As chapter 15 says; a call of Philox alone is forty-odd, twenty of them wide products."""
    q = torch.empty(2, 4, 512, 64, dtype=DTYPES["bf16"])
    given = Given(q, q, q, dropout_p=0.1, seed_offset=torch.zeros(2).long(), by_hand=True)
    launch = next(one for one in recorded(given) if one.name == "attention_dropped_bits")
    found = instructions(launch, 90, routines=False)
    calls = BITS_ROWS * BITS_WORDS * 4 / (32 * 4)  # of a thread
    assert 65 <= found.total() / calls <= 75
    assert 19 <= found["IMAD.WIDE.U32"] / calls <= 20


def test_a_forward_leaves_bits_where_both_ways_are_by_hand_and_they_fit(monkeypatch):
    q, k = (torch.empty(3, heads, 300, 64, dtype=DTYPES["bf16"]) for heads in (4, 2))
    given = Given(q, k, k, dropout_p=0.1, seed_offset=torch.zeros(2).long(), by_hand=True)
    bits = room(given)
    assert (bits.shape, bits.dtype) == ((12, 12, 384), torch.int32)
    wide = torch.empty(3, 4, 300, 128, dtype=DTYPES["bf16"])
    others = {
        "not by hand": given._replace(by_hand=False),
        "nothing to drop": given._replace(dropout_p=0.0),
        "all to drop": given._replace(dropout_p=1.0),
        "wider heads": given._replace(q=wide, k=wide, v=wide),
        "a window": given._replace(window=5),
    }
    for name, told in others.items():
        assert room(told) is None, name
        with pytest.raises(ValueError, match="only attention written for Hopper fills them"):
            forward(*told._replace(want_lse=True, by_hand=False), bits=bits)
    with assume_capability(80):
        assert room(given) is None
    monkeypatch.setattr(dropped_bits, "MOST_KEPT", 4 * 12 * 12 * 384 - 1)
    assert room(given) is None


def test_with_bits_of_the_forward_a_backward_makes_none():
    q = torch.empty(2, 4, 300, 64, dtype=DTYPES["bf16"])
    given = Given(q, q, q, dropout_p=0.1, seed_offset=torch.zeros(2).long(), by_hand=True)
    bits = room(given)
    with recording() as launches:
        backward(given, q, torch.empty(2, 4, 300), q, None, False, bits=bits)
    _, dkdv, dq = launches
    assert (dkdv.name, dq.name) == ("hopper_dkdv", "hopper_dq")
    assert dkdv.arguments["bits_desc"].base.data_ptr() == bits.data_ptr()
    assert dq.arguments["bits_ptr"].data_ptr() == bits.data_ptr()


@pytest.mark.parametrize("most", [1, 64 << 20])
def test_a_call_with_dropout_can_be_made_again_from_its_record(monkeypatch, most):
    """Its parts are views of its arguments and of what it allocates: a tape knows each."""
    monkeypatch.setattr(dropped_bits, "MOST_MADE", most)
    q, k = (torch.empty(3, heads, 300, 64, dtype=DTYPES["bf16"]) for heads in (4, 2))
    given = Given(q, k, k, causal=True, dropout_p=0.1, seed_offset=torch.zeros(2).long())

    def call(q, k, v, lse, seed_offset):
        told = given._replace(q=q, k=k, v=v, seed_offset=seed_offset, by_hand=True)
        return backward(told, q, lse, q, None, False)[:3]

    for _ in range(2):  # the tables of work are made by the first
        tape = Tape()
        with recording() as launches:
            tape.run(call, (q, k, k, torch.empty(3, 4, 300), given.seed_offset))
    assert tape.complete
    assert len(list(launches)) == (1 + 3 * 2 * 3 if most == 1 else 4)


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
        {"dropout_p": 1.0, "seed_offset": seed},
        {"causal": True, "top_left": True},
        {"q": q.float(), "k": k.float(), "v": k.float()},
    ):
        assert not by_hand(whole._replace(**others))
    assert by_hand(whole._replace(causal=True))
    assert by_hand(whole._replace(dropout_p=0.1, seed_offset=seed))
    wider = {name: torch.empty(2, 8, 256, 128).half() for name in "qkv"}
    assert by_hand(whole._replace(**wider))
    assert not by_hand(whole._replace(dropout_p=0.1, seed_offset=seed, **wider))
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
