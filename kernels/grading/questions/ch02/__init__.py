"""Exercise set 02, LayerNorm by hand: eager's bytes, fused kernels, and the faults of both."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch02.add_norm import grade_add_norm
from kernels.grading.questions.ch02.counterexamples import grade_counterexamples
from kernels.grading.questions.ch02.eager import grade_eager
from kernels.grading.questions.ch02.eager_bytes import grade_bytes
from kernels.grading.questions.ch02.ledgers import grade_saved
from kernels.grading.questions.ch02.merge import grade_merge
from kernels.grading.questions.ch02.rms_norm import RMS_SPEED, WIDEST, grade_rms_norm
from kernels.grading.questions.kits.layer_norm import SPEED, grade_layer_norm

# What PyTorch's fake tensors import.
_FAKE = ("torch._dynamo",)

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
        needs=_FAKE,
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
        speed=SPEED,
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
register(
    Question(
        id="02.4",
        title="What fusing saves",
        kind="read",
        points=3,
        takes="saved(ledger, first, last, keeps)",
        hint="Write down what one launch in place of the group has to read and what it has to "
        "write. All else that the steps move is saved.",
        grade=grade_saved,
        more_hints=(
            "It reads, once, each tensor that the group reads and does not make. It writes each "
            "tensor that the group makes and somebody needs afterwards.",
        ),
        needs=_FAKE,
    )
)
register(
    Question(
        id="02.5",
        title="LayerNorm in fewer bytes",
        kind="optimise",
        points=3,
        takes="lean_layer_norm(x, weight, bias, eps)",
        hint="One operator gives both statistics. What is left to do with a row is to multiply it "
        "by one number and to add another: which two?",
        grade=grade_eager,
        more_hints=(
            "torch.addcmul(a, b, c) is a + b · c, with broadcasting: it serves twice.",
            "In 16 bits, a torch.empty_like(x) given as out= takes the last product without "
            "another pass.",
        ),
        needs=_FAKE,
    )
)
register(
    Question(
        id="02.6",
        title="RMSNorm in one launch",
        kind="write",
        points=3,
        takes="rms_norm(x, weight, eps)",
        hint="It is the kernel of 02.2 without a mean and without bias. What does a masked lane "
        "add to a sum of squares?",
        grade=grade_rms_norm,
        speed=RMS_SPEED,
        more_hints=(
            f"With 4 warps a thread holds {WIDEST // 128} elements of x in the widest row, and as "
            f"many of weight if you load it before the sum: {2 * WIDEST // 128}. How many with "
            "more warps?",
        ),
    )
)
register(
    Question(
        id="02.7",
        title="The residual sum and its norm",
        kind="optimise",
        points=4,
        takes="add_norm(x, residual, weight, bias, eps)",
        hint="Start from the kernel of 02.2. It takes one more load, and one more store.",
        grade=grade_add_norm,
        more_hints=(
            "Convert the sum to the dtype that h has, store that, and convert it back to fp32 for "
            "the statistics: h_ptr.dtype.element_ty is its dtype.",
        ),
    )
)
register(
    Question(
        id="02.8",
        title="A row for each fault",
        kind="explain",
        points=3,
        takes="counterexample(fault, eps)",
        hint="Four things decide: the mean, the spread, the width, and eps. Ask for each fault "
        "which of them it depends on.",
        grade=grade_counterexamples,
        more_hints=(
            "A row of 4096 numbers with mean 0 and spread 1 shows none of the faults. Change one "
            "thing at a time.",
        ),
    )
)
