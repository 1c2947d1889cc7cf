"""Exercise set 03, First kernels: from the numbers of a launch to a LayerNorm of one's own."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch03.edges import grade_extremes
from kernels.grading.questions.ch03.elements import ADD_SPEED, COPY_SPEED, grade_add, grade_copy
from kernels.grading.questions.ch03.launches import grade_cause, grade_launch
from kernels.grading.questions.ch03.norms import SPEED, grade_fused_passes
from kernels.grading.questions.ch03.tiles import (
    SUM_SPEED,
    TRANSPOSE_SPEED,
    grade_row_sum,
    grade_transpose,
)
from kernels.grading.questions.kits.layer_norm import SPEED as LAYER_NORM_SPEED
from kernels.grading.questions.kits.layer_norm import grade_layer_norm

register(
    Question(
        id="03.1",
        title="The numbers of a launch",
        kind="predict",
        points=2,
        takes="launch_numbers(n, BLOCK)",
        hint="Draw a launch over 5 elements with BLOCK = 4: which lanes does each program have, "
        "and which of them are switched off?",
        more_hints=("Every load and every store has BLOCK lanes in every program, masked or not.",),
        grade=grade_launch,
    )
)
register(
    Question(
        id="03.2",
        title="What the ledger tells",
        kind="read",
        points=2,
        takes="cause(right, other)",
        hint="Write down for each fault which numbers of the ledger change, and which stay.",
        more_hints=(
            "A kernel that loads twice has more masked lanes too, for it has more lanes: ask for "
            "the bytes of x before you ask for lanes.",
        ),
        grade=grade_cause,
    )
)
register(
    Question(
        id="03.3",
        title="A copy",
        kind="write",
        points=2,
        takes="my_copy(x)",
        hint="A program's offsets are tl.program_id(0) * BLOCK + tl.arange(0, BLOCK).",
        more_hints=("The load and the store take the same mask, offsets < n.",),
        grade=grade_copy,
        speed=COPY_SPEED,
    )
)
register(
    Question(
        id="03.4",
        title="An addition with two faults",
        kind="fix",
        points=2,
        takes="my_add(x, y)",
        hint="How many programs run for n = 1? And for n = 600: which elements does program 2 "
        "load, and which of its lanes does the mask leave on?",
        more_hints=("One fault hides the other: mend the grid, and the mask shows.",),
        grade=grade_add,
        speed=ADD_SPEED,
    )
)
register(
    Question(
        id="03.5",
        title="The sum of a row",
        kind="write",
        points=3,
        takes="row_sum(x)",
        hint="Row r begins at offset r · n_cols, and a block takes a power of two of lanes.",
        more_hints=("Convert to fp32 before the sum, and load 0 in masked lanes.",),
        grade=grade_row_sum,
        speed=SUM_SPEED,
    )
)
register(
    Question(
        id="03.6",
        title="A transpose in tiles",
        kind="write",
        points=3,
        takes="my_transpose(x)",
        hint="Write down the offset of element [i, j] in x, and the offset of the same number in "
        "the output.",
        more_hints=(
            "rows[:, None] and cols[None, :] make a tile of offsets, and a mask of the same shape.",
        ),
        grade=grade_transpose,
        speed=TRANSPOSE_SPEED,
    )
)
register(
    Question(
        id="03.7",
        title="Three passes into one",
        kind="optimise",
        points=4,
        takes="my_normalize(x, eps)",
        hint="What does the second loop load that the first had not loaded already?",
        more_hints=(
            "With a block as wide as the row there is no loop, and x stays in one variable.",
        ),
        grade=grade_fused_passes,
        speed=SPEED,
    )
)
register(
    Question(
        id="03.8",
        title="A LayerNorm of your own",
        kind="write",
        points=4,
        takes="my_layer_norm(x, weight, bias, eps)",
        hint="The load and the store are those of your copy, the two sums those of your row sum.",
        more_hints=("Which value does x - mean have in a masked lane?",),
        grade=grade_layer_norm,
        speed=LAYER_NORM_SPEED,
    )
)
register(
    Question(
        id="03.9",
        title="Same bytes, other lanes",
        kind="explain",
        points=2,
        takes="extremes(n, BLOCK)",
        hint="Bytes count elements, lanes count tiles. How many tiles does a matrix of one row "
        "take, and how many one of 33 rows with BLOCK = 32?",
        more_hints=(
            "List every shape first: n_rows runs over the divisors of n.",
            "A launch has 2 * tiles * BLOCK * BLOCK lanes, and 2 * n of them are switched on.",
        ),
        grade=grade_extremes,
    )
)
