"""Calls made again: what they give, what makes them anew, and what they keep."""

import gc
import weakref

import pytest
import torch
import triton
import triton.language as tl
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.nvidia.driver import CudaLauncher
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import passes, registry
from kernels.launch import (
    again,
    assume_capability,
    interpreting,
    lasting,
    plan,
    ready,
    recording,
)
from kernels.ops.norms import configurations, forward
from kernels.ops.shared import operators
from kernels.registry import Case
from tests.ops.layouts import contiguous, transposed

FACTOR = tl.constexpr(2.0)


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, x * scale * FACTOR, mask=mask)


@triton.jit
def by_factor(x):
    return x * FACTOR


@triton.jit
def by_factor_twice(x):
    return by_factor(by_factor(x))


@triton.jit
def calling_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, by_factor_twice(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


@triton.jit
def look_up_kernel(x_ptr, table_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, x + tl.load(table_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def descriptor_kernel(x_desc, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), x_desc.load([0]))


def scaled(x, scale=3.0):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, y, x.numel(), scale, BLOCK=16)
    return y


@pytest.fixture
def call():
    return again.Ready(scaled)


def numbers(*size, **options):
    return torch.randn(*size, generator=torch.Generator().manual_seed(1), **options)


def test_the_second_call_is_the_first_ones_launch_at_other_addresses(call):
    for seed in range(3):
        x = torch.randn(10, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(call(x, 3.0), 6 * x)
    assert len(call) == 1
    assert "launch0(a0, a2, 10, " in call.plans[0].source((x, 3.0))


def counted(call, *args):
    """How often the function itself ran in a call."""
    inner, ran = call.function, []

    def function(*given):
        ran.append(given)
        return inner(*given)

    call.function = function
    try:
        call(*args)
    finally:
        call.function = inner
    return len(ran)


def other_address(x):
    room = torch.zeros(x.numel() + 1, dtype=x.dtype)
    room[1:] = x
    return room[1:]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("dtype", lambda x: (x.half(), 3.0)),
        ("shape", lambda x: (x[:8].clone(), 3.0)),
        ("dimensions", lambda x: (x.view(2, 5), 3.0)),
        ("strides", lambda x: (x.repeat(2)[::2], 3.0)),
        ("alignment", lambda x: (other_address(x), 3.0)),
        ("value", lambda x: (x, 4.0)),
        ("type of a value", lambda x: (x, 3)),
    ],
)
def test_another_kind_of_call_is_made_anew(call, name, args):
    x = numbers(10)
    call(x, 3.0)
    assert counted(call, x, 3.0) == 0
    args = args(x)
    assert counted(call, *args) == 1, name
    torch.testing.assert_close(call(*args), scaled(*args))
    assert counted(call, *args) == 0


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (True, 1), (1, 1.0), (0, False)])
def test_values_that_are_equal_are_not_the_same(one, other):
    call = again.Ready(lambda x, value: torch.empty_like(x))
    x = numbers(4)
    call(x, one)
    assert counted(call, x, one) == 0
    assert counted(call, x, other) == 1


def test_a_kernel_whose_source_changed_is_launched_anew(call):
    x, source = numbers(10), scale_kernel.src
    call(x, 3.0)
    try:
        scale_kernel._unsafe_update_src(source.replace("* scale", "+ scale"))
        assert counted(call, x, 3.0) == 1
    finally:
        scale_kernel._unsafe_update_src(source)
    assert counted(call, x, 3.0) == 1


def test_a_global_of_a_kernel_that_changed_is_seen(call, monkeypatch):
    x = numbers(10)
    torch.testing.assert_close(call(x, 3.0), 6 * x)
    scale_kernel.hash = (
        None  # as a new kernel has it: Triton itself refuses a compiled one's change
    )
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(5.0))
    torch.testing.assert_close(call(x, 3.0), 15 * x)


def test_a_global_of_what_a_kernel_calls_is_seen(monkeypatch):
    def called(x):
        y = torch.empty_like(x)
        calling_kernel[(1,)](x, y, x.numel(), BLOCK=16)
        return y

    call, x = again.Ready(called), numbers(10)
    torch.testing.assert_close(call(x), 4 * x)
    assert counted(call, x) == 0
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(5.0))
    assert counted(call, x) == 1


def test_a_hook_of_a_kernel_is_called(call):
    x, told = numbers(10), []
    call(x, 3.0)
    hook = lambda *args, **kwargs: told.append(args)  # noqa: E731
    scale_kernel.add_pre_run_hook(hook)
    try:
        assert counted(call, x, 3.0) == 1
        assert counted(call, x, 3.0) == 1
    finally:
        scale_kernel.pre_run_hooks.remove(hook)


def test_a_profiler_s_hook_of_all_launches_makes_every_call_anew(call):
    x = numbers(10)
    call(x, 3.0)
    enter = triton.knobs.runtime.launch_enter_hook
    hook = lambda metadata: None  # noqa: E731
    enter.add(hook)
    try:
        assert counted(call, x, 3.0) == 1
    finally:
        enter.remove(hook)


