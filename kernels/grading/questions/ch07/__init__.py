"""Exercise set 07, The norms' backward: from its bytes to dx and dweight in one pass."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch07.designs import backward_ledger, grade_design
from kernels.grading.questions.ch07.dx import (
    LAYER_NORM_SPEED,
    RMS_SPEED,
    grade_layer_norm_dx,
    grade_rms_dx,
)
from kernels.grading.questions.ch07.one_pass import grade_one_pass
from kernels.grading.questions.ch07.predict import grade_bytes, launch_backward
from kernels.grading.questions.ch07.reuse import grade_moved
from kernels.grading.questions.ch07.sums import (
    DWEIGHT_SPEED,
    PARTS_SPEED,
    grade_dweight,
    grade_sum_parts,
)
from kernels.grading.questions.ch07.upstream import grade_upstream

__all__ = ["backward_ledger", "launch_backward"]  # for the notebook of the set

register(
    Question(
        id="07.1",
        title="The bytes of a backward pass",
        kind="predict",
        points=2,
        takes="backward_bytes(rows, cols, itemsize, programs)",
        hint="Write down each tensor of each launch with its shape, its dtype, and whether it is "
        "read or written.",
        more_hints=(
            "The ledger counts distinct bytes: what every program reads counts once in a launch.",
            "A buffer of partial sums has programs · cols numbers in fp32, and there are two.",
        ),
        grade=grade_bytes,
    )
)
register(
    Question(
        id="07.2",
        title="A gradient that hides a fault",
        kind="read",
        points=3,
        takes="upstream(hidden, x_hat, weight)",
        hint="Build g first, from a constant, x_hat and random numbers. Then dy = g / weight.",
        more_hints=(
            "mean(x_hat) is 0 and mean(x_hat²) is 1: adding c · x_hat to g adds c to mean(g · "
            "x_hat) and nothing to mean(g).",
            "For 'no weight': dx is 0 for g = a + b · x_hat. So g and dy give one dx where their "
            "difference is of that form.",
        ),
        grade=grade_upstream,
    )
)
register(
    Question(
        id="07.3",
        title="A dx with three faults",
        kind="fix",
        points=3,
        takes="layer_norm_dx(x, dy, weight, mean, inv_std)",
        hint="What does each line compute in a row of 17 columns, with BLOCK = 32?",
        more_hints=(
            "Compare each mean with the equation: over how many elements, and of which product?",
            "Set other= in each load, and ask which masked lanes reach a sum.",
        ),
        grade=grade_layer_norm_dx,
        speed=LAYER_NORM_SPEED,
    )
)
register(
    Question(
        id="07.4",
        title="RMSNorm's dx",
        kind="write",
        points=3,
        takes="rms_norm_dx(x, dy, weight, inv_rms)",
        hint="The kernel of 07.3 has all that you need, and two things that you don't.",
        more_hints=("x_hat is x · inv_rms, and inv_rms is one number a row.",),
        grade=grade_rms_dx,
        speed=RMS_SPEED,
    )
)
register(
    Question(
        id="07.5",
        title="The finishing launch",
        kind="write",
        points=3,
        takes="sum_parts(parts)",
        hint="A program takes BLOCK columns, and loops over the rows of parts.",
        more_hints=(
            "Take a tile of rows at a time: add tiles to an fp32 tile of sums, and add up its rows "
            "with tl.sum(..., axis=0) once, behind the loop.",
        ),
        grade=grade_sum_parts,
        speed=PARTS_SPEED,
    )
)
register(
    Question(
        id="07.6",
        title="dweight without atomics",
        kind="write",
        points=4,
        takes="weight_gradient(x, dy, inv_rms, programs)",
        hint="A program's sums are a block of columns in fp32, outside of its loop over rows.",
        more_hints=(
            "range(first, last) with first = program · rows_each and last = min(first + rows_each, "
            "n_rows) is empty for a program without rows.",
            "The store of the partial sums stands behind the loop, at program · n_cols + cols.",
        ),
        grade=grade_dweight,
        speed=DWEIGHT_SPEED,
    )
)
register(
    Question(
        id="07.7",
        title="dx and dweight in one pass",
        kind="optimise",
        points=4,
        takes="rms_norm_backward(x, dy, weight, inv_rms, programs)",
        hint="Inside the loop of 07.6 a whole row of x and dy is in registers. What else does dx "
        "need?",
        more_hints=(
            "dweight takes dy · x_hat, dx takes g = dy · weight: one load of dy serves both.",
            "weight is the same for all rows: load it before the loop.",
        ),
        grade=grade_one_pass,
    )
)
register(
    Question(
        id="07.8",
        title="Three designs and their prices",
        kind="explain",
        points=3,
        takes="design(ledger)",
        hint="Which launches read x? Which buffer is both read and written, and where?",
        more_hints=(
            "step.tensors lists what a step touched; a buffer's name begins with 'buffer'.",
            "The launch that writes dx is in every design. The price is what stands beside it.",
        ),
        grade=grade_design,
    )
)
register(
    Question(
        id="07.9",
        title="A second reading in time",
        kind="predict",
        points=3,
        takes="moved_bytes(readings, capacity)",
        hint="Keep the blocks in the order of their last reading. What changes when one is found?",
        more_hints=(
            "A dict keeps the order in which keys came: delete a block and put it in again, and it "
            "is the newest.",
            "Before a block comes, the oldest leave while what is there and the new one are more "
            "than capacity. All of capacity may be used.",
        ),
        grade=grade_moved,
    )
)
