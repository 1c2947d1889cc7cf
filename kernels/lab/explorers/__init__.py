"""Explorers: widgets whose logic lives in the page, so that they answer without a kernel."""

from kernels.lab.explorers.roofline import RooflineExplorer

__all__ = ["RooflineExplorer"]
