"""Three models in training: counted on fake tensors, and held against what a GPU launched."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.lab import selection
from kernels.lab.__main__ import main
from kernels.lab.cards import devices
from kernels.lab.counting import models
from kernels.lab.counting.ledger import Ledger, Step
from kernels.lab.profiling import launched
from kernels.lab.profiling.launched import Launched

RECORDS = launched.records()
# They make a view or allocate: a profile shows them by other names, and nothing is launched.
QUIET = (
    *("view", "transpose", "t", "slice", "split", "detach", "empty", "empty_like", "_unsafe_view"),
    *("expand", "as_strided", "select", "unsqueeze", "squeeze", "empty_strided", "_reshape_alias"),
)


def names(ledger):
    return [step.name for step in ledger]


@pytest.fixture(scope="module")
def ledgers():
    return {name: models.counted(model) for name, model in models.MODELS.items()}


def test_the_encoder_has_six_layers_of_the_same_operators(ledgers):
    forward, back = ledgers["encoder"].values()
    told = names(forward)
    assert told == 6 * told[: len(told) // 6]
    assert told.count("_scaled_dot_product_cudnn_attention") == 6
    assert told.count("native_dropout") == 3 * 6
    assert names(back).count("_scaled_dot_product_cudnn_attention_backward") == 6
    assert names(back).count("native_layer_norm_backward") == 2 * 6
    x = 8 * 256 * 512 * 2
    for step in forward:
        if step.name == "native_dropout":
            assert step.read_unique in (x, 4 * x)
            assert step.write_unique == step.read_unique * 3 // 2  # and a byte of mask for two


def test_every_weight_of_a_model_is_read_and_every_byte_has_a_name(ledgers):
    for name, model in models.MODELS.items():
        forward = ledgers[name]["forward"]
        module, _ = model.on("cpu")
        wanted = dict(module.named_parameters())  # a tied weight once
        assert set(wanted) <= set(forward.tensors)
        for parameter, weight in wanted.items():
            read = forward.tensor(parameter).read_unique
            assert read >= weight.numel() * weight.element_size(), parameter
        assert "constant" not in forward.tensors


def test_the_decoder_casts_its_tied_weight_once_and_adds_its_two_gradients(ledgers):
    forward, back = ledgers["gpt"].values()
    size = 8192 * 256 * 4
    cast = [s for s in forward if s.name == "_to_copy" and s.tensor("tokens.weight").read_unique]
    assert [step.read_unique for step in cast] == [size]
    assert "head.weight" not in forward.tensors
    # The logarithms stay in bf16: what autocast widens is the loss of them.
    assert names(forward)[-3:] == ["_log_softmax", "_to_copy", "nll_loss_forward"]
    (added,) = [s for s in back if s.name == "add" and s.write_unique == size]
    assert added.read_unique == 2 * size


def test_the_residual_block_normalizes_by_cudnn_in_training(ledgers):
    forward, back = ledgers["resnet"].values()
    assert names(forward).count("cudnn_batch_norm") == 3
    assert names(back).count("convolution_backward") == 3
    # x needs no gradient: the first convolutions go back to their weights alone
    weights = 128 * 64 * 9 * 4
    assert min(s.write_unique for s in back if s.name == "convolution_backward") == 128 * 64 * 4
    assert weights in [s.write_unique for s in back if s.name == "convolution_backward"]


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def chosen(events):
    """The operators that a profile would be told by, each once, had all of them launched."""
    for event in sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)):
        around = [one.name for one in launched._around(event)][::-1]
        name = event.name.removeprefix("aten::")
        outermost = around.count(event.name) == 1 and not launched.made_of_others(name)
        if event.name != name and outermost and launched.operator_of(around) == name:
            yield name


def loud(told):
    return [name.rstrip("_") for name in told if name not in QUIET]


def test_the_operator_of_a_launch_is_the_one_that_a_ledger_has_a_step_for():
    """On a CPU, where a profile shows operators too: the same ones, in the same order."""
    module = models.Residual(4).train()
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True).train()
    given = {module: torch.randn(2, 4, 8, 8), layer: torch.randn(2, 8, 16)}
    for model, x in given.items():
        forward, backward = models.step(model, (x,))
        backward(forward())
        with torch.profiler.profile() as profiler:
            backward(forward())
        with Seen() as seen:
            backward(forward())
        told = loud(chosen(profiler.events()))
        assert told == loud(seen.names)
        assert len(told) > 15
        assert "randn_like" not in told  # the gradient from above was made at the first step


NUMBERS = itertools.count(1)


def event(name, parent=None, kernels=(), start=0.0, number=None):
    return SimpleNamespace(
        id=next(NUMBERS) if number is None else number,
        name=name,
        cpu_parent=parent,
        kernels=[SimpleNamespace(name=kernel) for kernel in kernels],
        time_range=SimpleNamespace(start=start),
    )


def test_a_kernel_is_told_once_whatever_else_has_its_operators_number():
    # As PyTorch 2.11 tells LayerNorm's first call: 2 is the operator's number.
    norm = event("aten::native_layer_norm", event("aten::layer_norm"), ["norm_kernel"], 2.0)
    buffers = event("Activity Buffer Request", norm, ["norm_kernel"], 3.0, number=norm.id)
    launch = event("cudaLaunchKernel", norm, [], 4.0)
    loading = event("Lazy Function Loading", launch, ["norm_kernel"], 5.0, number=norm.id)
    waits = event("cudaDeviceSynchronize", None, ["norm_kernel"], 1.0, number=norm.id)
    assert launched.launched([waits, norm, buffers, launch, loading]) == [
        Launched("native_layer_norm", ("norm_kernel",))
    ]


def test_launches_are_told_under_the_outermost_operator_that_is_one():
    linear = event("aten::linear")
    addmm = event("aten::addmm", linear, ["void cublas::gemm<float, 4>(int)", "splitK"], 2.0)
    engine = event("autograd::engine::evaluate_function: SelectBackward0", None)
    select = event("aten::select_backward", engine)
    zeros = event("aten::zero_", event("aten::zeros", select), ["Memset (Device)"], 3.0)
    copy = event("aten::copy_", select, ["void at::copy_kernel<half>(x)"], 4.0)
    clone = event("aten::copy_", event("aten::clone", event("aten::contiguous")), ["Memcpy DtoD"])
    ours = event("my_kernel_launcher", None, ["triton_kernel"], 5.0)
    assert launched.launched([zeros, copy, addmm, linear, clone, ours]) == [
        Launched("clone", (), 1),
        Launched("addmm", ("cublas::gemm", "splitK"), 0),
        Launched("select_backward", ("at::copy_kernel",), 1),
        Launched("my_kernel_launcher", ("triton_kernel",), 0),
    ]


def ledger(*operators):
    return Ledger(tuple(Step(name, "aten", ()) for name in operators), "aten")


def test_what_differs_is_told():
    seen = [Launched("mm", ("a",)), Launched("add_", ("b",)), Launched("nonzero", ("c", "d"))]
    assert launched.differences(ledger("mm", "add", "nonzero"), seen) == []
    assert launched.differences(ledger("mm", "add", "nonzero"), seen, reasons={}) == [
        "nonzero launches 2 kernels and 0 copies (c, d), and no reason is told"
    ]
    assert launched.differences(ledger("mm", "mul", "nonzero"), seen) == [
        "operator 2 of 3 is counted as mul, and of 3 launched as add, after mm"
    ]
    assert launched.differences(ledger("mm", "add"), seen) == [
        "operator 3 of 2 is counted as nothing, and of 3 launched as nonzero, after mm, add"
    ]
    assert launched.differences(ledger("mm", "add", "nonzero", "gelu"), seen) == [
        "operator 4 of 4 is counted as gelu, and of 3 launched as nothing, after mm, add, nonzero"
    ]


def test_a_recording_is_written_and_read_again(tmp_path, monkeypatch, ledgers):
    """With a card that launched what is counted, and with one that did not."""
    card = {"name": "NVIDIA H100", "slug": "h100-sxm", "capability": "9.0"}

    def as_counted(model):
        told = ledgers[model.name]
        return {pass_: [Launched(s.name, ("k",)) for s in told[pass_]] for pass_ in told}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "describe", lambda _: card)
    monkeypatch.setattr(launched, "of_model", as_counted)
    monkeypatch.setattr(launched, "problems", lambda record: [])
    assert launched.run(tmp_path, lambda _: None) == 0
    monkeypatch.undo()
    (path,) = launched.records(tmp_path)
    record = launched.read(path)
    assert (record.gpu, record.capability) == ("h100-sxm", 90)
    assert launched.problems(record) == []
    del record.passes["gpt forward"]
    record.passes["resnet forward"][1] = Launched("gelu", ())
    assert launched.problems(record) == [
        "gpt forward is not recorded on h100-sxm",
        "resnet forward on h100-sxm: operator 2 of 12 is counted as add, and of 12 launched as "
        "gelu, after convolution",
        "resnet forward on h100-sxm: gelu launches 0 kernels and 0 copies (none), and no reason "
        "is told",
    ]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_what_is_counted_is_what_a_card_launched(path):
    assert launched.problems(launched.read(path)) == []


@pytest.mark.skipif(not RECORDS, reason="no card has recorded what the models launch")
def test_each_reason_for_another_number_of_launches_is_met_on_a_card():
    seen = [one for path in RECORDS for told in launched.read(path).passes.values() for one in told]
    several = {one.operator for one in seen if len(one.kernels) != 1}
    never = {one.operator for one in seen} - several
    assert never & set(launched.NOT_ONE) == set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused(capsys):
    assert main(["models"]) == 2
    assert capsys.readouterr().err.strip().endswith(selection.NO_GPU)
