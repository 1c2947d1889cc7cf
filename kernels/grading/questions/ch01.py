"""Exercise set 01, memory and the roofline: count bytes, find bounds, cut a chain into kernels."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch01_bytes import grade_add, grade_bound, grade_share
from kernels.grading.questions.ch01_cause import grade_cause
from kernels.grading.questions.ch01_fusion import grade_fusion
from kernels.grading.questions.ch01_ledger import grade_passes
from kernels.grading.questions.ch01_time import grade_roofline, grade_warps

# What PyTorch's fake tensors import, which the ledgers here are counted on.
_FAKE_TENSORS = ("torch._dynamo",)

register(
    Question(
        id="01.1",
        title="The bytes of an add",
        kind="predict",
        points=1,
        takes="add_bytes(rows, cols, itemsize)",
        hint="Three tensors take part. Write down the shape of each and whether it is read or "
        "written.",
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
        hint="One result of the product takes k multiply-adds. Put the card's two figures into "
        "bytes and FLOPs a second before you divide them.",
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
        hint="Go through the lines and say the unit of each name. Then count the tensors of "
        "y = a + b.",
        grade=grade_share,
        needs=_FAKE_TENSORS,
    )
)
register(
    Question(
        id="01.5",
        title="Time and rate under a roof",
        kind="write",
        points=2,
        takes="roofline(flops, moved, bandwidth, peak)",
        hint="Write down how long the bytes take alone, and how long the FLOPs. For the rate, "
        "look at the two parts of the roof.",
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
        hint="Write a function for the bytes of one plan first, and try it on the page's chain by "
        "hand. There are few enough plans to try them all.",
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
        hint="Work out the three floors of a row and compare the longest with the time. Look at "
        "the bytes only if DRAM's floor is the longest.",
        grade=grade_cause,
    )
)
