"""Explorers: widgets whose logic lives in the page, so that they answer without a kernel."""

from kernels.lab.drawing.explorers.lifetimes import LifetimesExplorer, lifetimes_explorer
from kernels.lab.drawing.explorers.roofline import RooflineExplorer
from kernels.lab.drawing.explorers.sectors import SectorExplorer
from kernels.lab.drawing.explorers.stepper import AttentionStepper, attention_stepper
from kernels.lab.drawing.explorers.tiler import TilerExplorer

__all__ = [
    "AttentionStepper",
    "LifetimesExplorer",
    "RooflineExplorer",
    "SectorExplorer",
    "TilerExplorer",
    "attention_stepper",
    "lifetimes_explorer",
]
