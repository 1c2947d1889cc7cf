"""Exercise set 09, What compilers fuse: from six functions to a pass that the compiler adds."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch09.asks import grade_asks
from kernels.grading.questions.ch09.chain import grade_chain_bytes
from kernels.grading.questions.ch09.clips import grade_clips
from kernels.grading.questions.ch09.forecast import grade_forecast
from kernels.grading.questions.ch09.gated import grade_gated
from kernels.grading.questions.ch09.logs import grade_logs
from kernels.grading.questions.ch09.pays import grade_pays
from kernels.grading.questions.ch09.rounds import grade_rounds
from kernels.grading.questions.ch09.router import grade_router
from kernels.grading.questions.ch09.steps import grade_steps
from kernels.grading.questions.kits.captured import COMPILER

register(
    Question(
        id="09.1",
        title="Graphs and launches",
        kind="predict",
        points=2,
        takes="forecast(name)",
        hint="Two questions for each function: does Python have to do something in the middle? "
        "And can one program finish a part of the output by itself?",
        more_hints=("A product, a sum over all rows, a new seed: who does these, and when?",),
        grade=grade_forecast,
    )
)
register(
    Question(
        id="09.2",
        title="What does it compute?",
        kind="read",
        points=3,
        takes="as_read(a, b, c)",
        hint="Go backwards from the store: of what is tmp33 the product?",
        more_hints=(
            "tmp6 is tmp0 / (1 + exp(-tmp0)). Which function of PyTorch is that?",
            "tmp13 is a sum of squares along the row; tmp30 is one over the root of their mean.",
        ),
        grade=grade_gated,
    )
)
register(
    Question(
        id="09.3",
        title="Where does it round?",
        kind="read",
        points=2,
        takes="rounded(a, b, c)",
        hint="Which of the sums are stored, and in which dtype?",
        more_hints=("The .to(tl.float32) behind a load converts; the store converts back.",),
        grade=grade_rounds,
    )
)
register(
    Question(
        id="09.4",
        title="What two loops ask for",
        kind="predict",
        points=3,
        takes="asked_for(rows, cols, itemsize, xblock)",
        hint="Six accesses: five loads and a store. How many lanes has each, over both loops and "
        "all programs?",
        more_hints=("The address of c is in_ptr2 + r0_1, and r0_1 has the shape [1, R0_BLOCK].",),
        grade=grade_asks,
    )
)
register(
    Question(
        id="09.5",
        title="A chain, eager and compiled",
        kind="predict",
        points=3,
        takes="chain_bytes(rows, cols, itemsize)",
        hint="A line for each launch: what it reads, what it writes, and how many bytes an "
        "element of each has.",
        more_hints=(
            "Within one launch, a byte that is loaded twice is read once, and a byte that is "
            "stored and loaded counts in both.",
        ),
        grade=grade_chain_bytes,
    )
)
register(
    Question(
        id="09.6",
        title="A log that ends a graph",
        kind="fix",
        points=3,
        takes="activated(x, weight, log)",
        hint="What in that line is a number of Python, and who needs it there?",
        more_hints=("A list may hold tensors, too.",),
        needs=COMPILER,
        grade=grade_logs,
    )
)
register(
    Question(
        id="09.7",
        title="A branch on a value",
        kind="fix",
        points=4,
        takes="clipped(g, limit)",
        hint="Make the factor a tensor: 1 where the norm is small, limit / norm where it is not.",
        more_hints=(
            "Both sides of torch.where are computed, and differentiated. What is limit / norm for "
            "a vector of zeros?",
            "What do you have to divide limit by to get 1 wherever the norm is below it?",
        ),
        needs=COMPILER,
        grade=grade_clips,
    )
)
register(
    Question(
        id="09.8",
        title="Compiled anew at every step",
        kind="fix",
        points=3,
        takes="updated(w, grad, step)",
        hint="Which value stands in the graph as a constant? Where would it have to be for the "
        "graph to find it?",
        more_hints=("Indexing a tensor is an operation of the graph.",),
        needs=COMPILER,
        grade=grade_steps,
    )
)
register(
    Question(
        id="09.9",
        title="The pass that the compiler makes twice",
        kind="write",
        points=5,
        takes="routed(x)",
        hint="A tile of tokens and all experts: the sums along axis 1 make probs, and the sum "
        "along axis 0 of probs is the program's row of partial sums.",
        more_hints=(
            "What are the probabilities of a row beyond the last token? They must be 0 where they "
            "are summed.",
            "A maximum of -inf makes -inf - (-inf). Give rows beyond the last another maximum.",
        ),
        grade=grade_router,
    )
)
register(
    Question(
        id="09.10",
        title="When does it pay?",
        kind="explain",
        points=3,
        takes="totals(rows, eager_ns, compiled_ns, compile_s)",
        hint="Count the compilations of each way first: 0, at most 2, at most 8.",
        more_hints=("dict.fromkeys(rows) has the shapes in the order in which they came.",),
        grade=grade_pays,
    )
)
