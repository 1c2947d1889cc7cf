"""Exercise set 11, What fuses around a product: prologues, epilogues, a norm that is folded."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch11.bounds import grade_bounds
from kernels.grading.questions.ch11.folded import FOLDED_SPEED, grade_folded
from kernels.grading.questions.ch11.folding import grade_fold
from kernels.grading.questions.ch11.gelu import GELU_SPEED, grade_epilogue, grade_place
from kernels.grading.questions.ch11.ledgers import grade_ways
from kernels.grading.questions.ch11.predict import grade_asks, grade_saved
from kernels.grading.questions.ch11.prologue import grade_statistics
from kernels.grading.questions.ch11.swiglu import grade_swiglu

register(
    Question(
        id="11.1",
        title="A row normalised by everybody",
        kind="predict",
        points=3,
        takes="normalised(m, n, k, block_m, block_n, itemsize)",
        hint="How many programs have the same rows of x? Each of them needs these rows' "
        "statistics.",
        more_hints=(
            "In one kernel a program reads its rows twice. In two, the first launch reads x once "
            "and stores h once.",
        ),
        grade=grade_asks,
    )
)
register(
    Question(
        id="11.2",
        title="What the L2 had saved already",
        kind="predict",
        points=3,
        takes="saved_bytes(m, n, itemsize, l2_bytes, in_place)",
        hint="Follow one line of h: who writes it, who reads it, and when does it go to DRAM?",
        more_hints=(
            "Held and not in place: the read is free, and h's lines go to DRAM later.",
            "Held and in place: a line of h becomes a line of y before it goes to DRAM.",
        ),
        grade=grade_saved,
    )
)
register(
    Question(
        id="11.3",
        title="Where bias and GELU belong",
        kind="fix",
        points=2,
        takes="my_linear_gelu(x, weight, bias)",
        hint="When is an output's sum whole? Nothing but sums may come before that.",
        more_hints=(
            "There are two faults. In the loop nothing is left but total = tl.dot(...).",
            "Behind the loop: gelu(total + bias[None, :]).",
        ),
        grade=grade_place,
    )
)
register(
    Question(
        id="11.4",
        title="An epilogue within a budget",
        kind="write",
        points=5,
        takes="linear_bias_gelu(x, weight, bias)",
        hint="Begin with the kernel of 11.3: what of it isn't within the budget?",
        more_hints=(
            "Load the bias behind the loop, BLOCK_N of it, with mask=cols < N.",
            "With 64 × 64 outputs and 4 warps a thread has 32 sums and as many addresses to hold. "
            "num_warps=8 gives it half of them.",
        ),
        grade=grade_epilogue,
        speed=GELU_SPEED,
    )
)
register(
    Question(
        id="11.5",
        title="Gate and up by turns",
        kind="write",
        points=4,
        takes="swiglu(x, weight)",
        hint="Let a tile have 2 · BLOCK_N columns of sums. Which two of them make one output?",
        more_hints=(
            "tl.reshape(total, [BLOCK_M, BLOCK_N, 2]) puts neighbours on an axis of their own, and "
            "tl.split returns the two along it.",
            "Sums have the columns of weight's rows, up to 2 · N; y has others, up to N.",
        ),
        grade=grade_swiglu,
    )
)
register(
    Question(
        id="11.6",
        title="The statistics of one tile",
        kind="fix",
        points=3,
        takes="my_norm_linear(x, norm_weight, norm_bias, weight)",
        hint="When are a row's mean and variance known? Its product can't begin before that.",
        more_hints=(
            "Three loops over K: for the mean, for the sum of (x - mean)², then the product's.",
            "A masked lane holds 0, and (0 - mean)² is not 0: tl.where(mask, x - mean, 0.0).",
        ),
        grade=grade_statistics,
    )
)
register(
    Question(
        id="11.7",
        title="One kernel or two?",
        kind="explain",
        points=3,
        takes="which_way(record)",
        hint="The launches part the five ways in two groups. Which ledger parts each group?",
        more_hints=(
            "Two launches: unique less of_x, of_weight and of_y is about 2 · of_x, or about 2 · "
            "of_weight.",
            "One launch: requested less what weight and y ask for is so many times of_x.",
        ),
        grade=grade_ways,
    )
)
register(
    Question(
        id="11.8",
        title="Fold the norm into the weights",
        kind="write",
        points=3,
        takes="fold(norm_weight, norm_bias, weight, bias)",
        hint="Write out Σ ((x - mean) · inv_std · γ + β) · w + b, and gather what x stands with, "
        "what mean stands with, and what is left.",
        more_hints=(
            "The kernel multiplies x by the rounded weights. What does a constant in x give then?",
            "folded.float().sum(1) is of the rounded ones.",
        ),
        grade=grade_fold,
    )
)
register(
    Question(
        id="11.9",
        title="A norm put right behind the sum",
        kind="optimise",
        points=5,
        takes="folded_linear(x, folded, sums, bias)",
        hint="The tile of x that the product loads is all that the statistics need.",
        more_hints=(
            "Keep a sum of x and one of x² for each row, in fp32: tl.sum(wide, axis=1) a step.",
            "(total - mean[:, None] * c[None, :]) * inv_std[:, None] + b[None, :].",
        ),
        grade=grade_folded,
        speed=FOLDED_SPEED,
    )
)
register(
    Question(
        id="11.10",
        title="How large a mean?",
        kind="explain",
        points=3,
        takes="largest_means(row, std, dtype)",
        hint="Write the error as |mean| / std · something, set it equal to u · size, and solve for "
        "the mean.",
        more_hints=(
            "Unrounded: something is |Σ rounded - Σ row|. Rounded: it is 2⁻²⁴ · |Σ rounded|.",
            "Centred: take the row less its mean, round that, and go on as with rounded sums.",
        ),
        grade=grade_bounds,
    )
)
