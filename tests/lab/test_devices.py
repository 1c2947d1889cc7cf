"""Names of cards as folders, what their makers say of them, and their ceilings."""

import dataclasses

import pytest
import torch

from kernels.hardware import LIMITS
from kernels.lab.cards import devices
from kernels.lab.cards.makers import CARDS
from kernels.lab.records.data import write_suite
from tests.lab.test_data import a_row

each_card = pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


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


@each_card
def test_a_card_is_found_by_its_slug_and_by_its_name(card):
    assert devices.slug(card.name) == devices.slug(card.slug) == card.slug
    assert devices.card(card.name) is devices.card(card.slug) is card


@each_card
def test_every_figure_has_a_document_of_the_makers(card):
    for document in dataclasses.astuple(card.sources):
        title, url = document
        assert title
        assert url.startswith(("https://docs.nvidia.com/", "https://images.nvidia.com/",
                               "https://www.nvidia.com/", "https://resources.nvidia.com/",
                               "https://d1.awsstatic.com/"))  # fmt: skip


@each_card
def test_the_fp32_peak_is_cores_times_clock(card):
    if card.sms is None or card.boost_clock_hz is None:
        pytest.skip("no document gives its SMs or its clock")
    peak = 2 * card.limits.fp32_fmas_per_clock * card.sms * card.boost_clock_hz
    assert card.peak("fp32") == pytest.approx(peak, rel=0.03)


@each_card
def test_dense_peaks_follow_from_one_another(card):
    """A dtype of half the size has twice the peak, fp16 and bf16 the same: no sparse figure."""
    peaks = card.peaks
    if peaks.bf16 is not None:
        assert peaks.bf16 == peaks.fp16
        assert peaks.fp16 == pytest.approx(2 * peaks.tf32, rel=0.03)
    if peaks.fp8 is not None:
        assert peaks.fp8 == pytest.approx(2 * peaks.fp16, rel=0.01)
    assert 1.99 < peaks.fp16 / peaks.fp32 < 31


@each_card
def test_ridges_are_plausible(card):
    assert 5 < card.ridge("fp32") < 125
    assert 100 < card.ridge("fp16") < 500
    assert 250e9 < card.bandwidth_bytes_per_s < 10e12
    assert card.l2_bytes is None or 2**22 <= card.l2_bytes <= 2**27


def test_figures_the_book_leans_on():
    h100 = devices.card("NVIDIA H100 80GB HBM3")
    assert h100.peak("bf16") == pytest.approx(989e12, rel=1e-3)
    assert h100.bandwidth_bytes_per_s == 3.35e12
    assert (h100.sms, h100.l2_bytes, h100.capability) == (132, 52428800, 90)
    assert devices.card("h200").bandwidth_bytes_per_s == 4.8e12
    t4 = devices.card("Tesla T4")
    assert (t4.peaks.bf16, t4.peaks.tf32, t4.peaks.fp8) == (None, None, None)
    assert t4.limits.shared_bytes_per_block == 65536
    assert devices.card("a100-40gb").limits.shared_bytes_per_block == 163 * 1024
    assert all(LIMITS[c].registers_per_sm == 65536 for c in (75, 80, 89, 90, 100, 120))


def test_an_unknown_card_or_dtype_is_one_sentence():
    with pytest.raises(LookupError, match="card 'Voodoo 2' is not in the table.*h100-sxm"):
        devices.card("Voodoo 2")
    with pytest.raises(LookupError, match="MIG 1g.10gb' is not in the table"):
        devices.card("NVIDIA H100 80GB HBM3 MIG 1g.10gb")  # a slice has its own ceilings
    with pytest.raises(LookupError, match="no dense peak of Tesla T4 in 'bf16'.*fp32, fp16"):
        devices.card("t4").peak("bf16")
    with pytest.raises(LookupError, match="in 'sources'; it gives"):
        devices.card("t4").peak("sources")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_this_card_needs_a_gpu():
    with pytest.raises(RuntimeError, match="no CUDA GPU"):
        devices.this_card()


def a_recorded_card(tmp_path, gpu):
    rows = [
        a_row(op="copy", variant="kernel", dtype="fp32", time_us_p50=10.0, bytes_ideal=20_000_000),
        a_row(op="matmul", variant="torch", dtype="bf16", time_us_p50=10.0, flops=5_000_000_000),
    ]
    told = {"card": {"name": "A Card"}, "date": "2031-01-27T10:00:00Z"}
    write_suite(tmp_path / gpu / "ceilings.csv", rows, told)


def test_ceilings_are_measured_where_recorded(tmp_path):
    a_recorded_card(tmp_path, "h100-sxm")
    found = devices.ceilings_for("h100-sxm", "bf16", tmp_path)
    assert (found.bandwidth_bytes_per_s, found.compute_flops_per_s) == (2e12, 5e14)
    assert "measured" in found.bandwidth_label
    assert "measured" in found.compute_label
    assert found.source == "measured on one A Card on 2031-01-27"


def test_ceilings_are_the_makers_where_not_recorded(tmp_path):
    a_recorded_card(tmp_path, "h100-sxm")
    for slug, dtype in (("t4", "fp16"), ("h100-sxm", "fp8"), ("NVIDIA L4", "fp32")):
        card = devices.card(slug)
        found = devices.ceilings_for(slug, dtype, tmp_path)
        assert found.card == card.slug
        assert found.compute_flops_per_s == card.peak(dtype)
        assert found.bandwidth_bytes_per_s == card.bandwidth_bytes_per_s
        assert found.compute_label == f"{dtype}, maker's dense figure"
        assert "maker's figure" in found.bandwidth_label
        assert card.sources.peaks.url in found.source
        assert card.sources.memory.url in found.source
        assert found.ridge == card.ridge(dtype)


def test_ceilings_of_a_card_that_is_in_neither_are_one_sentence(tmp_path):
    a_recorded_card(tmp_path, "voodoo-2")
    assert devices.ceilings_for("voodoo-2", "bf16", tmp_path).card == "voodoo-2"
    with pytest.raises(LookupError, match="card 'voodoo-2' in 'fp32': it is neither recorded"):
        devices.ceilings_for("voodoo-2", "fp32", tmp_path)
    with pytest.raises(LookupError, match="no dense peak of Tesla T4 in 'bf16'"):
        devices.ceilings_for("t4", "bf16", tmp_path)


@each_card
def test_every_card_has_ceilings_in_the_dtypes_it_has(card, tmp_path):
    for dtype in DTYPES:
        if getattr(card.peaks, dtype) is not None:
            assert devices.ceilings_for(card.slug, dtype, tmp_path).ridge == card.ridge(dtype)
