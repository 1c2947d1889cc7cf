"""What the makers say of their cards: the figures a roofline takes where nothing was measured.

Every figure is in base units (bytes, bytes/s, FLOP/s, Hz) and comes from a document of the maker's,
named beside it. An FMA is 2 FLOPs. Peaks are dense: where a document gives only the figure "with
sparsity", which skips every second product, half of it stands here, and the line says so. Tensor
peaks are those with sums in fp32. None means that the card has no such arithmetic, or that no
document of the maker's gives the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from kernels.hardware import LIMITS, Limits

MIB = 1 << 20
GIGA, TERA = 1e9, 1e12


class Document(NamedTuple):
    """A document of the maker's: its title and its address."""

    title: str
    url: str


@dataclass(frozen=True)
class Peaks:
    """Dense FLOP/s by dtype: `fp32` in plain FMAs, the others in tensor cores with fp32 sums."""

    fp32: float
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None


_GUIDE = Document(
    "CUDA Programming Guide, Compute Capabilities: technical specifications",
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html",
)


@dataclass(frozen=True)
class Sources:
    """The documents of a card's figures.

    `chip` covers the number of SMs, L2 and the boost clock; `limits` shared memory and registers.
    """

    memory: Document
    peaks: Document
    chip: Document
    limits: Document = _GUIDE


@dataclass(frozen=True)
class Card:
    """A card as its maker describes it.

    `name` is what `nvidia-smi` calls it, `slug` its folder in `book/data`, `capability` its compute
    capability (75 for 7.5).
    """

    name: str
    slug: str
    capability: int
    bandwidth_bytes_per_s: float
    peaks: Peaks
    sources: Sources
    sms: int | None = None
    l2_bytes: int | None = None
    boost_clock_hz: float | None = None

    @property
    def limits(self) -> Limits:
        """What one of its SMs has."""
        return LIMITS[self.capability]

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s in `dtype` (fp32, tf32, fp16, bf16, fp8); LookupError if it has none."""
        known = {field.name: getattr(self.peaks, field.name) for field in fields(Peaks)}
        value = known.get(dtype)
        if value is None:
            there = ", ".join(name for name, figure in known.items() if figure is not None)
            raise LookupError(
                f"the maker gives no dense peak of {self.name} in {dtype!r}; it gives: {there}"
            )
        return float(value)

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte at which its memory and its arithmetic in `dtype` take equally long."""
        return self.peak(dtype) / self.bandwidth_bytes_per_s


_TURING = Document(
    "NVIDIA Turing GPU Architecture",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/"
    "turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf",
)
_ADA = Document(
    "NVIDIA Ada GPU Architecture, v2.1",
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf",
)
_L4 = Document("NVIDIA L4 datasheet", "https://resources.nvidia.com/en-us-l4/l4-datasheet")
_A10G = Document(
    "NVIDIA A10G datasheet for AWS",
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
)
_AMPERE = Document(
    "NVIDIA A100 Tensor Core GPU Architecture",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf",
)
_A100 = Document(
    "NVIDIA A100 datasheet",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-nvidia-us-2188504-web.pdf",
)
_HOPPER = Document(
    "NVIDIA H100 Tensor Core GPU Architecture",
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper",
)
_H100 = Document(
    "NVIDIA H100 datasheet",
    "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
)
_H200 = Document(
    "NVIDIA H200 datasheet",
    "https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/"
    "hpc-datasheet-sc23-h200",
)
_BLACKWELL = Document(
    "NVIDIA Blackwell datasheet, column HGX B200",
    "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet",
)
_BLACKWELL_TUNING = Document(
    "CUDA Blackwell Tuning Guide",
    "https://docs.nvidia.com/cuda/blackwell-tuning-guide/index.html",
)
_RTX_BLACKWELL = Document(
    "NVIDIA RTX Blackwell GPU Architecture",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf",
)

_A100_PEAKS = Peaks(19.5 * TERA, tf32=156 * TERA, fp16=312 * TERA, bf16=312 * TERA)

