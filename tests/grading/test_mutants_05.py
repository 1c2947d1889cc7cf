"""The checks catch the mutants of set 05's kernels: barriers, conditions, packs, merges, masks."""

import ast
import functools
import json
import re

import pytest

from kernels.cuda import cuda
from kernels.paths import ROOT
from tests.grading.cuda_mutation import Mutant, mutants
from tests.grading.submissions_05 import merged
from tests.grading.verdict import count_some, fault, faults

# The module of each question, its answer, and the instances of its template.
WRITTEN = {
    "05.3": ("norming", "my_norm", ()),
    "05.4": ("gating", "my_gate", ()),
    "05.5": ("packing", "packed_add", ()),
    "05.6": ("merging", "row_variance", ()),
    "05.7": ("holding", "my_layer_norm", ("layer_norm<8, 1>", "layer_norm<1, 8>")),
}
MOST = 18  # mutants of a question in one run of the test
# What a reader of this chapter gets wrong beside what is known of all CUDA C++.
CHANGES = (
    ("pack too far", r"first \+ 8 <= n", "first < n"),
    ("pack too strict", r"\+ 8 <= n", "+ 8 < n"),
    ("half a pack", r"i < 8;", "i < 4;"),
    ("elements of another pack", r"8 \* \((blockIdx)", r"4 * (\1"),
    ("place of another thread", r"k \* 256", "k * 128"),
    ("condition dropped", r" && first \+ k \* 256 < n_packs", ""),
    ("condition dropped", r"threadIdx\.x \+ k \* 256 < n_cols \? (.*) : 0\.0f", r"\1"),
    ("guard of a merge dropped", r"if \(weight == 0\) return \{0, 0, 0\};", ";"),
    ("another share", r"b\.weight / weight", "a.weight / weight"),
    ("another share", r"b\.weight / weight", "0.5f"),
    ("a factor lost", r"delta \* delta", "delta"),
    ("a factor lost", r" \* a\.weight \* share", " * a.weight"),
    ("a state lost", r"a\.squares \+ b\.squares", "a.squares"),
    ("a column's weight lost", r"\{w\[col\],", "{1,"),
    ("columns skipped", r"col \+= 32", "col += 64"),
    ("root dropped", r"rsqrtf\((.*) \+ eps\)", r"(\1 + eps)"),
    ("eps dropped", r" \+ eps", ""),
)
# Mutants that compute the same function with the same requests, each with the reason.
SAME = {
    "another lane stores: if (lane == 0) out[row] = state.squares / state.weight; -> "
    "if (lane == 1) out[row] = state.squares / state.weight;": "every lane has the state there",
}


def page(name="05_fusing_by_hand_in_cuda"):
    """What a solution's answers in CUDA are made of: imports, strings, modules and functions."""
    names = {}
    path = ROOT / f"solutions/{name}.ipynb"
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code" or "setup" in cell["metadata"].get("tags", []):
            continue
        wanted = [
            node
            for node in ast.parse("".join(cell["source"])).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.FunctionDef) and not node.decorator_list)
            or (isinstance(node, ast.Assign) and 'r"""' in "".join(cell["source"]))
            or (isinstance(node, ast.Assign) and "cuda(" in ast.unparse(node.value))
        ]
        exec(compile(ast.Module(wanted, []), cell["id"], "exec"), names)
    return names


def all_mutants(source, changes=CHANGES):
    """The mutants of any CUDA C++ and those of a chapter, each once."""
    seen = {re.sub(r"//.*", "", source).strip()}
    made = list(mutants(source))
    lines = source.splitlines()
    for number, line in enumerate(lines):
        for name, pattern, instead in changes:
            changed = re.sub(pattern, instead, line, count=1)
            if changed != line:
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                made.append(Mutant(text, f"{name}: {line.strip()} -> {changed.strip()}"))
    for mutant in made:
        code = re.sub(r"//.*", "", mutant.source).strip()  # a comment may change
        if code not in seen:
            seen.add(code)
            yield mutant


def lived(question, written, names, made, note):
    """What is told of those mutants that a check passes; `written` as in WRITTEN.

    Some of the others are noted for the counts of their set.
    """
    module, answer, instances = written

    def with_kernels(kernels):
        @functools.wraps(names[answer])
        def answers(*given):
            names[module] = kernels
            return names[answer](*given)

        return answers

    compiled = merged([m.source for m in made], instances)
    answers = [with_kernels(kernels) for kernels in compiled]
    told = faults(question, answers)
    # One that was stopped may be right, and slow as one of many.
    count_some(question, answers, ["" if "stopped" in why else why for why in told], note)
    for mutant, why in zip(made, told, strict=True):
        # All are compiled as one: what the compiler refuses would be a fault of every mutant.
        assert "doesn't compile" not in why, why
        if "was stopped" in why:
            # Right up to the compilation for GPUs, which takes long for a module of many.
            why = fault(question, with_kernels(cuda(mutant.source, instances=instances)))
        if not why:
            yield mutant.told


@pytest.mark.parametrize("question", WRITTEN)
def test_mutants_are_caught_and_counted(question, record_property):
    names = page()
    made = list(all_mutants(names[WRITTEN[question][0]].source))
    assert len(made) >= 8
    made = made[:: -(-len(made) // MOST)]
    passed = lived(question, WRITTEN[question], names, made, record_property)
    unknown = [told for told in passed if told not in SAME]
    assert len(unknown) <= 0.02 * len(made), unknown
