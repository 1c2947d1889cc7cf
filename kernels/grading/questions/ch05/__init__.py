"""Exercise set 05, Fusing by hand in CUDA: from the bytes of a cut to kernels of one launch."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch05.elements import (
    ADD_SPEED,
    GATE_SPEED,
    grade_gate,
    grade_packed_add,
)
from kernels.grading.questions.ch05.moments import SPEED as VARIANCE_SPEED
from kernels.grading.questions.ch05.moments import grade_row_variance
from kernels.grading.questions.ch05.norms import MENDED_SPEED, grade_layer_norm, grade_mended_norm
from kernels.grading.questions.ch05.norms import SPEED as NORM_SPEED
from kernels.grading.questions.ch05.predict import grade_chain_bytes
from kernels.grading.questions.ch05.rungs import grade_rung
from kernels.grading.questions.kits.cuda_cases import COMPILED

register(
    Question(
        id="05.1",
        title="Where to cut",
        kind="predict",
        points=2,
        takes="chain_bytes(steps, sizes, cuts)",
        hint="For each launch write down two sets: what its steps need, and what they make.",
        more_hints=(
            "It reads what it needs and didn't make. It writes what it made and a later launch "
            "needs, or nobody: then it is the output.",
        ),
        grade=grade_chain_bytes,
    )
)
register(
    Question(
        id="05.2",
        title="Which rung is it?",
        kind="read",
        points=2,
        takes="rung(launches, x_bytes)",
        hint="Take the loads of x alone. How many times its bytes do they ask for?",
        more_hints=("Four launches, or three times, twice, once; and how wide is a load?",),
        grade=grade_rung,
    )
)
register(
    Question(
        id="05.3",
        title="Two sums in a row",
        kind="fix",
        points=3,
        takes="my_norm(x, weight, bias, eps)",
        hint="block_sum is called twice. What may the fastest warp do in the second call while the "
        "slowest is still in the first?",
        more_hints=("A thread's places past the end of the row hold 0. How far is 0 from mean?",),
        needs=COMPILED,
        grade=grade_mended_norm,
        speed=MENDED_SPEED,
    )
)
register(
    Question(
        id="05.4",
        title="Three kernels in one",
        kind="write",
        points=3,
        takes="my_gate(x, bias, residual)",
        hint="What was a tensor between two kernels becomes a variable of type float.",
        more_hints=(
            "A grid with an axis for the rows finds the column without a remainder: "
            "blockIdx.x is the row, blockIdx.y counts blocks of columns.",
        ),
        needs=COMPILED,
        grade=grade_gate,
        speed=GATE_SPEED,
    )
)
register(
    Question(
        id="05.5",
        title="Packs with a rest",
        kind="write",
        points=3,
        takes="packed_add(x, y)",
        hint="Thread i takes the elements from 8 * i on: a whole pack if 8 * i + 8 <= n.",
        more_hints=("`Pack a = *(const Pack*)(x + first);` loads eight elements at once.",),
        needs=COMPILED,
        grade=grade_packed_add,
        speed=ADD_SPEED,
    )
)
register(
    Question(
        id="05.6",
        title="States across a warp",
        kind="write",
        points=4,
        takes="row_variance(x, w)",
        hint="A column is a state: {w, x, 0}. A lane without any has {0, 0, 0}. How do two "
        "states with the weights W_a and W_b merge?",
        more_hints=(
            "A shuffle takes one float, so a state takes three of them: weight, mean, squares.",
        ),
        needs=COMPILED,
        grade=grade_row_variance,
        speed=VARIANCE_SPEED,
    )
)
register(
    Question(
        id="05.7",
        title="A LayerNorm of your own",
        kind="optimise",
        points=5,
        takes="my_layer_norm(x, weight, bias, eps)",
        hint="A thread keeps its packs in an array whose indices the compiler knows: "
        "`Pack<SIZE> held[HELD]`, and loops to HELD that are unrolled.",
        more_hints=(
            "With packs of 8 in 256 threads, 2048 columns are one pack a thread. In single "
            "elements they are eight: two instances of one template.",
        ),
        needs=COMPILED,
        grade=grade_layer_norm,
        speed=NORM_SPEED,
    )
)
