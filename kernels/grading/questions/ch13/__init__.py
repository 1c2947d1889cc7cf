"""Exercise set 13, FlashAttention's backward: from a softmax's gradient to a loss in chunks."""

from kernels.grading.question import Question, register
from kernels.grading.questions.ch13.adders import grade_adders
from kernels.grading.questions.ch13.bounds import grade_bounds
from kernels.grading.questions.ch13.chunks import grade_chunks
from kernels.grading.questions.ch13.delta import grade_delta
from kernels.grading.questions.ch13.gradients import grade_dkdv, grade_dq
from kernels.grading.questions.ch13.kept import grade_kept
from kernels.grading.questions.ch13.masks import dropped_ward, grade_masks
from kernels.grading.questions.ch13.products import grade_products
from kernels.grading.questions.ch13.softmax import grade_score_gradient

__all__ = ["dropped_ward"]

register(
    Question(
        id="13.1",
        title="A softmax, back from its output",
        kind="write",
        points=2,
        takes="score_gradient(p, dp)",
        hint="Take one row of two keys: if the first score grows a little, which weights change?",
        more_hints=(
            "The derivative of p_j by s_k is p_j · ((1 if j is k else 0) - p_k): multiply by dp_j, "
            "and add up over j.",
            "What is left is p_k · (dp_k - a sum that all keys of the row have in common).",
        ),
        grade=grade_score_gradient,
    )
)
register(
    Question(
        id="13.2",
        title="One number a row",
        kind="write",
        points=3,
        takes="row_delta(o, do)",
        hint="Heads don't matter here: there are heads * M rows of d numbers, one after the other.",
        more_hints=(
            "A tile of rows and all d columns: multiply in fp32, and tl.sum(..., axis=1).",
            "delta has a dtype of its own: torch.empty(o.shape[:2], dtype=torch.float32, "
            "device=o.device).",
        ),
        grade=grade_delta,
    )
)
register(
    Question(
        id="13.3",
        title="Five against two",
        kind="predict",
        points=3,
        takes="product_flops(heads, m, n, d, causal)",
        hint="Write down the products of each by name: which two matrices, and what comes out?",
        more_hints=(
            "Every product has d multiply-adds for each pair of a query and a key: m · n pairs, or "
            "with causal 1 + 2 + … + n.",
            "dq's kernel makes s and dp, and then dq. The other one makes both again.",
        ),
        grade=grade_products,
    )
)
register(
    Question(
        id="13.4",
        title="What stays until the backward",
        kind="predict",
        points=3,
        takes="kept_bytes(batch, heads, kv_heads, n, d, itemsize, dropout)",
        hint="Go through the lines of each backward: every tensor on a right side that is no "
        "gradient was kept.",
        more_hints=(
            "In three steps: q, k, v and p; with dropout also the dropped weights, and a mask of "
            "a byte an element.",
            "In flash: q, k, v, o, and 4 bytes a row; with dropout 16 bytes in all.",
        ),
        grade=grade_kept,
    )
)
register(
    Question(
        id="13.5",
        title="Who adds to whom",
        kind="read",
        points=3,
        takes="adders(programs, group)",
        hint="A tile of dq belongs to a head and a tile of queries. Collect, for each, the set of "
        "programs that have a pair of it.",
        more_hints=(
            "A tile of dk belongs to the keys' head, head // group, and a tile of keys.",
            "A program counts once for a tile, however often it comes by: it adds up in registers.",
        ),
        grade=grade_adders,
    )
)
register(
    Question(
        id="13.6",
        title="Where the loops begin and end",
        kind="predict",
        points=2,
        takes="causal_bounds(tile, block_m, block_n, n)",
        hint="Draw the table of scores for n = 8 and tiles of 2 and 4, and mark what is seen.",
        more_hints=(
            "Key j is seen from query j on: the tile's first key says where the loop begins, its "
            "last key from where on no mask is needed.",
            "To whole tiles of queries: // block_m * block_m rounds down, triton.cdiv(..., "
            "block_m) * block_m up.",
        ),
        grade=grade_bounds,
    )
)
register(
    Question(
        id="13.7",
        title="A gradient of the right direction",
        kind="fix",
        points=4,
        takes="query_gradient(q, k, v, do, lse, delta)",
        hint="What does a cosine not see? What does a single head not see? What do values not see?",
        more_hints=(
            "Go from the scores back to q: s is q · k times something.",
            "lse and delta have N numbers a head, and the loop needn't go on to N.",
        ),
        grade=grade_dq,
    )
)
register(
    Question(
        id="13.8",
        title="dk and dv of a tile of keys",
        kind="write",
        points=6,
        takes="key_gradients(q, k, v, do, lse, delta)",
        hint="Begin with the kernel of 13.7, and let keys and queries change places: k and v are "
        "loaded once, the loop is over queries.",
        more_hints=(
            "With keys as rows, s is tl.dot(k, q.T), and L and delta stand along its columns: "
            "lse[None, :].",
            "dv takes p and do, dk takes ds and q; the scale comes once, behind the loop. A lane "
            "beyond N has to hold 0 in q, do, lse and delta.",
        ),
        grade=grade_dkdv,
    )
)
register(
    Question(
        id="13.9",
        title="Another mask",
        kind="read",
        points=4,
        takes="dropout_fault(layer)",
        hint="Make each mask visible first: forward's with v = torch.eye(n), the backward's with "
        "ones.",
        more_hints=(
            "p (8, 8), v and do (8, 1), all of ones: dp is the backward's mask times its scale.",
            "For what is left: dv by the same ones, a p that is not 1, and 7 keys.",
        ),
        grade=grade_masks,
    )
)
register(
    Question(
        id="13.10",
        title="A loss without its logits",
        kind="optimise",
        points=5,
        takes="loss_gradients(x, weight, targets, budget)",
        hint="A token's gradient takes its own logits and no other's: go through the tokens in "
        "chunks.",
        more_hints=(
            "budget // (12 * V) tokens a chunk: three tensors of their logits fit.",
            "dweight.addmm_(dl.T, x[rows]) adds a product where dweight lies, and makes nothing "
            "beside it.",
        ),
        grade=grade_chunks,
    )
)
