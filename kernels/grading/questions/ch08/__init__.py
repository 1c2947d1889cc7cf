"""Exercise set 08, Chains and random numbers: from one element's number to a norm's whole chain."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch08.backward import grade_chain_dx
from kernels.grading.questions.ch08.chain import grade_chain
from kernels.grading.questions.ch08.draw import grade_draw
from kernels.grading.questions.ch08.eight import grade_eight
from kernels.grading.questions.ch08.free import grade_free
from kernels.grading.questions.ch08.graphs import grade_frozen
from kernels.grading.questions.ch08.modes import grade_modes
from kernels.grading.questions.ch08.packs import DROPOUT_SPEED, grade_dropout
from kernels.grading.questions.ch08.predict import grade_training_bytes
from kernels.grading.questions.ch08.weights import grade_weights
from kernels.grading.questions.kits.cuda_cases import COMPILED

register(
    Question(
        id="08.1",
        title="Which number?",
        kind="predict",
        points=2,
        takes="draw(row, col, n_cols, p)",
        hint="First the index of the element, row · n_cols + col. All else follows from it and p.",
        more_hints=("What are T and the scale where p is 0, 1e-6, 0.999999 and 1?",),
        grade=grade_draw,
    )
)
register(
    Question(
        id="08.2",
        title="The bytes of a trained chain",
        kind="predict",
        points=3,
        takes="training_bytes(rows, cols, itemsize, cuts, stored_mask)",
        hint="Begin with one launch: which tensors does it read, which does it write? Then ask "
        "what one cut adds.",
        more_hints=(
            "Whatever the cuts are: x, residual and y move once, and so do weight, bias, two "
            "statistics a row in fp32, and the 16 bytes of seed and offset.",
            "kept doesn't depend on the cuts: what crosses one can be made again from x.",
        ),
        grade=grade_training_bytes,
    )
)
register(
    Question(
        id="08.3",
        title="A dropout with three faults",
        kind="fix",
        points=3,
        takes="my_dropout(x, seed_offset, p, training)",
        hint="Look at a tensor of more than one tile: which elements share a number?",
        more_hints=(
            "The mean of y should be that of x. What is it if nobody multiplies by scale?",
            "A call without training drops nothing and scales nothing, as one with p = 0.",
        ),
        grade=grade_modes,
    )
)
register(
    Question(
        id="08.4",
        title="Normalised after the mask",
        kind="fix",
        points=2,
        takes="dropped_softmax(x, seed_offset, p)",
        hint="What do the weights of a row sum to, if half of them are dropped? What should they, "
        "on average over all masks?",
        more_hints=("The sum runs over all weights of the row, those that will be dropped too.",),
        grade=grade_weights,
    )
)
register(
    Question(
        id="08.5",
        title="A seed that a graph freezes",
        kind="fix",
        points=3,
        takes="captured_dropout(x, seed_offset, p)",
        hint="Which of the recorded arguments should be another at the next step, and can't be?",
        more_hints=(
            "The kernel takes a pointer to the two numbers, and loads them: "
            "numbers_at(seed_offset_ptr, e) does.",
        ),
        grade=grade_frozen,
    )
)
register(
    Question(
        id="08.6",
        title="A backward with another mask",
        kind="fix",
        points=4,
        takes="chain_dx(dy, x, bias, seed_offset, p)",
        hint="Which mask did the forward have? Nobody stored it: what makes the same one again?",
        more_hints=(
            "Where an element was dropped, y doesn't depend on x: dx is 0. Where it was kept, "
            "y = residual + scale · gelu(x + bias).",
            "gelu_slope takes h = x + bias, in fp32.",
        ),
        grade=grade_chain_dx,
    )
)
register(
    Question(
        id="08.7",
        title="A call for eight",
        kind="optimise",
        points=4,
        takes="my_cuda_dropout(x, seed_offset, threshold, scale)",
        hint="Thread i takes the elements of block i: 8 * i to 8 * i + 7.",
        more_hints=(
            "dropout_words(seed_offset, i) is the thread's one call; dropout_keeps(words, k, "
            "threshold) tells of element k of the eight.",
        ),
        needs=COMPILED,
        grade=grade_dropout,
        speed=DROPOUT_SPEED,
    )
)
register(
    Question(
        id="08.8",
        title="Four numbers where eight would do",
        kind="optimise",
        points=4,
        takes="eight_dropout(x, seed_offset, p)",
        hint="A tile of BLOCK elements takes BLOCK // 8 blocks of numbers, from start // 8 on.",
        more_hints=(
            "tl.join(a, b) of two blocks (N,) is (N, 2), and tl.reshape goes through the last axis "
            "first. Write down the axes of what you have, and of what you want: (block, word, "
            "half).",
            "tl.join(tl.join(w0, w1), tl.join(w2, w3)) is (block, word % 2, word // 2): turn the "
            "last two axes with tl.permute(..., (0, 2, 1)).",
        ),
        grade=grade_eight,
    )
)
register(
    Question(
        id="08.9",
        title="The chain behind a norm",
        kind="write",
        points=5,
        takes="norm_chain(x, weight, bias, residual, seed_offset, p, eps)",
        hint="A program takes a row, as in LayerNorm. The rest of the chain follows in registers.",
        more_hints=(
            "numbers_at takes the index of each element, row * n_cols + cols. In blocks, as in "
            "08.8, a row's numbers begin at block row * n_cols // 8.",
            "Load residual with x, before the sums: all loads are then under way together.",
        ),
        grade=grade_chain,
    )
)
register(
    Question(
        id="08.10",
        title="Is the mask free?",
        kind="explain",
        points=3,
        takes="mask_costs(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us)",
        hint="Two times of each kernel: that of its bytes, and that of its instructions. It takes "
        "the longer one.",
        more_hints=(
            "elements · bytes_each / (bandwidth_gbs · 1000) is in µs, and so is elements · "
            "instructions / 32 / slots_per_us.",
        ),
        grade=grade_free,
    )
)
