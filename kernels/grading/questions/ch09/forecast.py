"""09.1: six functions, the graphs they are captured as, and which of them are one launch."""

from __future__ import annotations

import random
from typing import NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, asked, kind, pair, whole


class Known(NamedTuple):
    """What became of a function on a GPU: its graphs, whether one launch, and why."""

    graphs: int
    one_launch: bool
    graphs_why: str
    launch_why: str


_WHOLE = "Every line is an operation on tensors: nothing ends the graph."
KNOWN = {
    "glu": Known(1, True, _WHOLE, "Each element needs its own neighbours in x and gate, no sum."),
    "masked_softmax": Known(
        1,
        True,
        _WHOLE,
        "The sum x + mask is made as it is loaded, and both reductions run along the same rows: "
        "one program has all that a row needs.",
    ),
    "product": Known(
        1,
        False,
        f"{_WHOLE} A product is an operation as any other; what is launched for it is another "
        "question.",
        "The product is a launch of the library, and the softmax behind it a kernel of its own.",
    ),
    "columns": Known(
        1,
        False,
        f"{_WHOLE} One graph need not be one kernel.",
        "A mean down a column needs all rows, and so all programs, before the first element of y "
        "can be written. Only a new launch waits for all programs.",
    ),
    "logged": Known(
        2,
        False,
        "print is no operation on tensors: the graph before it ends, Python prints, and another "
        "graph begins.",
        "What is on two sides of the print lies in two graphs, and no kernel reaches from one into "
        "the other.",
    ),
    "dropped": Known(
        1,
        False,
        f"{_WHOLE} Dropout is an operation of PyTorch.",
        "The kernel that drops loads its seed from memory, and another launch draws that seed "
        "first.",
    ),
}


def grade_forecast(attempt: Attempt) -> None:
    """Grade `forecast(name)`: (graphs, one_launch) of each of the six, in any order."""
    names = list(KNOWN)
    random.Random(attempt.seed).shuffle(names)
    told = {}
    for name in names:
        label = asked(attempt, (name,))
        graphs, one_launch = pair(answered(attempt, name), label, "(graphs, one_launch)")
        if type(one_launch) is not bool:
            raise Wrong(f"{label} returned {kind(one_launch)}; one_launch is True or False.")
        told[name] = (whole(graphs, label, "graphs"), one_launch)
    for name, known in KNOWN.items():
        label = asked(attempt, (name,))
        graphs, one_launch = told[name]
        if graphs != known.graphs:
            raise Wrong(
                f"{label}: {graphs} is not the number of its graphs.",
                known.graphs_why,
            )
        if one_launch != known.one_launch:
            said = "it is one launch" if one_launch else "it is more than one launch"
            raise Wrong(f"{label} says that {said}; it is not so.", known.launch_why)
    attempt.held.append("six functions: the graphs of each, and whether it is one launch")
