"""Exercise set 10, Tiled products: from requested bytes to a tile, its gradient, a shared sum."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch10.accumulator import grade_ones
from kernels.grading.questions.ch10.order import grade_order
from kernels.grading.questions.ch10.predict import grade_requested, grade_taller
from kernels.grading.questions.ch10.roofs import grade_roofs
from kernels.grading.questions.ch10.splits import SPLIT_SPEED, grade_splits
from kernels.grading.questions.ch10.suspects import grade_suspect
from kernels.grading.questions.ch10.tail import grade_tail
from kernels.grading.questions.ch10.tile import TILE_SPEED, grade_tile
from kernels.grading.questions.ch10.weight_gradient import grade_weight_gradient

register(
    Question(
        id="10.1",
        title="What tiles ask for",
        kind="predict",
        points=2,
        takes="requested_bytes(m, n, k, block_m, block_n, itemsize)",
        hint="How many tiles have the same rows of x? Each of them asks for these rows once.",
        more_hints=(
            "A row of x is asked for by each tile in its row of tiles: there are as many as blocks "
            "of columns of y.",
        ),
        grade=grade_requested,
    )
)
register(
    Question(
        id="10.2",
        title="Twice as tall",
        kind="predict",
        points=2,
        takes="twice_as_tall(m, n, block_m, block_n)",
        hint="Take the two requests of 10.1 before and after. In which of them does block_m stand?",
        more_hints=(
            "K and the size of an element are factors of both requests, so they cancel in a share.",
        ),
        grade=grade_taller,
    )
)
register(
    Question(
        id="10.3",
        title="An accumulator of 16 bits",
        kind="read",
        points=3,
        takes="total_of_ones(k, block_k, dtype)",
        hint="fp16 has 11 binary digits: from 2048 on its numbers are 2 apart. What is 2048 + 1?",
        more_hints=(
            "Begin with a loop that does what the kernel does: a tensor of that dtype, rounded "
            "after each step.",
            "torch.tensor(65535.0).half() is inf. bf16 has 8 binary digits, and the range of fp32.",
        ),
        grade=grade_ones,
    )
)
register(
    Question(
        id="10.4",
        title="A tail of K without a mask",
        kind="fix",
        points=2,
        takes="my_product(x, weight)",
        hint="Which elements does the last step of a row load, if K is 50 and BLOCK_K is 32?",
        more_hints=(
            "Two conditions for each load: its row lies in the matrix, and k < K. & joins them.",
            "A masked lane takes part in the product with the value that other= gives it.",
        ),
        grade=grade_tail,
    )
)
register(
    Question(
        id="10.5",
        title="A tile on the tensor cores",
        kind="write",
        points=5,
        takes="tiled_product(x, weight)",
        hint="Begin with the kernel of 10.4: what of it isn't within the budget?",
        more_hints=(
            "With 64 × 64 outputs and 4 warps a thread has 32 sums and as many addresses to hold. "
            "num_warps=8 gives it half of them.",
            'tl.dot(x, weight, total, input_precision="ieee") multiplies fp32 as fp32, and changes '
            "nothing of 16 bits.",
        ),
        grade=grade_tile,
        speed=TILE_SPEED,
    )
)
register(
    Question(
        id="10.6",
        title="An order that the L2 likes",
        kind="write",
        points=3,
        takes="tile_of(number, tiles_m, tiles_n, wave)",
        hint="Which shape of so many tiles has the fewest rows and columns of tiles together?",
        more_hints=(
            "Take eight blocks of rows as a group: number // (8 * tiles_n) is its number. Within "
            "it go down a column of eight tiles, then down the next.",
            "The last group has min(8, tiles_m - first) blocks of rows: divide by that.",
        ),
        grade=grade_order,
    )
)
register(
    Question(
        id="10.7",
        title="Fewer bytes, yet slower",
        kind="explain",
        points=3,
        takes="suspect(tile)",
        hint="Go down the list of the page in its order, and return the first word that holds.",
        more_hints=(
            "An SM holds min(sm_registers // (registers · 32 · warps), sm_shared_bytes // "
            "(shared_bytes + 1024)) programs.",
        ),
        grade=grade_suspect,
    )
)
register(
    Question(
        id="10.8",
        title="The weight's gradient",
        kind="write",
        points=5,
        takes="weight_gradient(dy, x)",
        hint="dweight[n, k] is the sum over m of dy[m, n] · x[m, k]. Along which axis is the loop?",
        more_hints=(
            "Load the tile of dy as (BLOCK_N, BLOCK_M), by pointers with n[:, None] and "
            "m[None, :]; or as it lies, and take tl.trans(dy).",
            "The sums of dy's columns are those of the tile that is loaded anyhow: "
            "tl.sum(dy.to(tl.float32), axis=1). Who stores them?",
        ),
        grade=grade_weight_gradient,
    )
)
register(
    Question(
        id="10.9",
        title="Too few tiles",
        kind="optimise",
        points=4,
        takes="split_product(x, weight, splits)",
        hint="A third axis of the grid: split s sums its own share of K, and stores what it has.",
        more_hints=(
            "Let a share be a multiple of BLOCK_K: triton.cdiv(triton.cdiv(K, splits), BLOCK_K) * "
            "BLOCK_K.",
            "parts has the shape (splits, M, N) and fp32. The second kernel goes over its M · N "
            "places, and adds up splits numbers for each.",
        ),
        grade=grade_splits,
        speed=SPLIT_SPEED,
    )
)
register(
    Question(
        id="10.10",
        title="Two roofs",
        kind="explain",
        points=3,
        takes="leaves_roofs(tflops, dram_gbs, l2_gbs, itemsize)",
        hint="Set the time of the FLOPs equal to that of the bytes, and solve for n.",
        more_hints=(
            "n³ multiply-adds are 2 n³ FLOPs; three matrices are 3 n² · itemsize bytes.",
            "For a step of BLOCK_K, a tile of edge e does 2 · e² · BLOCK_K FLOPs and asks for "
            "2 · e · BLOCK_K elements.",
        ),
        grade=grade_roofs,
    )
)
