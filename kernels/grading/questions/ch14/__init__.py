"""Exercise set 14, the fused encoder layer: from its bytes to its launches' time."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch14.between import grade_between
from kernels.grading.questions.ch14.bound import grade_bound
from kernels.grading.questions.ch14.epilogue import grade_epilogue
from kernels.grading.questions.ch14.heads import grade_heads
from kernels.grading.questions.ch14.ledgers import grade_ledgers, sample_ledgers
from kernels.grading.questions.ch14.masks import grade_mask_bytes
from kernels.grading.questions.ch14.moved import grade_moved
from kernels.grading.questions.ch14.places import grade_places, sample_task
from kernels.grading.questions.ch14.strides import grade_strides
from kernels.grading.questions.ch14.workspace import grade_workspace

__all__ = ["sample_ledgers", "sample_task"]

register(
    Question(
        id="14.1",
        title="Twelve launches and seven",
        kind="predict",
        points=2,
        takes="layer_bytes(batch, length, e, i, itemsize)",
        hint="Go through a table row by row, and write down multiples of E and of I: what the "
        "launch reads, and what it writes.",
        more_hints=(
            "The first row is 2 · E: x read, n written. The second is 4 · E.",
            "By operators GELU is 2 · I. The two launches that add read 2 · E and write E.",
        ),
        grade=grade_moved,
    )
)
register(
    Question(
        id="14.2",
        title="Where is the norm?",
        kind="read",
        points=3,
        takes="norm_place(ledger)",
        hint="Look for tensors that two launches read. What are they, in a layer?",
        more_hints=(
            "A residual is read twice: by the launch that begins its half of the layer, and by the "
            "one that adds it.",
            "Is what the first of the two writes as large as the residual? If not, who wrote the "
            "residual: a launch that reads one tensor, or a sum of two?",
        ),
        grade=grade_ledgers,
    )
)
register(
    Question(
        id="14.3",
        title="Heads without a copy",
        kind="predict",
        points=2,
        takes="head_strides(length, heads, d, by_head)",
        hint="In the two rows that the page shows, count from q0 to q1, to k0 and to v0.",
        more_hints=(
            "A row has 3 · heads · d numbers in either layout.",
            "With by_head a head's neighbour is behind its queries, keys and values: 3 · d.",
        ),
        grade=grade_strides,
    )
)
register(
    Question(
        id="14.4",
        title="Right for one head",
        kind="fix",
        points=4,
        takes="attend(qkv, padding, heads)",
        hint="What can a single head not show? And what does True say in padding, what in "
        "attn_mask?",
        more_hints=(
            "The rows are those of 14.3 without by_head: (3, heads, d), and not (heads, 3, d).",
            "attn_mask of bool is True for what is seen. And what comes out has heads in front of "
            "tokens.",
        ),
        grade=grade_heads,
    )
)
register(
    Question(
        id="14.5",
        title="A mask by sequence, or a table",
        kind="predict",
        points=3,
        takes="mask_bytes(batch, heads, length, e, i, itemsize, block_m)",
        hint="For each of the four: which of batch, heads and length is it multiplied by, and how "
        "often?",
        more_hints=(
            "A head has triton.cdiv(length, block_m) programs, and each asks for length bools.",
            "heads · length² against (18 · E + 2 · I) · length: batch and itemsize are in both.",
        ),
        grade=grade_mask_bytes,
    )
)
register(
    Question(
        id="14.6",
        title="A residual behind the sum",
        kind="fix",
        points=4,
        takes="linear_residual(x, weight, bias, residual)",
        hint="What does a square weight not show? What does fp32 not show?",
        more_hints=(
            "How far apart are two rows of the residual?",
            "Two numbers that nearly cancel leave what each was rounded by. Which of the two was "
            "rounded without need?",
        ),
        grade=grade_epilogue,
    )
)
register(
    Question(
        id="14.7",
        title="Between two products",
        kind="write",
        points=6,
        takes="bias_dropout_add_norm(y, bias, residual, weight, norm_bias, seed_offset, p, eps)",
        hint="A program takes a row. First make h, all of it in registers; store it; then "
        "normalise what you have.",
        more_hints=(
            "numbers_at(seed_offset_ptr, row * n_cols + cols) gives each element's number: keep "
            "where it is drop_below or more.",
            "Lanes beyond n_cols hold 0 in h, and -mean once the mean is taken away: put 0 there "
            "before you square.",
        ),
        grade=grade_between,
    )
)
register(
    Question(
        id="14.8",
        title="What lives at once",
        kind="predict",
        points=3,
        takes="workspace_bytes(batch, length, e, i, itemsize)",
        hint="Write beside each launch what lives while it runs: what it reads, what it writes, "
        "and what passes by.",
        more_hints=(
            "h is written by one launch, and read by the norm and by the last launch: it lives in "
            "between.",
            "A list of the tensors for each launch, the sum of each list, the largest sum. Which "
            "one it is depends on E and I.",
        ),
        grade=grade_workspace,
    )
)
register(
    Question(
        id="14.9",
        title="A place for each",
        kind="optimise",
        points=5,
        takes="places(launches, sizes)",
        hint="First find out, for each tensor, the launch that writes it and the last that reads "
        "it. Two tensors may share bytes if these spans share no launch.",
        more_hints=(
            "In which order do you give out places? One that comes early and is small may stand in "
            "the way of a large one.",
            "The largest first, of two of one size the one that is written first, each at the "
            "lowest place that is free of all placed ones whose spans meet its own. What the last "
            "launch writes lives to the end.",
        ),
        grade=grade_places,
    )
)
register(
    Question(
        id="14.10",
        title="When launches are what takes time",
        kind="explain",
        points=3,
        takes="launch_bound(gbs, launch_ns, e, i, itemsize)",
        hint="While the launches are made, the memory could move launches · launch_ns · gbs bytes. "
        "The weights take a part of that.",
        more_hints=(
            "The weights: 3 · E² + E² + 2 · E · I numbers.",
            "What is left, divided by the bytes of a token in 14.1, rounded down; 0 if nothing is "
            "left.",
        ),
        grade=grade_bound,
    )
)
