"""Kernels written for Hopper, as far as that shows without one: compiled, and where they stand."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.lab.counting import aot, op_ledger
from kernels.launch import (
    LaunchError,
    assume_capability,
    gluon,
    interpreting,
    recording,
    triton_compile,
)
from kernels.launch.gluon import is_gluon
from kernels.ops.attention.attention import attention
from kernels.ops.attention.configurations import HOPPER
from kernels.ops.attention.moves import blocks_met
from kernels.ops.attention.moves import hopper_moves as attention_moves
from kernels.ops.products.configurations import forward_tiling, hopper_tiles, suits_hopper
from kernels.ops.products.linear import fused_hopper, linear
from kernels.ops.products.moves import hopper_moves
from kernels.registry import DTYPES, Case

pytestmark = pytest.mark.skipif(gluon.no_gluon() is not None, reason="no Gluon for Hopper")
SHAPE = (4096, 1024, 3072)


def given(m, k, n, dtype=torch.bfloat16):
    return (
        torch.empty(m, k, dtype=dtype),
        torch.empty(n, k, dtype=dtype),
        torch.empty(n, dtype=dtype),
    )


def recorded(call):
    with recording() as launches:
        call()
    return list(launches)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_product_compiles_without_a_spill_and_its_products_overlap(dtype, has_bias):
    x, weight, bias = given(*SHAPE, DTYPES[dtype])
    (launch,) = recorded(lambda: fused_hopper(x, weight, bias if has_bias else None))
    assert is_gluon(launch.kernel)
    compiled = launch.specialize(90).compile()
    assert compiled.matrix_instruction == "wgmma.mma_async"
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448
    assert compiled.num_warps == 12  # two groups and the producer's
    assert launch.grid == (132, 1, 1)


def launched(x, weight, bias):
    from kernels.ops.products import hopper

    hopper.launch(x, weight, bias, torch.empty(len(x), len(weight), dtype=x.dtype))


def test_one_binary_for_all_shapes():
    shapes = (SHAPE, (16384, 1024, 3072), (1, 8, 40_000), (20_000, 8, 8))
    keys = set()
    for shape in shapes:
        (launch,) = recorded(lambda shape=shape: launched(*given(*shape)))
        keys.add(launch.specialize(90).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "capability", "why"),
    [
        (SHAPE, "fp32", 90, "32 bits"),
        (SHAPE, "bf16", 80, "another card"),
        (SHAPE, "bf16", 100, "another card"),
        ((4096, 1020, 3072), "bf16", 90, "rows of x at odd places"),
        ((4096, 1024, 3068), "bf16", 90, "rows of y at odd places"),
        ((64, 1024, 3072), "bf16", 90, "12 tiles for 132 SMs"),
    ],
)
def test_where_it_steps_aside_a_kernel_in_triton_stands_in(shape, dtype, capability, why):
    with assume_capability(capability):
        (launch,) = recorded(lambda: fused_hopper(*given(*shape, DTYPES[dtype])))
    assert not is_gluon(launch.kernel), why


def test_the_rule_by_which_it_steps_aside():
    assert hopper_tiles(129, 257) == (2, 2)
    card = (9, 0), 132
    assert suits_hopper((128 * 132, 1024, 256), 2, True, *card)
    assert not suits_hopper((128 * 132, 1024, 256), 2, False, *card)
    assert not suits_hopper((128 * 132, 1024, 256), 2, True, (10, 0), 132)
    # Within 1 % of the fastest on an H200: TIMED in test_linear.py.
    chosen = {1024: (64, 128), 2048: (128, 128), 4096: (128, 256)}
    for rows, tile in chosen.items():
        found = forward_tiling((rows, 1024, 3072), 2, True, *card)
        assert (found.block_m, found.block_n) == tile
        assert suits_hopper((rows, 1024, 3072), 2, True, *card) == (tile == (128, 256))


def test_counted_or_interpreted_it_is_a_kernel_in_triton():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(32, 16), torch.randn(24, 16), torch.randn(24)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    with interpreting() as launches:
        y = fused_hopper(x.half(), weight.half(), bias.half())
    assert [is_gluon(launch.kernel) for launch in launches] == [False]
    torch.testing.assert_close(y.double(), exact, rtol=2e-3, atol=2e-2)
    torch.testing.assert_close(linear(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-5)


def test_no_interpreter_runs_a_kernel_in_gluon():
    from kernels.ops.products import hopper

    x, weight, bias = given(128, 64, 256)
    with pytest.raises(LaunchError, match=r"'hopper_product' is written in Gluon.* on a GPU$"):
        hopper.launch(x, weight, bias, torch.empty(128, 256, dtype=x.dtype))


def test_its_bytes_come_from_a_formula_and_a_ledger_says_so():
    op = registry.get("linear")
    told = hopper_moves(Case((200, 64, 520), torch.float16), "fwd")
    # 2 rows of 3 tiles: x three times, the weight twice, the bias by two groups of each row.
    assert told.requested == 2 * (3 * 200 * 64 + 2 * 520 * 64 + 4 * 520 + 200 * 520)
    assert told.unique == op.forward.cost(Case((200, 64, 520), torch.float16)).bytes_ideal
    with pytest.raises(ValueError, match=r"'fused_hopper' .*no interpreter .*Variant\.moves"):
        op_ledger.count_op(op, "fused_hopper", SHAPE, torch.bfloat16)


def test_products_that_wait_for_one_another_are_at_fault(monkeypatch):
    told = "ptxas info : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
    told += "serialized due to non wgmma instructions reading accumulator registers"
    asked = SimpleNamespace(stderr=told.encode())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: asked)
    monkeypatch.setattr(triton_compile.kept, "kept", lambda _kind, _from, make: make())
    assert triton_compile._serialized("wgmma.mma_async", 90)
    asked.stderr = b"ptxas info : Used 168 registers"
    assert not triton_compile._serialized("wgmma.mma_async", 90)
    assert not triton_compile._serialized("mma.sync", 90)
    told = {"op": "linear", "variant": "fused_hopper", "kernel": "hopper_product"}
    built = aot.Built(**told, dtype="bf16", shapes=("1x1x1",), passes=("fwd",), capability=90,
                      shared_limit=1, serialized=True)  # fmt: skip
    assert "wait for one another" in built.fault


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("n_keys", "causal", "lse"), [(512, False, False), (500, False, True), (500, True, True)]
)
def test_attention_compiles_without_a_spill_and_its_products_overlap(d, dtype, n_keys, causal, lse):
    q = torch.empty(2, 8, 512, d, dtype=DTYPES[dtype])
    k = torch.empty(2, 4, n_keys, d, dtype=DTYPES[dtype])
    (launch,) = recorded(lambda: attention(q, k, k, causal=causal, return_lse=lse))
    assert is_gluon(launch.kernel)
    compiled = launch.specialize(90).compile()
    assert compiled.matrix_instruction == "wgmma.mma_async"
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448


PADDED = {
    "k": lambda: {"k_lengths": torch.full((2,), 300)},
    "both": lambda: {
        "k_lengths": torch.full((2,), 300),
        "q_lengths": torch.full((2,), 300, dtype=torch.int32),
        "causal": True,
        "return_lse": True,
    },
    "mask": lambda: {"key_padding_mask": torch.zeros(2, 512, dtype=torch.bool)},
    "all": lambda: {
        "key_padding_mask": torch.zeros(512, 2, dtype=torch.bool).T,
        "k_lengths": torch.full((2,), 300),
        "q_lengths": torch.full((2,), 300),
        "causal": True,
        "return_lse": True,
    },
}


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("name", PADDED)
def test_padded_attention_compiles_without_a_spill_and_its_products_overlap(d, name):
    q, k = (torch.empty(2, h, 512, d, dtype=torch.bfloat16) for h in (8, 4))
    (launch,) = recorded(lambda: attention(q, k, k, **PADDED[name]()))
    assert is_gluon(launch.kernel)
    compiled = launch.specialize(90).compile()
    assert compiled.matrix_instruction == "wgmma.mma_async"
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_not_padded_has_nothing_of_it(d, causal):
    q = torch.empty(2, 8, 512, d, dtype=torch.bfloat16)
    (plain,) = recorded(lambda: attention(q, q, q, causal=causal))
    (padded,) = recorded(lambda: attention(q, q, q, causal=causal, k_lengths=torch.ones(2).long()))
    signatures = [launch.specialize(90).source.signature for launch in (plain, padded)]
    names = ["q_lengths_ptr", "k_lengths_ptr", "padding_ptr", "padding_batch_stride"]
    assert [signatures[0][name] for name in names] == ["constexpr"] * 4
    assert signatures[1]["k_lengths_ptr"] == "*i64"
    assert not plain.arguments["RAGGED"]
    one, other = (launch.specialize(90).compile().ptx for launch in (plain, padded))
    assert one.count("ld.global") < other.count("ld.global")
    assert one.count("wgmma.mma_async") <= other.count("wgmma.mma_async")


def test_where_attention_steps_aside():
    q, k = torch.empty(2, 8, 256, 64, dtype=torch.half), torch.empty(2, 4, 256, 64).half()
    lengths, padding = torch.full((2,), 9), torch.zeros(2, 256, dtype=torch.bool)
    bias, seed = torch.zeros(1, 1, 256, 256).half(), torch.zeros(2, dtype=torch.int64)
    drops = {"dropout_p": 0.1, "seed_offset": seed}
    its_own = (
        {"k_lengths": lengths},
        {"q_lengths": lengths},
        {"key_padding_mask": padding},
        drops,
        {"causal": True, **drops},
    )
    others = (
        {"window": 8},
        {"window": 8, "k_lengths": lengths},
        {"bias": bias},
        {"bias": bias, "key_padding_mask": padding},
        {"k_lengths": lengths, **drops},
        {"key_padding_mask": padding, **drops},
        {"window": 8, **drops},
        {"dropout_p": 1.0, "seed_offset": seed},
    )

    def gluon_for(q, k, **options):
        launches = recorded(lambda: attention(q, k, k, **options))
        return [is_gluon(launch.kernel) for launch in launches]

    assert gluon_for(q, k) == [True]
    assert [gluon_for(q, k, **one) for one in its_own] == [[True]] * len(its_own)
    assert [gluon_for(q, k, **one) for one in others] == [[False]] * len(others)
    wide = [torch.empty(*one.shape[:3], 128).half() for one in (q, k)]
    assert gluon_for(*wide) == [True]
    assert gluon_for(*wide, **drops) == [False]
    assert gluon_for(q.float(), k.float()) == [False]
    assert gluon_for(q[..., :32], k[..., :32]) == [False]
    assert gluon_for(torch.empty(2, 8, 256, 65).half()[..., 1:], k) == [False]  # at odd places
    with assume_capability(100):
        assert gluon_for(q, k) == [False]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (500, 700), (700, 500), (4096, 4096)])
def test_every_tile_of_queries_stands_in_the_table_once(causal, n_queries, n_keys):
    from kernels.ops.attention.hopper import schedule

    heads, programs = 12, 8
    table = schedule(
        heads, n_queries, n_keys, 128, causal, HOPPER[128], programs, torch.device("cpu")
    )
    found = [code for row in table.tolist() for code in row[1 : 1 + row[0]]]
    tiles = -(-n_queries // HOPPER[128].rows)
    assert sorted(found) == [head << 16 | tile for head in range(heads) for tile in range(tiles)]
    assert (table[:, 0] < table.shape[1] - 1).all()  # the entry behind the last is read too
    if tiles > 8 and causal:  # nobody is left with much more than the others
        work = [
            sum(
                2 + blocks_met((code & 0xFFFF) * 128, n_queries, n_keys, 128, 128, True)
                for code in row[1 : 1 + row[0]]
            )
            for row in table.tolist()
        ]
        assert max(work) <= 1.1 * min(work)


def test_bytes_of_attention_by_hand():
    # Queries in tiles of 128, keys in tiles of 128: 300 of each are 3 tiles, the last ragged.
    case = Case((1, 2, 300, 128), torch.bfloat16)
    row = 2 * 128 * 2
    assert attention_moves(case, "fwd").requested == (2 * 300 + 2 * 3 * 300) * row
    causal = Case((1, 2, 300, 128), torch.bfloat16, (("causal", True),))
    assert attention_moves(causal, "fwd").requested == (2 * 300 + 2 * (128 + 256 + 300)) * row
    assert attention_moves(causal, "fwd").unique == 4 * 300 * row
