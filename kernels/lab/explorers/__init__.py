"""Explorers: widgets whose logic lives in the page, so that they answer without a kernel."""

from kernels.lab.explorers.roofline import RooflineExplorer
from kernels.lab.explorers.sectors import SectorExplorer

__all__ = ["RooflineExplorer", "SectorExplorer"]
