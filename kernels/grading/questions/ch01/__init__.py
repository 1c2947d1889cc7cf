"""Exercise set 01, memory and the roofline: count bytes, find bounds, cut a chain into kernels."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch01.cause import grade_cause
from kernels.grading.questions.ch01.fusion import grade_fusion
from kernels.grading.questions.ch01.least_time import grade_roofline
from kernels.grading.questions.ch01.ledger import grade_passes
from kernels.grading.questions.ch01.predicted_bytes import grade_add, grade_bound, grade_share
from kernels.grading.questions.ch01.warps import grade_warps

# What PyTorch's fake tensors import, which the ledgers here are counted on.
_FAKE_TENSORS = ("torch._dynamo",)

register(
    Question(
        id="01.1",
        title="The bytes of an addition",
        kind="predict",
        points=1,
        takes="add_bytes(rows, cols, itemsize)",
        hint="Three tensors take part. Write down the shape of each, and whether it is read or "
        "written.",
        more_hints=("How often must the bias come from memory, if the chip can keep it?",),
        grade=grade_add,
        needs=_FAKE_TENSORS,
    )
)
register(
    Question(
        id="01.2",
        title="What a product waits for",
        kind="predict",
        points=2,
        takes="product_bound(m, k, n, itemsize, bandwidth_gbs, peak_tflops)",
        hint="One number of the result takes k multiply-adds. Then count the numbers of all three "
        "matrices.",
        more_hints=(
            "Put the card's two figures into bytes and FLOPs a second before you divide them.",
        ),
        grade=grade_bound,
        needs=_FAKE_TENSORS,
    )
)
register(
    Question(
        id="01.3",
        title="How often a tensor is read",
        kind="read",
        points=2,
        takes="passes_over(lines, sizes, name)",
        hint="Take the ledger on the page and do x by hand: which lines name it, and how many "
        "bytes do they read together?",
        more_hints=("A line's third entry is what it reads, its fourth what it writes.",),
        grade=grade_passes,
        needs=_FAKE_TENSORS,
    )
)
register(
    Question(
        id="01.4",
        title="A share that is too low",
        kind="fix",
        points=2,
        takes="share_of_roof(rows, cols, itemsize, time_us, bandwidth_gbs)",
        hint="Go through the lines and say the unit of each name.",
        more_hints=("How many tensors does y = a + b move?",),
        grade=grade_share,
        needs=_FAKE_TENSORS,
    )
)
register(
    Question(
        id="01.5",
        title="Time and rate of a chain",
        kind="write",
        points=3,
        takes="roofline(kernels, bandwidth, peak)",
        hint="Write down for one kernel how long its bytes take alone, and how long its FLOPs.",
        more_hints=(
            "Two kernels: when does the second begin? Only then think of the whole chain's rate.",
        ),
        grade=grade_roofline,
    )
)
register(
    Question(
        id="01.6",
        title="Warps that keep the memory busy",
        kind="write",
        points=2,
        takes="warps_needed(bandwidth_gbs, latency_ns, sms, loads, width)",
        hint="First the bytes on their way for the whole card, then for one multiprocessor, then "
        "what one warp brings along.",
        more_hints=("Round once, at the end, and in whole numbers: -(-a // b) rounds up.",),
        grade=grade_warps,
    )
)
register(
    Question(
        id="01.7",
        title="Where to cut a chain",
        kind="optimise",
        points=4,
        takes="best_plan(steps, sizes, results, most)",
        hint="Write the bytes of one plan first, and try it on the page's two plans: 30,000 and "
        "26,000.",
        more_hints=(
            "Between two neighbouring steps there is a cut or none. There are few enough plans to "
            "try them all.",
            "Give your count of bytes the two plans of the verdict. If it finds both numbers, the "
            "search is wrong; if not, the count is.",
        ),
        grade=grade_fusion,
    )
)
register(
    Question(
        id="01.8",
        title="Why it took so long",
        kind="explain",
        points=3,
        takes="cause(row)",
        hint="Work out the three floors of a row and compare the longest with the time.",
        more_hints=("Look at the three counts of bytes only if DRAM's floor is the longest.",),
        grade=grade_cause,
    )
)
