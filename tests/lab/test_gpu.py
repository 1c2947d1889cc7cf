"""What `make gpu` leaves behind, without a GPU: the archive, its table, what was not run."""

import os
import tarfile

import pytest
import torch

from kernels.lab import selection
from kernels.lab.__main__ import main
from kernels.lab.cards import devices
from kernels.lab.measuring import gpu_run, gpu_tests
from kernels.lab.records import proofs
from kernels.lab.records.data import write_provenance, write_suite
from kernels.paths import ROOT
from tests.lab.test_data import a_row


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused(tmp_path):
    with pytest.raises(selection.RefusalError, match="no GPU"):
        gpu_run.run(tmp_path, gpu_run.Chosen())
    with pytest.raises(selection.RefusalError, match="suite 'nope'"):
        gpu_run.run(tmp_path, gpu_run.Chosen(["nope"]))


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
    monkeypatch.setattr(gpu_tests.importlib.util, "find_spec", lambda _: None)
    told = gpu_tests.run(tmp_path / "tests.log", "t4")
    assert told["ran"] is False
    assert "no pytest" in (tmp_path / "tests.log").read_text()


def test_the_steps_and_the_exit_code(tmp_path, monkeypatch, capsys):
    card = {"name": "Tesla T4", "slug": "t4"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "describe", lambda _: card)

    def tested(log, slug, owed, at_once):
        assert (slug, owed, at_once) == ("t4", False, None)
        log.write_text("")
        return {"ran": True, "passed": True, "told": "1 passed; proofs: 1 new"}

    def stream(command):
        if command[3] in gpu_run.BESIDE:
            assert command[4:] == ["--out", str(tmp_path)]
            (tmp_path / "t4").mkdir(exist_ok=True)
            write_provenance(tmp_path / "t4" / f"{command[3]}.csv", {})
            return 0
        write_suite(tmp_path / "t4" / f"{command[4]}.csv", [a_row()], {})
        return 1 if command[4] == "norms" else 0

    monkeypatch.setattr(gpu_run, "_stream", stream)
    monkeypatch.setattr(gpu_tests, "run", tested)
    assert gpu_run.run(tmp_path, gpu_run.Chosen()) == 1
    out = capsys.readouterr().out
    assert "failed: ['suite norms']" in out
    assert "layernorm" in out
    assert "GPU tests\n" in out
    assert "1 passed; proofs: 1 new" in out
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
    assert gpu_run.run(tmp_path, gpu_run.Chosen(["ceilings"], tests=False)) == 0


def test_only_tests_and_no_tests_leave_nothing(capsys):
    assert main(["gpu", "--only-tests", "--no-tests"]) == 2
    assert "leave nothing to do" in capsys.readouterr().err


def a_proof(test, date="2031-01-27"):
    return proofs.Proof(test, "abc", "passed", "t4", date, "", "no", "2.11", "3.6")


def test_parts_are_merged_into_what_was_known(tmp_path):
    rests = {"kernels/x.py": "1"}
    known = {name: a_proof(name) for name in ("kept", "renewed", "failed")}
    proofs.write(tmp_path / "known", known, dict.fromkeys(known, rests))
    one = known | {"renewed": a_proof("renewed", "2031-01-28"), "new": a_proof("new")}
    proofs.write(tmp_path / "one", one, {key: {"kernels/x.py": "2"} for key in one})
    two = {name: known[name] for name in ("kept", "renewed")}
    proofs.write(tmp_path / "two", two, dict.fromkeys(two, rests))
    folders = [tmp_path / name for name in ("one", "two", "broken")]
    rows, told = proofs.merged(tmp_path / "known", folders)
    assert rows == {name: one[name] for name in ("kept", "renewed", "new")}
    assert told["kept"] == rests
    assert told["renewed"] == told["new"] == {"kernels/x.py": "2"}


def test_every_file_with_a_gpu_test_is_a_part_and_what_runs_alone_is_the_last():
    *beside, alone = gpu_tests.parts(owed=False)
    assert {part.tests for part in beside} == {(file,) for file in gpu_tests.files()}
    assert "tests/gpu/test_norms_gpu.py" in gpu_tests.files()
    assert "tests/test_philox.py" in gpu_tests.files()
    assert alone == gpu_tests.Part("alone", tuple(gpu_tests.files()), "gpu and alone")


def test_of_what_is_owed_no_other_test_is_run(monkeypatch):
    debts = ["tests/gpu/test_norms_gpu.py::test_b", "tests/gpu/test_norms_gpu.py::test_a"]
    monkeypatch.setattr(proofs, "owed", lambda _: dict.fromkeys(debts, ("", "")))
    one, alone = gpu_tests.parts(owed=True)
    assert one.tests == alone.tests == tuple(sorted(debts))
    more = [f"tests/gpu/test_norms_gpu.py::test_{letter}" for letter in "abcde"]
    monkeypatch.setattr(proofs, "owed", lambda _: dict.fromkeys(more, ("", "")))
    *beside, alone = gpu_tests.parts(owed=True)
    assert [len(part.tests) for part in beside] == [2, 2, 1]
    assert [test for part in beside for test in part.tests] == list(alone.tests) == more
    assert len({part.name for part in beside}) == 3
    monkeypatch.setattr(proofs, "owed", lambda _: {})
    with pytest.raises(selection.RefusalError, match="no proof is owed"):
        gpu_tests.parts(owed=True)


def test_what_times_or_profiles_runs_alone():
    for file in (ROOT / "tests" / "gpu").glob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        if any(word in text for word in ("ncu_command(", "time_windows(", '"kernels.lab", ')):
            assert "mark.alone" in text, file


def test_files_run_beside_each_other_and_leave_one_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tests, "PLACES", ("tests/test_philox.py",))
    monkeypatch.setattr(gpu_tests, "DATA_DIR", tmp_path / "data")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = gpu_tests.run(tmp_path / "tests.log", "t4")
    assert found["ran"]
    assert found["passed"]
    assert "skipped; proofs: 0 new, 0 of t4 in all" in found["told"]
    assert "test_philox: " in capsys.readouterr().out
    assert "needs a CUDA GPU" in (tmp_path / "tests.log").read_text()


def test_a_failure_is_shown_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tests, "files", lambda: ["tests/test_a.py", "tests/test_b.py"])

    def ran(part, folder, slug):
        code = {"test_a": 1, "test_b": 0, "alone": gpu_tests.NO_TESTS_COLLECTED}[part.name]
        last = {1: "E wrong\n== 1 failed, 2 passed in 3 s ==", 0: "== 4 passed in 1 s =="}
        rows = {"t": a_proof("t")} if part.name == "test_b" else {}
        proofs.write(folder / "parts" / part.name / slug, rows, {key: {} for key in rows})
        return gpu_tests.Ended(part, code, last.get(code, "== no tests ran =="))

    monkeypatch.setattr(gpu_tests, "_run", ran)
    monkeypatch.setattr(gpu_tests, "DATA_DIR", tmp_path / "data")
    found = gpu_tests.run(tmp_path / "tests.log", "t4", at_once=2)
    assert found["passed"] is False
    assert sorted(found["told"].partition(";")[0].split(", ")) == ["1 failed", "6 passed"]
    assert "proofs: 1 new, 1 of t4 in all; failed in test_a" in found["told"]
    assert "E wrong" in capsys.readouterr().out
    assert list(proofs.read(tmp_path / "t4")[0]) == ["t"]