def test_a_hook_put_in_the_place_of_all_hooks_is_seen(call, monkeypatch):
    x = numbers(10)
    call(x, 3.0)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", lambda metadata: None)
    for _ in range(3):
        assert counted(call, x, 3.0) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(configurations, "RAGGED", configurations.RAGGED),
        lambda patch: patch.setattr(forward, "norm_row", forward.norm_row),
        lambda patch: patch.setattr(forward, "WEIGHTS_EARLY_UP_TO", 1),
    ],
)
def test_a_name_of_a_module_of_the_package_that_is_bound_anew_is_seen(call, monkeypatch, change):
    x = numbers(10)
    call(x, 3.0)
    change(monkeypatch)
    assert counted(call, x, 3.0) == 1


def test_another_card_that_is_assumed_is_seen(call):
    x = numbers(10)
    call(x, 3.0)
    with assume_capability(75):
        assert counted(call, x, 3.0) == 1
    assert counted(call, x, 3.0) == 1


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_autocast_inference_and_modes_are_calls_of_their_own_kind(call):
    x = numbers(10)
    call(x, 3.0)
    states = (torch.inference_mode(), torch.autocast("cpu"), Mode(), torch.device("cpu"))
    for state in states:
        with state:
            torch.testing.assert_close(call(x, 3.0), 6 * x)
            torch.testing.assert_close(call(x, 3.0), 6 * x)
    assert counted(call, x, 3.0) == 0


def test_launches_that_are_counted_or_recorded_are_the_function_s_own(call):
    x = numbers(10)
    call(x, 3.0)
    for watch in (interpreting, recording):
        with watch() as seen:
            assert counted(call, x, 3.0) == 1
        assert [launch.name for launch in seen] == ["scale_kernel"]
        assert counted(call, x, 3.0) == 0


def test_forward_mode_and_negated_tensors_go_the_long_way(call):
    x = numbers(10)
    call(x, 3.0)
    with forward_ad.dual_level():
        assert counted(call, x, 3.0) == 1
    negated = torch._neg_view(x)
    assert negated.is_neg()
    assert counted(call, negated, 3.0) == 1
    torch.testing.assert_close(call(x, 3.0), 6 * x)


def test_one_tensor_given_twice_and_two_of_one_memory():
    def add(x, y):
        out = torch.empty_like(x)
        look_up_kernel[(1,)](x, y, out, x.numel(), BLOCK=16)
        return out

    call = again.Ready(add)
    x, y = numbers(10), numbers(20)[10:]
    for one, other in [(x, x), (x, x), (x, y), (y, x), (x, x.view(10)), (x, y), (x, x)]:
        torch.testing.assert_close(call(one, other), one + other)


def test_views_of_arguments_and_results_that_are_arguments():
    def halves(x):
        y = torch.empty(2, 8)
        scale_kernel[(1,)](x[4:], y[1], 4, 1.0, BLOCK=16)
        scale_kernel[(1,)](x, y[0], 4, 1.0, BLOCK=16)
        return x, y[1, :4], y, None

    call = again.Ready(halves)
    for _ in range(3):
        x = torch.randn(8)
        same, second, both, nothing = call(x)
        assert same is x
        assert nothing is None
        torch.testing.assert_close(second, 2 * x[4:])
        torch.testing.assert_close(both[0, :4], 2 * x[:4])
    assert len(call) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: scaled(x.t().contiguous()),
        lambda x: scaled(x).add_(1),
        lambda x: torch.zeros(x.shape),
        lambda x: (scaled(x), 3),
        lambda x: scaled(x).view(torch.int32),
        lambda x: scaled(x.view(torch.int32).view(torch.float32)),
        lambda x: scaled(x.view(torch.int32)),
        lambda x: scaled(x) if float(x[0, 0]) > 0 else x,
    ],
    ids=[
        "a copy",
        "another operator",
        "filled",
        "a result that is no tensor",
        "its bits",
        "bits and back",
        "other numbers of its bits",
        "values looked at",
    ],
)
def test_what_is_more_than_launches_is_called_as_always(function):
    call = again.Ready(function)
    for _ in range(5):
        x = torch.randn(4, 3)
        expected = function(x)
        torch.testing.assert_close(call(x), expected)
    assert len(call) == 0


def test_a_table_that_lasts_is_read_again():
    table = lasting(torch.arange(10.0))

    def with_table(x):
        y = torch.empty_like(x)
        look_up_kernel[(1,)](x, table, y, x.numel(), BLOCK=16)
        return y

    call = again.Ready(with_table)
    for _ in range(2):
        torch.testing.assert_close(call(torch.ones(10)), table + 1)
    assert len(call) == 1


def test_a_tensor_from_where_nobody_knows_is_no_table():
    def shifted(x):
        y = torch.empty_like(x)
        look_up_kernel[(1,)](x, before[0], y, x.numel(), BLOCK=16)
        return y

    call, before = again.Ready(shifted), [torch.ones(10)]
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        before[0] = torch.full((10,), value)
        torch.testing.assert_close(call(torch.zeros(10)), before[0])
    assert len(call) == 0


