"""Exercise set 02, LayerNorm by hand: count eager's bytes, fix a fused kernel, merge two states."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch02_bytes import grade_bytes
from kernels.grading.questions.ch02_layer_norm import grade_layer_norm
from kernels.grading.questions.ch02_merge import grade_merge

register(
    Question(
        id="02.1",
        title="The bytes of eager LayerNorm",
        kind="predict",
        points=2,
        takes="eager_bytes(rows, cols, itemsize)",
        hint="Make a table with a line for each operator: what it reads, what it writes, each "
        "with its shape and its bytes an element. Then add up the lines.",
        grade=grade_bytes,
        needs=("torch._dynamo",),  # what PyTorch's fake tensors import
    )
)
register(
    Question(
        id="02.2",
        title="The lanes beyond the row",
        kind="fix",
        points=4,
        takes="my_layer_norm(x, weight, bias, eps)",
        hint="Take a row of 3 elements and write down, lane by lane, what every variable of the "
        "kernel holds.",
        grade=grade_layer_norm,
    )
)
register(
    Question(
        id="02.3",
        title="A state that merges",
        kind="write",
        points=3,
        takes="merge(a, b)",
        hint="Start from the merged mean, then ask how far each half's own mean lies from it.",
        grade=grade_merge,
    )
)
