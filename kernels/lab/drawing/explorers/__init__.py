"""Explorers: widgets whose logic lives in the page, so that they answer without a kernel."""

from kernels.lab.drawing.explorers.roofline import RooflineExplorer
from kernels.lab.drawing.explorers.sectors import SectorExplorer

__all__ = ["RooflineExplorer", "SectorExplorer"]
