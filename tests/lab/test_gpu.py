"""What `make gpu` leaves behind, without a GPU: the archive, its table, what was not run."""

import os
import tarfile

import pytest
import torch

from kernels.lab import selection
from kernels.lab.cards import devices
from kernels.lab.measuring import gpu_run
from kernels.lab.records.data import write_provenance, write_suite
from tests.lab.test_data import a_row


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused(tmp_path):
    with pytest.raises(selection.RefusalError, match="no GPU"):
        gpu_run.run(tmp_path, [], 0.1, True)
    with pytest.raises(selection.RefusalError, match="suite 'nope'"):
        gpu_run.run(tmp_path, ["nope"], 0.1, True)


def test_one_archive_of_this_run_alone(tmp_path):
    write_suite(tmp_path / "t4" / "norms.csv", [a_row()], {})
    write_suite(tmp_path / "t4" / "ceilings.csv", [a_row()], {})
    (tmp_path / "t4" / "a_note.txt").write_text("")
    (tmp_path / "tests.log").write_text("")
    for name in ("ceilings.csv", "ceilings.json"):
        os.utime(tmp_path / "t4" / name, (1.0, 1.0))  # an earlier run's
    path = gpu_run.archive(tmp_path, "t4", "2031-01-27", since=100.0)
    assert path.name == "gpu-t4-2031-01-27.tar.gz"
    with tarfile.open(path) as tar:
        assert sorted(tar.getnames()) == ["t4/norms.csv", "t4/norms.json", "tests.log"]


def test_a_python_without_pytest_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run.importlib.util, "find_spec", lambda _: None)
    told = gpu_run.run_tests(tmp_path / "tests.log", "t4")
    assert told["ran"] is False
    assert "no pytest" in (tmp_path / "tests.log").read_text()


def test_the_steps_and_the_exit_code(tmp_path, monkeypatch, capsys):
    card = {"name": "Tesla T4", "slug": "t4"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "describe", lambda _: card)
    ran = []

    def stream(command, log=None):
        ran.append(command[3:])
        if "pytest" in command:
            lines = ["proofs: 3 of the 4 tests marked proves hold on t4\n", "1 passed\n"]
            log.write_text("".join(lines))
            return 0, lines
        if command[3] in gpu_run.BESIDE:
            assert command[4:] == ["--out", str(tmp_path)]
            (tmp_path / "t4").mkdir(exist_ok=True)
            write_provenance(tmp_path / "t4" / f"{command[3]}.csv", {})
            return 0, []
        write_suite(tmp_path / "t4" / f"{command[4]}.csv", [a_row()], {})
        return (1 if command[4] == "norms" else 0), []

    monkeypatch.setattr(gpu_run, "_stream", stream)
    assert gpu_run.run(tmp_path, [], 0.1, True) == 1
    out = capsys.readouterr().out
    assert "failed: ['suite norms']" in out
    assert "layernorm" in out
    assert "1 passed; proofs: 3 of the 4 tests marked proves hold on t4" in out
    assert ran[0][-4:] == ["--proofs", str(tmp_path), "--proofs-card", "t4"]
    with tarfile.open(next(tmp_path.glob("gpu-t4-*.tar.gz"))) as tar:
        names = set(tar.getnames())
    assert names == {
        "gpu.json",
        "tests.log",
        "t4/models.json",
        "t4/host.json",
        "t4/generated.json",
        "t4/memory.json",
        *(f"t4/{s}.{k}" for s in selection.suites() for k in ("csv", "json")),
    }
    assert gpu_run.run(tmp_path, ["ceilings"], 0.1, False) == 0