def test_inside_an_operator_s_implementation_nothing_is_kept():
    """There PyTorch makes other Python objects of the same tensors."""
    call = again.Ready(lambda x: scaled(x.t().contiguous().t()))
    library = torch.library.Library("again_under_test", "FRAGMENT")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", call, "CPU")
    for _ in range(5):
        x = torch.randn(4, 3)
        torch.testing.assert_close(torch.ops.again_under_test.scaled(x), 6 * x)
    assert len(call) == 0


def test_a_descriptor_is_made_anew_for_each_address():
    def copied(x):
        y = torch.empty_like(x)
        descriptor_kernel[(1,)](TensorDescriptor.from_tensor(x, [16]), y, BLOCK=16)
        return y

    call = again.Ready(copied)
    for _ in range(3):
        x = torch.randn(16)
        torch.testing.assert_close(call(x), x)
    assert len(call) == 1


def test_no_tensor_of_a_call_is_kept_alive(call):
    x = numbers(10)
    y = call(x, 3.0)
    call(x, 3.0)
    alive = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_ten_thousand_shapes_take_no_more_room_than_a_thousand(monkeypatch):
    monkeypatch.setattr(again, "MOST", 20)
    call = again.Ready(lambda x: torch.empty_like(x))
    copies = again.Ready(lambda x: x.clone())
    for size in range(1, 200):
        call(torch.empty(size))
        copies(torch.empty(size))
    assert len(call) == 20
    assert len(call.recent) <= again.MOST_RECENT
    assert len(copies._incomplete) == 20
    assert configurations.forward_block.cache_info().maxsize is not None
    assert configurations.backward_configuration.cache_info().maxsize is not None


def test_the_way_of_the_launcher_that_is_installed():
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    assert plan.way(CudaLauncher) == ("c" if version < (3, 7) else "launcher")
    assert plan.way(object) == "plain"
    assert plan.guards_hold()


# ------------------------------------------------------------------- a reader's own kernel


def test_a_kernel_that_is_ready_is_launched_as_ever():
    quick = ready(scale_kernel)
    for _ in range(3):
        x, y, z = torch.randn(40), torch.empty(40), torch.empty(40)
        quick[(3,)](x, y, 40, 1.0, BLOCK=16)
        quick[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](
            x, z, scale=1.0, n=40, BLOCK=16
        )
        torch.testing.assert_close(y, 2 * x)
        torch.testing.assert_close(z, 2 * x)
    assert len(quick.calls) == 2


def test_a_grid_that_depends_on_more_than_the_arguments_is_asked_each_time():
    quick, programs = ready(scale_kernel), 1
    x, y = torch.randn(40), torch.zeros(40)
    for programs in (1, 2):
        quick[lambda meta: (programs,)](x, y, 40, 1.0, BLOCK=16)  # noqa: B023
        torch.testing.assert_close(y[: programs * 16], 2 * x[: programs * 16])
        assert bool((y[programs * 16 :] == 0).all())


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="@triton.jit"):
        ready(scaled)


# -------------------------------------------------------------------- every operation's calls

CALLS = [
    pytest.param(op, variant, id=f"{op.name}-{variant.name}")
    for op in registry.ops()
    for variant in op.variants.values()
    if variant.name == "fused" and variant.counted == "triton"
]


@pytest.mark.parametrize(("op", "variant"), CALLS)
@pytest.mark.parametrize("layout", [contiguous, transposed])  # all of them on a GPU
def test_the_short_way_gives_the_same_bits(op, variant, layout, monkeypatch):
    shape = op.resized(op.shapes[0], **dict.fromkeys(op.dims, 6))

    def both(seed):
        made = op.make(Case(shape, torch.bfloat16, op.options[0]), "cpu", seed)
        given = {k: layout(v) if k in op.tensors else v for k, v in made.items()}
        outputs = passes.as_tuple(variant.fn(**given))
        if not variant.has("train"):
            return outputs
        call = passes.bind(op, variant, given, "train", seed)
        return (*outputs, *call())

    expected = {seed: both(seed) for seed in (1, 2)}
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    for seed in (1, 2):
        for one, other in zip(both(seed), expected[seed], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("op", "variant"), CALLS)
def test_the_short_way_is_taken_forward_and_back(op, variant, monkeypatch):
    if not variant.has("train"):
        pytest.skip("it has no backward")
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    shape = op.resized(op.shapes[0], **dict.fromkeys(op.dims, 4))
    made = op.make(Case(shape, torch.float32, op.options[0]), "cpu", 0)
    variant.fn(**made)
    step = passes.bind(op, variant, made, "train")
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        variant.fn(**made)
        step()
    dispatched = [event.key for event in seen.key_averages() if "fusing_kernels" in event.key]
    assert dispatched == []
