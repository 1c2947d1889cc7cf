"""What a call from Python may cost, against PyTorch's own, as recorded."""

import pytest

from kernels.lab.__main__ import main
from kernels.lab.measuring import host_cost

# Times PyTorch's own operator or operators, forward and as a step of training (512×1024 bf16).
BOUNDS = {
    "layernorm": (1.25, 1.3),
    "rmsnorm": (1.25, 1.3),
    "softmax": (1.4, 1.6),
    "add_layernorm": (1.5, 1.3),
    "add_rmsnorm": (1.5, 1.3),
}


def above_bounds(told):
    """The operations and passes of a record that cost more than their bound."""
    found = []
    for name, bounds in BOUNDS.items():
        for pass_, bound in zip(("fwd", "train"), bounds, strict=True):
            times = told["calls_us"][name][pass_]
            ratio = times["fused"] / times["torch"]
            if ratio > bound:
                found.append((name, pass_, ratio))
    return found


def test_what_was_recorded_is_within_the_bounds():
    recorded = host_cost.host_costs()
    assert recorded, "no card has a host.json: python -m kernels.lab host"
    for told in recorded:
        assert above_bounds(told) == [], told["card"]["name"]
        assert not told["dirty"]


def test_a_record_above_a_bound_is_seen():
    times = {"torch": 10.0, "fused": 10.0}
    told = {"calls_us": {name: {"fwd": times, "train": times} for name in BOUNDS}}
    assert above_bounds(told) == []
    told["calls_us"]["softmax"] = {"fwd": {"torch": 10.0, "fused": 14.1}, "train": times}
    assert above_bounds(told) == [("softmax", "fwd", pytest.approx(1.41))]


def test_the_parts_of_a_launch_add_up_to_less_than_the_whole():
    for told in host_cost.host_costs():
        for parts in told["parts_us"].values():
            rest = dict(parts)
            whole = rest.pop("whole")
            assert 0 <= sum(rest.values()) <= 1.1 * whole


def test_without_a_gpu_it_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(host_cost.torch.cuda, "is_available", lambda: False)
    assert main(["host"]) == 2
    assert "no GPU" in capsys.readouterr().err
