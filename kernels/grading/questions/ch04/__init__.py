"""Exercise set 04, Unfused CUDA kernels: from the sectors of a warp to a chain of three kernels."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch04.chain import SPEED as CHAIN_SPEED
from kernels.grading.questions.ch04.chain import grade_chain
from kernels.grading.questions.ch04.elements import (
    ADD_SPEED,
    SCALE_SPEED,
    SILU_SPEED,
    grade_add,
    grade_scale,
    grade_silu,
)
from kernels.grading.questions.ch04.ledger import grade_costliest
from kernels.grading.questions.ch04.predict import grade_passes, grade_sectors
from kernels.grading.questions.ch04.reductions import (
    RMS_SPEED,
    SUM_SPEED,
    grade_inverse_rms,
    grade_row_sum,
)
from kernels.grading.questions.ch04.tiles import SPEED as TRANSPOSE_SPEED
from kernels.grading.questions.ch04.tiles import grade_transpose
from kernels.grading.questions.kits.cuda_cases import COMPILED

register(
    Question(
        id="04.1",
        title="The sectors of a request",
        kind="predict",
        points=2,
        takes="sectors(stride, width, first)",
        hint="Write down the address of each of the 32 lanes in bytes. Byte b lies in sector "
        "b // 32.",
        more_hints=("Lanes in one sector share it: count the different quotients, with a set.",),
        grade=grade_sectors,
    )
)
register(
    Question(
        id="04.2",
        title="The line that wastes most",
        kind="read",
        points=2,
        takes="costliest(lines)",
        hint="An entry moved 32 * sectors bytes, and its lanes wanted bytes_distinct of them.",
        more_hints=("Add up the waste of each line in a dictionary, then take the largest.",),
        grade=grade_costliest,
    )
)
register(
    Question(
        id="04.3",
        title="An addition with two faults",
        kind="fix",
        points=2,
        takes="my_add(x, y)",
        hint="How many blocks are launched for n = 255, and for n = 257?",
        more_hints=("The last index is n - 1. Which thread passes the guard and has none?",),
        needs=COMPILED,
        grade=grade_add,
        speed=ADD_SPEED,
    )
)
register(
    Question(
        id="04.4",
        title="A first kernel",
        kind="write",
        points=2,
        takes="silu_mul(a, b)",
        hint="A thread's element is blockIdx.x * blockDim.x + threadIdx.x; the last block has "
        "threads without one.",
        more_hints=("1.0f / (1.0f + expf(-a[i])) is the sigmoid, in fp32.",),
        needs=COMPILED,
        grade=grade_silu,
        speed=SILU_SPEED,
    )
)
register(
    Question(
        id="04.5",
        title="The missing barrier",
        kind="fix",
        points=3,
        takes="row_sum(x)",
        hint="Which threads of the block reach the barrier in the loop, and which skip it?",
        more_hints=(
            "Which two lines touch `part` with no __syncthreads() between them, when the loop "
            "begins?",
        ),
        needs=COMPILED,
        grade=grade_row_sum,
        speed=SUM_SPEED,
    )
)
register(
    Question(
        id="04.6",
        title="A sum by shuffles",
        kind="write",
        points=4,
        takes="inverse_rms(x, eps)",
        hint="__shfl_xor_sync(0xffffffff, value, 16) gives each lane the value of the lane whose "
        "number differs in the bit 16.",
        more_hints=(
            "With offsets 16, 8, 4, 2, 1 each lane has its warp's sum. Then one lane of each warp "
            "stores it, and after a barrier the warps' sums are added.",
        ),
        needs=COMPILED,
        grade=grade_inverse_rms,
        speed=RMS_SPEED,
    )
)
register(
    Question(
        id="04.7",
        title="A walk the wrong way",
        kind="optimise",
        points=3,
        takes="my_scale(x, inverse, weight)",
        hint="threadIdx.x is what differs between the lanes of a warp. Which index should it give?",
        more_hints=("The grid's axes change with the threads': x for columns, y for rows.",),
        needs=COMPILED,
        grade=grade_scale,
        speed=SCALE_SPEED,
    )
)
register(
    Question(
        id="04.8",
        title="Passes over the banks",
        kind="explain",
        points=2,
        takes="bank_passes(words)",
        hint="Word w lies in bank w % 32. A bank gives one word a pass, to all lanes that want it.",
        more_hints=("How many different words does the busiest bank have to give?",),
        grade=grade_passes,
    )
)
register(
    Question(
        id="04.9",
        title="A transpose through shared memory",
        kind="optimise",
        points=4,
        takes="my_transpose(x)",
        hint="Load with threadIdx.x along a row of x, store with threadIdx.x along a row of the "
        "output: the tile is what turns.",
        more_hints=(
            "A row of 32 words puts a column into one bank. bank_passes tells which length of a "
            "row does not.",
        ),
        needs=COMPILED,
        grade=grade_transpose,
        speed=TRANSPOSE_SPEED,
    )
)
register(
    Question(
        id="04.10",
        title="The chain",
        kind="write",
        points=2,
        takes="add_rms_norm(x, residual, weight, eps)",
        hint="my_add takes tensors of one axis: x.view(-1) is one, and costs nothing.",
        more_hints=("Sum, then 1 / rms of the sum, then the sum scaled: three calls.",),
        needs=COMPILED,
        grade=grade_chain,
        speed=CHAIN_SPEED,
    )
)
