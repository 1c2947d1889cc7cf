"""The exercise sets and the chapters on a GPU: solutions earn all, each page runs to its end."""

import os

import pytest
import torch

from kernels.grading.question import questions
from kernels.paths import ROOT
from tests.grading.test_exercises import SETS, results_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
CHAPTERS = sorted(path.name for path in (ROOT / "book").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("name", SETS)
def test_a_solution_earns_every_point_on_a_gpu(name):
    results = results_of(ROOT / "solutions" / name)
    of_set = [q for q in questions().values() if q.id.startswith(name[:2])]
    assert [(r.question, r.points) for r in results] == [(q.id, q.points) for q in of_set]


@pytest.mark.parametrize("name", SETS)
def test_an_untouched_exercise_earns_nothing_on_a_gpu(name):
    results = results_of(ROOT / "exercises" / name)
    assert results
    assert all(r.points == r.bonus == 0 for r in results)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_runs_on_a_gpu(name, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="a chapter is run by nbclient")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("KERNELS_PROGRESS", "")
    notebook = nbformat.read(ROOT / "book" / name, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
