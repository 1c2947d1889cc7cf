"""Exercise set 15, training the encoder layer: from what it keeps to what making again costs."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch15.costs import grade_costs
from kernels.grading.questions.ch15.inverted import grade_inverted
from kernels.grading.questions.ch15.kept import grade_kept
from kernels.grading.questions.ch15.needless import grade_needless, kept_ward
from kernels.grading.questions.ch15.normed import grade_normed
from kernels.grading.questions.ch15.peaks import grade_peaks
from kernels.grading.questions.ch15.recomputed import grade_in_place, grade_recomputed
from kernels.grading.questions.ch15.residual import grade_residual
from kernels.grading.questions.ch15.seeds import grade_seeds

__all__ = ["kept_ward"]

register(
    Question(
        id="15.1",
        title="What a layer keeps",
        kind="predict",
        points=2,
        takes="kept_bytes(batch, length, width, inner, heads, itemsize)",
        hint="Add up the table, row by row, in bytes a token: itemsize for most, 4 for three.",
        more_hints=(
            "In numbers a token of itemsize bytes: 7 · width, and 2 · inner without flags.",
            "gelu_checkpoint takes a off the list, attn_dropout_checkpoint o. All else stays.",
        ),
        grade=grade_kept,
    )
)
register(
    Question(
        id="15.2",
        title="Kept for nothing",
        kind="read",
        points=3,
        takes="kept_for_nothing(layer)",
        hint="If a backward reads a tensor, other numbers in it change a gradient.",
        more_hints=(
            "torch.full_like(one, torch.nan) for floating numbers, ~one for a mask; all others as "
            "they are.",
            "Compare each gradient of the tuple, not the first one alone: torch.equal is False as "
            "soon as there is a nan.",
        ),
        grade=grade_needless,
    )
)
register(
    Question(
        id="15.3",
        title="A residual in the wrong place",
        kind="fix",
        points=3,
        takes="mlp_block(x, w1, w2)",
        hint="Which of the four tensors x, u, a and y does a backward read? Go through the "
        "operators one by one.",
        more_hints=(
            "A product saves both of its operands, GELU what it reads; nobody saves what a "
            "product leaves.",
            "y.add_(x) writes x + y where y lies, and autograd knows of it.",
        ),
        grade=grade_residual,
    )
)
register(
    Question(
        id="15.4",
        title="A checkpoint that saves nothing",
        kind="write",
        points=4,
        takes="peaks(steps, back, sizes, again)",
        hint="First for each tensor the step that writes it and the last one that reads it; then "
        "for each step the sizes of those between.",
        more_hints=(
            "With the checkpoint there is one step more, a copy of the one that writes the tensor: "
            "what it reads has one reader more.",
            "The tensor then has two lives: from its first writing to its last reader before the "
            "second one, and from there on.",
        ),
        grade=grade_peaks,
    )
)
register(
    Question(
        id="15.5",
        title="Keep u, make a again",
        kind="write",
        points=4,
        takes="activated_product(u, weight, bias)",
        hint="Forward saves u and weight. Backward makes a again, and goes on as ever.",
        more_hints=(
            "dweight = dy.T @ a, dbias = dy.sum(0), da = dy @ weight, du = gelu_backward(da, u).",
            "Behind its last line a forward's locals are gone. What ctx holds is not, under "
            "whatever name.",
        ),
        grade=grade_recomputed,
    )
)
register(
    Question(
        id="15.6",
        title="A mask drawn twice",
        kind="fix",
        points=3,
        takes="dropped_product(u, weight)",
        hint="How often is draw() called for one layer's forward and backward?",
        more_hints=(
            "draw() gives a tensor of two numbers: ctx.save_for_backward takes it as any other.",
            "A seed in a name outside of ctx belongs to the call that was made last.",
        ),
        grade=grade_seeds,
    )
)
register(
    Question(
        id="15.7",
        title="A backward in no memory more",
        kind="optimise",
        points=4,
        takes="product_backward(dy, u, weight)",
        hint="Draw the lives of a, da and du. Which two need not be alive at one time?",
        more_hints=(
            "dweight takes a, du takes da: first all that a is for, then del a.",
            "gelu_backward_into(da, u) writes du where da lies.",
        ),
        grade=grade_in_place,
    )
)
register(
    Question(
        id="15.8",
        title="Back through dropout, residual and norm",
        kind="write",
        points=6,
        takes="normed_backward(dy, dh, h, weight, mean, inv_std, seed_offset, p)",
        hint="A program takes a row, as LayerNorm's dx of 07.3 does. Then dh is added, and both "
        "gradients are stored.",
        more_hints=(
            "x_hat = (h - mean) * inv_std and g = dy * weight, with 0 in the lanes beyond the row; "
            "two sums, each divided by n_cols.",
            "kept = numbers_at(seed_offset_ptr, row * n_cols + cols) >= drop_below; dx is "
            "dresidual * scale where kept, else 0.",
        ),
        grade=grade_normed,
    )
)
register(
    Question(
        id="15.9",
        title="A norm that goes backwards, nearly",
        kind="fix",
        points=3,
        takes="rebuilt(y, weight, bias, tolerance)",
        hint="y was rounded once. By how much, at most? And what becomes of that, divided by "
        "weight?",
        more_hints=(
            "A column's largest |y| is y.abs().amax(0), and a rounding takes eps / 2 of it at "
            "most.",
            "A weight of 0 is always lost, also where y and bias are 0: write it down.",
        ),
        grade=grade_inverted,
    )
)
register(
    Question(
        id="15.10",
        title="What a byte costs",
        kind="explain",
        points=3,
        takes="again_costs(length, itemsize, flops_per_s, bytes_per_s)",
        hint="Take one number of what is spared: what is read, written and computed to make it "
        "again? Then divide by its itemsize bytes.",
        more_hints=(
            "A number of a: one of u is read, one of a is written. A number of o: three are read, "
            "one is written, and 4 · length FLOPs are done.",
            "turn is where 4 · length / itemsize / flops_per_s is 4 / bytes_per_s.",
        ),
        grade=grade_costs,
    )
)
