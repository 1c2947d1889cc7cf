"""How the chains' kernels run: blocks, warps, programs, and what chose them.

What `python -m kernels.lab tune OP` compares stands in `tuning`.
"""

from __future__ import annotations

from kernels.ops.shared.blocks import Block

# Columns that a program of a gated product takes, and its warps: 16 elements of each tensor a
# thread forward, 8 back, where three tensors are read. Not timed yet.
GATED_FORWARD = Block(2048, 4)
GATED_BACKWARD = Block(1024, 4)
