"""What a compiler wrote is recorded whole; its kernels are found in it by their names."""

import json

import pytest
import torch
import torch._inductor.utils

from kernels.lab import selection
from kernels.lab.__main__ import main
from kernels.lab.profiling import generated
from kernels.lab.profiling.launched import Launched

MODULE = """
one = async_compile.triton('triton_poi_fused_add_0', '''
import triton

@triton_heuristics.pointwise(size_hints={'x': 16})
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
two = async_compile.triton('triton_red_fused_sum_1', '''
@triton.jit
def triton_red_fused_sum_1(in_ptr0):
    pass
''', device_str='cuda')
def call(args):
    one.run()
"""


def test_the_kernels_of_a_module_are_found_and_stripped_of_what_chooses_their_launch():
    kernels = generated.kernels_of(MODULE)
    assert list(kernels) == ["triton_poi_fused_add_0", "triton_red_fused_sum_1"]
    plain = generated.plain(kernels["triton_poi_fused_add_0"])
    assert plain.startswith("@triton.jit\ndef triton_poi_fused_add_0(in_ptr0")
    assert "heuristics" not in plain
    with pytest.raises(ValueError, match="no line @triton.jit"):
        generated.plain("extern_kernels.mm(x, y)")


@pytest.fixture
def told(monkeypatch):
    """`of_function` of a small case here, with a compiler that writes one line."""
    monkeypatch.setattr(generated, "COLS", 32)
    monkeypatch.setattr(generated, "INNER", 16)
    monkeypatch.setattr(torch, "compile", lambda fn: fn)
    monkeypatch.setattr(
        torch._inductor.utils, "run_and_get_code", lambda fn, *args: (fn(*args), ["code"])
    )

    def see(call):
        return call(), [Launched("relu", ("relu_kernel",)), Launched("mul", ("mul_kernel",))]

    return lambda name: generated.of_function(generated.FUNCTIONS[name], torch.device("cpu"), see)


@pytest.mark.parametrize(
    ("name", "graphs", "breaks"),
    [("layernorm", 1, 0), ("chain", 1, 0), ("printed", 2, 1), ("branch", 2, 1), ("selected", 1, 0)],
)
def test_a_function_falls_into_graphs_where_it_says_so(told, name, graphs, breaks):
    found = told(name)
    assert found["graphs"] == graphs
    assert len(found["breaks"]) == breaks
    assert found["source"].startswith(f"def {name}(")
    assert found["code"] == ["code"]
    assert found["compiled_kernels"] == ["relu_kernel", "mul_kernel"]
    assert list(found["call_seconds"]) == ["4096", "2048", "1024"]


def test_every_function_takes_its_inputs_in_eager_mode():
    for function in generated.FUNCTIONS.values():
        y = function.fn(*function.inputs(2, "cpu"))
        assert y.shape[0] == 2
        assert y.dtype == torch.bfloat16
        assert y.isfinite().all()


def test_a_record_gives_kernels_by_function(tmp_path):
    (tmp_path / "a-card").mkdir()
    written = {"date": "2026-11-29", "functions": {"softmax": {"code": [MODULE]}}}
    (tmp_path / "a-card" / generated.FILE).write_text(json.dumps(written))
    (record,) = generated.generated(tmp_path)
    assert (record.gpu, record.provenance) == ("a-card", {"date": "2026-11-29"})
    assert list(record.kernels("softmax")) == ["triton_poi_fused_add_0", "triton_red_fused_sum_1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU records")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["generated"]) == 2
    assert selection.NO_GPU in capsys.readouterr().err
