"""Names of cards as folders."""

import pytest
import torch

from kernels.lab import devices


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-sxm-mig-1g-10gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("A Card / nobody knows (2031)", "a-card-nobody-knows-2031"),
        ("NVIDIA", "gpu"),
    ],
)
def test_slug(name, slug):
    assert devices.slug(name) == slug


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_is_one_sentence():
    with pytest.raises(RuntimeError, match="no CUDA GPU"):
        devices.describe()


def test_smi_says_nothing_where_it_is_absent(monkeypatch):
    monkeypatch.setattr(devices.shutil, "which", lambda _: None)
    assert set(devices.smi().values()) == {None}


def test_smi_cells_that_are_not_available_are_none(monkeypatch):
    class Done:
        returncode = 0
        stdout = "580.159.04, 1980, 2619, 1980, 2619, [N/A], 41\n"

    monkeypatch.setattr(devices.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: Done)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: None)
    told = devices.smi()
    assert told["driver_version"] == "580.159.04"
    assert told["power.limit"] is None
