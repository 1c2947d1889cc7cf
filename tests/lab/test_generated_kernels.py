"""A kernel that a compiler wrote runs again: interpreted, counted, and compiled for a card."""

import pytest
import torch

from kernels.lab import traffic
from kernels.lab.profiling import generated
from kernels.lab.profiling.generated_kernels import kernel, launch_lines, made
from kernels.launch import compile_launch, recording

MODULE = """
add = async_compile.triton('triton_poi_fused_exp_maximum_0', '''
import triton

@triton_heuristics.pointwise(size_hints={'x': 512})
@triton.jit
def triton_poi_fused_exp_maximum_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 512
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (xindex), None).to(tl.float32)
    tmp1 = triton_helpers.maximum(tl.full([1], 0, tl.int32), tmp0)
    tl.store(out_ptr0 + (xindex), libdevice.exp(tmp1) + tl_math.abs(tmp1), None)
''', device_str='cuda')
def call(args):
    stream0 = get_raw_stream(0)
    triton_poi_fused_exp_maximum_0.run(arg0_1, buf0, 512, stream=stream0)
    extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (8, 4), (1, 8), 0), out=buf1)
    aten.randint.low_out(-4, 4, [1], out=buf2)
    return (buf1, )
"""
RECORD = generated.Record("a-card", {}, {"exp": {"code": [MODULE]}})


def test_its_launches_are_read_off_the_module_in_order():
    assert launch_lines(MODULE) == [
        "triton_poi_fused_exp_maximum_0.run(arg0_1, buf0, 512, stream=stream0)",
        "extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (8, 4), (1, 8), 0), out=buf1)",
        "aten.randint.low_out(-4, 4, [1], out=buf2)",
    ]


def test_a_recorded_kernel_is_interpreted_counted_and_compiled():
    function = kernel(RECORD, "exp")
    x = torch.linspace(-1, 1, 256).to(torch.bfloat16)
    y = torch.zeros(256)
    counted = traffic.count(lambda: function[(2,)](x, y, 512, XBLOCK=128))
    wanted = x.double().clamp(min=0)
    torch.testing.assert_close(y.double(), wanted.exp() + wanted, rtol=1e-6, atol=0)
    assert counted.bytes_unique == 256 * (2 + 4)
    with recording() as launches:
        function[(2,)](x, y, 512, XBLOCK=128)
    for capability in (75, 80, 90):
        assert compile_launch(next(iter(launches)), capability).stack_bytes == 0


def test_an_error_names_the_line_of_the_generated_text():
    function = kernel(RECORD, "exp")
    with pytest.raises(Exception, match=r"triton_poi_fused_exp_maximum_0.*line 5"):
        function[(3,)](torch.zeros(256), torch.zeros(256), 512, XBLOCK=128)


def test_two_texts_of_one_name_are_two_kernels():
    text = "@triton.jit\ndef twice(x_ptr):\n    tl.store(x_ptr, 1)\n"
    one, two = made("twice", text), made("twice", text.replace("1)", "2)"))
    for function, value in ((one, 1), (two, 2), (one, 1)):
        x = torch.zeros(1)
        function[(1,)](x)
        assert x.item() == value


def test_what_was_not_recorded_is_refused():
    with pytest.raises(KeyError, match="log"):
        kernel(RECORD, "log")
    with pytest.raises(IndexError):
        kernel(RECORD, "exp", 1)


def recorded_kernels():
    return [
        pytest.param(record, name, number, id=f"{record.gpu} {name} {number}")
        for record in generated.generated()
        for name in record.functions
        for number in range(len(record.kernels(name)))
    ]


@pytest.mark.parametrize(("record", "name", "number"), recorded_kernels())
def test_every_recorded_kernel_is_a_function_that_its_module_launches(record, name, number):
    function = kernel(record, name, number)
    lines = [line for code in record.functions[name]["code"] for line in launch_lines(code)]
    assert sum(line.startswith(f"{function.__name__}.run(") for line in lines) == 1
