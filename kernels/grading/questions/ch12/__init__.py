"""Exercise set 12, FlashAttention: from two halves of a softmax to keys that programs share."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch12.causal import CAUSAL_SPEED, grade_causal
from kernels.grading.questions.ch12.doubled import grade_doubled
from kernels.grading.questions.ch12.faulty import grade_fault, ward
from kernels.grading.questions.ch12.flops import grade_flops
from kernels.grading.questions.ch12.padded import grade_padded
from kernels.grading.questions.ch12.predict import grade_requested
from kernels.grading.questions.ch12.roofs import grade_roofs
from kernels.grading.questions.ch12.splits import SPLIT_SPEED, grade_splits
from kernels.grading.questions.ch12.states import grade_merge, grade_merge_outputs

__all__ = ["ward"]

register(
    Question(
        id="12.1",
        title="Two halves of a softmax",
        kind="write",
        points=2,
        takes="merge(a, b)",
        hint="Σ exp(s - m) about one maximum, times exp(m - M), is the sum about another one, M.",
        more_hints=(
            "M is the larger of the two maxima, so each half's factor, exp(its m - M), is at most "
            "1.",
            "Two empty halves have M = -inf. Return the empty state before you take a difference.",
        ),
        grade=grade_merge,
    )
)
register(
    Question(
        id="12.2",
        title="Two outputs and their L",
        kind="write",
        points=3,
        takes="merge_outputs(a, b)",
        hint="The keys of a half weigh exp(L) together. What do both halves weigh?",
        more_hints=(
            "A half's share of the output is exp(its L - the common L): the two add up to 1.",
            "log(exp(x) + exp(y)) is M + log(exp(x - M) + exp(y - M)), with the larger one as M.",
        ),
        grade=grade_merge_outputs,
    )
)
register(
    Question(
        id="12.3",
        title="Does flash do fewer FLOPs?",
        kind="predict",
        points=3,
        takes="row_flops(n, d, block_n)",
        hint="A line of code at a time: over how many numbers does it go, and how often?",
        more_hints=(
            "The products are 4 · n · d either way, and four lines go over all scores in both.",
            "Once a block: 1 for the new maximum, 2 for the correction, 2 for l, d for acc.",
        ),
        grade=grade_flops,
    )
)
register(
    Question(
        id="12.4",
        title="What tiles of queries ask for",
        kind="predict",
        points=3,
        takes="requested_bytes(n, d, block_m, block_n, itemsize, causal)",
        hint="Add up over the tiles of queries: how many keys does this one ask for?",
        more_hints=(
            "A causal tile ends at min(first + block_m, n), taken up to whole blocks of keys, and "
            "never beyond n.",
        ),
        grade=grade_requested,
    )
)
register(
    Question(
        id="12.5",
        title="Twice the length",
        kind="predict",
        points=2,
        takes="when_doubled(n, d, block_m)",
        hint="Write down each of the three for n, in elements, and once more for 2n.",
        more_hints=(
            "Requests: q and o once, and n / block_m tiles of queries that walk over k and v.",
        ),
        grade=grade_doubled,
    )
)
register(
    Question(
        id="12.6",
        title="Which line is wrong?",
        kind="read",
        points=4,
        takes="fault(attend)",
        hint="Write the right attention of one query in plain Python first. Then look for inputs "
        "on which one fault alone makes a difference.",
        more_hints=(
            "One whole block of four keys has no lane left over, and no correction to make.",
            "Two blocks, the second with larger scores, and values that are all 1: is the output "
            "1, above, or below?",
        ),
        grade=grade_fault,
    )
)
register(
    Question(
        id="12.7",
        title="Where a mask belongs",
        kind="fix",
        points=3,
        takes="padded_attention(q, k, v, hidden)",
        hint="Which scores should the maximum be taken over? Put the mask in front of it.",
        more_hints=(
            "A block that is hidden as a whole has a maximum of -inf. What is -inf - (-inf)?",
            "A query that sees no key has l = 0 at the end: divide by 1 there.",
        ),
        grade=grade_padded,
    )
)
register(
    Question(
        id="12.8",
        title="Causal, up to the diagonal",
        kind="write",
        points=6,
        takes="causal_attention(q, k, v)",
        hint="Begin with the kernel of 12.7: a head's first element, the causal mask, and where "
        "the loop ends.",
        more_hints=(
            "The last query of a tile is min((tile + 1) * BLOCK_M, N) - 1: no key behind it is "
            "seen.",
            "Tiles of 64 queries and 32 keys spill with 4 warps at d = 64. num_warps=8 gives a "
            "thread half of them.",
        ),
        grade=grade_causal,
        speed=CAUSAL_SPEED,
    )
)
register(
    Question(
        id="12.9",
        title="Few queries, many keys",
        kind="optimise",
        points=5,
        takes="split_attention(q, k, v, splits)",
        hint="A split's program is that of 12.7 over its own share of the keys. It stores acc / l "
        "and m + log(l).",
        more_hints=(
            "The second kernel takes a query: all its splits' L, then their shares, exp(L - the "
            "largest L) over the sum of these, then the outputs.",
            "A split without keys has m = -inf and l = 0. Let it store zeros, and L = -inf: its "
            "share is 0.",
        ),
        grade=grade_splits,
        speed=SPLIT_SPEED,
    )
)
register(
    Question(
        id="12.10",
        title="Which roof?",
        kind="explain",
        points=3,
        takes="leaves_roofs(tflops, dram_gbs, l2_gbs, d, itemsize)",
        hint="Set the time of the FLOPs equal to that of the bytes, and solve for n.",
        more_hints=(
            "4 n² d FLOPs and 4 n d · itemsize bytes: d cancels.",
            "For the three launches divide the FLOPs by all bytes, and let n grow: what is left?",
        ),
        grade=grade_roofs,
    )
)