_ALL = (
    Card(
        "Tesla T4",
        "t4",
        75,
        # A datasheet says 300 GB/s. 320 is kept: the product brief gives it too, with the clock and
        # the width that make it: twice 5001 MHz, 256 bits.
        320 * GIGA,
        Peaks(8.1 * TERA, fp16=65 * TERA),
        Sources(_TURING, _TURING, _TURING),
        sms=40,
        l2_bytes=4 * MIB,
        boost_clock_hz=1.59e9,
    ),
    Card(
        "NVIDIA L4",
        "l4",
        89,
        300 * GIGA,
        # Halved but for fp32: the datasheet's 120, 242, 242 and 485 are with sparsity.
        Peaks(30.3 * TERA, 60 * TERA, 121 * TERA, 121 * TERA, 242.5 * TERA),
        Sources(_L4, _L4, _ADA),
        sms=58,
        l2_bytes=48 * MIB,
        boost_clock_hz=2.04e9,
    ),
    # Made for AWS, and not an A10: its tensor cores sum in fp32 at half that card's rate. The
    # datasheet gives neither SMs nor L2 nor a clock.
    Card(
        "NVIDIA A10G",
        "a10g",
        86,
        600 * GIGA,
        Peaks(35 * TERA, tf32=35 * TERA, fp16=70 * TERA, bf16=70 * TERA),
        Sources(_A10G, _A10G, _A10G),
    ),
    Card(
        "NVIDIA A100-SXM4-40GB",
        "a100-40gb",
        80,
        1555 * GIGA,
        _A100_PEAKS,
        Sources(_AMPERE, _AMPERE, _AMPERE),
        sms=108,
        l2_bytes=40 * MIB,
        boost_clock_hz=1.41e9,
    ),
    Card(
        "NVIDIA A100-SXM4-80GB",
        "a100-80gb",
        80,
        2039 * GIGA,
        _A100_PEAKS,
        Sources(_A100, _AMPERE, _AMPERE),
        sms=108,
        l2_bytes=40 * MIB,
        boost_clock_hz=1.41e9,
    ),
    Card(
        "NVIDIA H100 80GB HBM3",
        "h100-sxm",
        90,
        3.35 * TERA,
        Peaks(66.9 * TERA, 494.7 * TERA, 989.4 * TERA, 989.4 * TERA, 1978.9 * TERA),
        Sources(_H100, _HOPPER, _HOPPER),
        sms=132,
        l2_bytes=50 * MIB,
        boost_clock_hz=1.98e9,  # of plain arithmetic; the tensor peaks are at 1.83 GHz
    ),
    Card(
        "NVIDIA H100 PCIe",
        "h100-pcie",
        90,
        2 * TERA,
        # Halved but for fp32: the datasheet's 756, 1513, 1513 and 3026 are with sparsity.
        Peaks(51.2 * TERA, 378 * TERA, 756.5 * TERA, 756.5 * TERA, 1513 * TERA),
        Sources(_H100, _H100, _HOPPER),
        sms=114,
        l2_bytes=50 * MIB,
        boost_clock_hz=1.755e9,
    ),
    Card(
        "NVIDIA H200",
        "h200",
        90,
        4.8 * TERA,
        # Halved but for fp32: the datasheet's 989, 1979, 1979 and 3958 are with sparsity.
        Peaks(67 * TERA, 494.5 * TERA, 989.5 * TERA, 989.5 * TERA, 1979 * TERA),
        Sources(_H200, _H200, _H200),  # which gives neither SMs nor L2 nor a clock
    ),
    Card(
        "NVIDIA B200",
        "b200",
        100,
        # The architecture's technical brief of 2024 said 8 TB/s and 80 TFLOP/s in fp32; the later
        # datasheet's figures, of the card as it is sold, are kept.
        7.7 * TERA,
        # Halved but for fp32: the datasheet's 2200, 4500, 4500 and 9000 are with sparsity.
        Peaks(75 * TERA, 1100 * TERA, 2250 * TERA, 2250 * TERA, 4500 * TERA),
        Sources(_BLACKWELL, _BLACKWELL, _BLACKWELL_TUNING),  # neither SMs nor a clock
        l2_bytes=126 * MIB,
    ),
    Card(
        "NVIDIA GeForce RTX 4090",
        "rtx-4090",
        89,
        1008 * GIGA,
        Peaks(82.6 * TERA, 82.6 * TERA, 165.2 * TERA, 165.2 * TERA, 330.3 * TERA),
        Sources(_ADA, _ADA, _ADA),
        sms=128,
        l2_bytes=72 * MIB,
        boost_clock_hz=2.52e9,
    ),
    Card(
        "NVIDIA GeForce RTX 5090",
        "rtx-5090",
        120,
        1792 * GIGA,
        Peaks(104.8 * TERA, 104.8 * TERA, 209.5 * TERA, 209.5 * TERA, 419 * TERA),
        Sources(_RTX_BLACKWELL, _RTX_BLACKWELL, _RTX_BLACKWELL),
        sms=170,
        l2_bytes=96 * MIB,
        boost_clock_hz=2.407e9,
    ),
)

CARDS: Mapping[str, Card] = {card.slug: card for card in _ALL}
