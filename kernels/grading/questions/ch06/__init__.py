"""Exercise set 06, fused norms in Triton: bytes, a clinic, tiles of rows, states that merge."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch06.clinic import grade_illness, ward
from kernels.grading.questions.ch06.heads import HEAD_SPEED, grade_head_norm
from kernels.grading.questions.ch06.limits import Row, grade_limit
from kernels.grading.questions.ch06.predict import grade_add_norm_bytes
from kernels.grading.questions.ch06.residual import grade_add_rms_norm
from kernels.grading.questions.ch06.strides import ORDER_SPEED, grade_any_order
from kernels.grading.questions.ch06.wide import grade_wide_normalize, grade_wide_softmax

__all__ = ["Row", "ward"]  # for the notebook of the set

register(
    Question(
        id="06.1",
        title="The bytes of two outputs",
        kind="predict",
        points=2,
        takes="add_norm_bytes(rows, cols, itemsize)",
        hint="Write a line for each tensor of each launch: its shape, its bytes an element, read "
        "or written.",
        more_hints=("Which of these lines does one launch not need?",),
        grade=grade_add_norm_bytes,
    )
)
register(
    Question(
        id="06.2",
        title="The clinic",
        kind="read",
        points=4,
        takes="illness(examine)",
        hint="Make a table: a line for each illness, a column for each experiment, and in it "
        "whether the output is right.",
        more_hints=(
            "Widths that are a power of two and widths that are not, a mean of 0 and one that is "
            "large, fp32 and fp16: change one of them at a time.",
        ),
        grade=grade_illness,
    )
)
register(
    Question(
        id="06.3",
        title="A variance that holds far from 0",
        kind="fix",
        points=3,
        takes="wide_normalize(x, eps)",
        hint="In one tile you can centre before you square. What does it take to join the state "
        "of the tile with that of the columns before it?",
        more_hints=(
            "The state is (count, mean, sum of squared distances). It is the merge of 02.3.",
        ),
        grade=grade_wide_normalize,
    )
)
register(
    Question(
        id="06.4",
        title="Many narrow rows",
        kind="write",
        points=3,
        takes="head_norm(x, weight, eps)",
        hint="Rows are a column of numbers, [:, None], and columns a row of numbers, [None, :]: "
        "the tile of 03.6, with a sum along one axis.",
        more_hints=("tl.sum(x * x, axis=1, keep_dims=True) is one number for each row.",),
        grade=grade_head_norm,
        speed=HEAD_SPEED,
    )
)
register(
    Question(
        id="06.5",
        title="A residual in fp32",
        kind="write",
        points=3,
        takes="add_rms_norm(x, residual, weight, eps)",
        hint="Which of the four matrices are in which dtype? Start with the two loads and the "
        "store of h.",
        more_hints=("h is stored and stays in a variable: the squares are those of the variable.",),
        grade=grade_add_rms_norm,
    )
)
register(
    Question(
        id="06.6",
        title="A softmax wider than a block",
        kind="write",
        points=4,
        takes="wide_softmax(x)",
        hint="After some tiles you know m, their largest element, and s, the sum of exp(x - m). "
        "The next tile has a larger element: what happens to s?",
        more_hints=(
            "s takes the factor exp(old m - new m) before anything is added to it.",
            "-inf - (-inf) is nan. A first m of -3e38, about the lowest that fp32 has, never makes "
            "that difference.",
        ),
        grade=grade_wide_softmax,
    )
)
register(
    Question(
        id="06.7",
        title="Any order of memory",
        kind="optimise",
        points=3,
        takes="norm_any_order(x, weight, bias, eps)",
        hint="x.stride() has four numbers; the last is 1. Which batch, head and position is row r "
        "of y?",
        more_hints=(
            "With H heads and P positions, row r is position r % P, head r // P % H and batch "
            "r // (P · H). y is contiguous, x need not be.",
        ),
        grade=grade_any_order,
        speed=ORDER_SPEED,
    )
)
register(
    Question(
        id="06.8",
        title="What a norm waits for",
        kind="explain",
        points=3,
        takes="limit(row)",
        hint="Ask for the launch first: how much longer is a call than the device's work?",
        more_hints=(
            "How long would a copy take for the bytes that DRAM moved? A copy of the ideal bytes "
            "takes copy_us.",
        ),
        grade=grade_limit,
    )
)
