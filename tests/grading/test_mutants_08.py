"""The check of 08.7 catches the mutants of its kernel in CUDA C++; `test_mutants` has Triton's."""

from tests.grading.test_mutants_05 import MOST, all_mutants, lived, page

WRITTEN = ("dropping", "my_cuda_dropout", ())
# What a reader of this chapter gets wrong beside what is known of all CUDA C++.
CHANGES = (
    ("pack too strict", r"\+ 8 <= n", "+ 8 < n"),
    ("half a pack", r"k < 8 &&", "k < 4 &&"),
    ("one number for all", r"dropout_keeps\(words, k", "dropout_keeps(words, 0"),
    ("one block for all", r"dropout_words\(seed_offset, i\)", "dropout_words(seed_offset, 0)"),
    ("mask turned round", r"kept \? (value \* scale) : 0\.0f", r"kept ? 0.0f : \1"),
    ("mask multiplied", r"kept \? value \* scale : 0\.0f", "kept * value * scale"),
)
# Mutants that compute the same function with the same requests, each with the reason.
_NOTHING_LEFT = "a thread without elements finds none in the loop either"
SAME = {
    "bound one up: if (8 * i >= n) return; -> if (8 * i > n) return;": _NOTHING_LEFT,
    "guard dropped: if (8 * i >= n) return; -> ;": _NOTHING_LEFT,
}


def test_mutants_are_caught_and_counted(record_property):
    names = page("08_chains_and_random_numbers")
    made = list(all_mutants(names["dropping"].source, CHANGES))
    assert len(made) >= 8
    made = made[:: -(-len(made) // MOST)]
    told = lived("08.7", WRITTEN, names, made, record_property)
    unknown = [mutant for mutant in told if mutant not in SAME]
    assert len(unknown) <= 0.02 * len(made), unknown
