"""What every test gets: a progress file of its own, so that no reader's is touched."""

import pytest


@pytest.fixture(autouse=True)
def own_progress(monkeypatch, tmp_path_factory):
    file = tmp_path_factory.mktemp("progress") / "progress.json"
    monkeypatch.setenv("KERNELS_PROGRESS", str(file))
    return file
