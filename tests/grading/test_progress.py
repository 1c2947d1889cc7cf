"""The file of points: regular files only, nothing of anybody's lost, and never an exception."""

import errno
import fcntl
import json
import os
import re
import stat
import subprocess
import sys

import pytest

from kernels.grading import check, progress
from kernels.grading.progress import Progress, note
from kernels.grading.question import questions as registered
from tests.grading import submissions as s

PASSED = '{"02.3": {"points": 3, "failed": 0, "bonus": 0}}'


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def sentence(result):
    assert result.passed
    assert f"Your points: {result.kept}" in repr(result)
    assert result.kept in result._repr_html_().replace("&#x27;", "'")
    assert result.kept.endswith(".")
    assert "\n" not in result.kept
    return result.kept


def test_a_kept_result_says_nothing(own_progress):
    assert check("02.3", s.merge).kept == ""
    assert everything(own_progress.parent).keys() == {own_progress.name}


def test_a_pipe_is_not_replaced_and_nobody_waits_for_it(own_progress):
    os.mkfifo(own_progress)
    before = os.stat(own_progress)
    assert "no regular file" in sentence(check("02.3", s.merge))
    assert "no regular file" in repr(progress())
    assert os.path.samestat(os.stat(own_progress), before)
    assert stat.S_ISFIFO(os.stat(own_progress).st_mode)
    assert len(list(own_progress.parent.iterdir())) == 1


@pytest.mark.parametrize("how", ["named", "linked"])
def test_a_device_is_not_replaced(own_progress, monkeypatch, how):
    # One like /dev/null where that can be made, so that the machine's own is out of danger.
    device = own_progress.with_name("null")
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make a device")
    if how == "named":
        monkeypatch.setenv("KERNELS_PROGRESS", str(device))
    else:
        own_progress.symlink_to(device)
    assert "no regular file" in sentence(check("02.3", s.merge))
    assert stat.S_ISCHR(device.stat().st_mode)
    assert own_progress.is_symlink() == (how == "linked")


def test_a_folder_is_no_file(own_progress):
    own_progress.mkdir()
    assert "no regular file" in sentence(check("02.3", s.merge))
    assert own_progress.is_dir()


def test_a_link_stays_and_what_it_points_at_is_written(own_progress, tmp_path):
    target = tmp_path / "elsewhere" / "points.json"
    own_progress.symlink_to(target)
    for _ in range(2):
        assert check("02.3", s.merge).kept == ""
        assert own_progress.is_symlink()
        assert json.loads(target.read_text())["02.3"]["points"] == 3
    assert progress().points == 3


def test_a_link_to_itself_is_a_sentence(own_progress):
    own_progress.symlink_to(own_progress)
    assert "symbolic links" in sentence(check("02.3", s.merge))
    assert own_progress.is_symlink()


def test_the_home_folder_may_be_written_short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KERNELS_PROGRESS", "~/points.json")
    assert check("02.3", s.merge).kept == ""
    assert (tmp_path / "home" / "points.json").exists()
    assert not (tmp_path / "~").exists()
    monkeypatch.setenv("KERNELS_PROGRESS", "~nobody-of-that-name/points.json")
    assert "no such folder" in sentence(check("02.3", s.merge))
    assert "no such folder" in progress().told


def test_without_any_home_there_is_a_sentence(monkeypatch):
    monkeypatch.delenv("KERNELS_PROGRESS")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert "no such folder" in sentence(check("02.3", s.merge))


def test_every_foreign_file_is_kept_under_a_name_of_its_own(own_progress):
    mine = own_progress.with_suffix(".lock")
    mine.write_text("a lock file of somebody's")
    for number, text in enumerate(["my thesis", "[1, 2]", '{"name": "x"}'], start=1):
        own_progress.write_text(text)
        told = sentence(check("02.3", s.merge))
        aside = own_progress.with_suffix(".unreadable" + f"-{number}" * (number > 1))
        assert str(aside) in told
        assert aside.read_text() == text
        assert progress().points == 3
    assert own_progress.with_suffix(".unreadable").read_text() == "my thesis"
    assert mine.read_text() == "a lock file of somebody's"


def test_a_foreign_file_behind_a_link_is_put_aside_where_it_lies(own_progress, tmp_path):
    target = tmp_path / "thesis.tex"
    target.write_text("my thesis")
    own_progress.symlink_to(target)
    assert str(tmp_path / "thesis.unreadable") in progress().told
    assert own_progress.is_symlink()
    assert everything(tmp_path) == {"thesis.unreadable": b"my thesis"}


STRANGE = {
    "deep": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "deep lists": "[" * 500_000,
    "huge": '{"02.3": {"points": 3, "failed": 0}}' + " " * 2**21,
    "infinite": '{"02.3": {"points": 1e999, "failed": 0}}',
    "long": '{"02.3": {"points": ' + "9" * 5000 + ', "failed": 0}}',
    "negative": '{"02.3": {"points": -5, "failed": 0}}',
    "not a number": '{"02.3": {"points": NaN, "failed": 0}}',
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_contents_are_one_sentence_and_kept(own_progress, name):
    text = STRANGE[name] if isinstance(STRANGE[name], bytes) else STRANGE[name].encode()
    own_progress.write_bytes(text)
    assert "held no points" in sentence(check("02.3", s.merge))
    assert own_progress.with_suffix(".unreadable").read_bytes() == text
    assert progress().points == 3


def test_an_empty_file_is_one_without_points(own_progress):
    own_progress.touch()
    assert check("02.3", s.merge).kept == ""
    assert everything(own_progress.parent).keys() == {own_progress.name}


def test_a_read_only_file_is_read_and_stays(own_progress):
    own_progress.write_text(PASSED)
    own_progress.chmod(0o444)
    before = os.stat(own_progress)
    assert "read-only" in sentence(check("02.1", s.bytes_by_operator))
    assert (progress().points, progress().told) == (3, "")
    assert own_progress.read_text() == PASSED
    assert os.path.samestat(os.stat(own_progress), before)
    assert len(list(own_progress.parent.iterdir())) == 1


def test_a_read_only_foreign_file_stays_where_it_is(own_progress):
    own_progress.write_text("my thesis")
    own_progress.chmod(0o444)
    assert "read-only" in sentence(check("02.3", s.merge))
    assert "read-only" in progress().told
    assert everything(own_progress.parent) == {own_progress.name: b"my thesis"}


def test_its_permissions_stay(own_progress):
    own_progress.write_text("{}")
    own_progress.chmod(0o640)
    check("02.3", s.merge)
    assert stat.S_IMODE(own_progress.stat().st_mode) == 0o640


def test_a_full_disk_leaves_the_file_as_it_is_and_nothing_beside_it(own_progress):
    own_progress.write_text(PASSED)
    # A limit on the size of a file fails like a full disk, in the middle of writing.
    script = """
import resource, signal
from kernels.grading.progress import Progress, note
from kernels.grading.question import questions as registered
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
print(*note("02.1", 2))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert os.strerror(errno.EFBIG) in done.stdout, done.stderr
    assert everything(own_progress.parent) == {own_progress.name: PASSED.encode()}


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), MemoryError(), KeyboardInterrupt()]
)
def test_whatever_fails_leaves_nothing_beside_it(own_progress, monkeypatch, error):
    own_progress.write_text(PASSED)

    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(json, "dump", fails)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            note("02.1", 2)
    else:
        assert "not kept" in note("02.1", 2)[1]
    assert everything(own_progress.parent) == {own_progress.name: PASSED.encode()}


@pytest.mark.parametrize("bonus", [0, 12])
@pytest.mark.parametrize("points", [0, 1, 12])
@pytest.mark.parametrize("questions", [1, 9, 40])
def test_the_picture_fits_its_frame(questions, points, bonus):
    rows = tuple((f"10.{number}", points, 12) for number in range(questions))
    shown = Progress((("10", rows), ("2", (("2.1", 0, 1),))), bonus)._repr_html_()
    width, height = (int(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', shown)[0])
    assert f'width="{width}" height="{height}"' in shown
    for x, y, text in re.findall(r'<text x="([\d.]+)" y="(\d+)"[^>]*>([^<]*)<', shown):
        # In a sans-serif font of 14 pixels a character is 8 wide on average, digits and "Set" less.
        assert float(x) + 8 * len(text) <= width, text
        assert int(y) < height
    for x, w in re.findall(r'<rect x="(\d+)" y="\d+" width="(\d+)"', shown):
        assert int(x) + int(w) < width


def test_the_picture_of_all_questions_fits(own_progress):
    for name, question in registered().items():
        note(name, question.points, 1)
    shown = progress()._repr_html_()
    (width,) = (int(width) for width in re.findall(r'viewBox="0 0 (\d+) ', shown))
    ends = [
        float(x) + 8 * len(s) for x, s in re.findall(r'<text x="([\d.]+)"[^>]*>([^<]*)<', shown)
    ]
    assert max(ends) <= width


def test_a_lock_that_nobody_gives_back_is_not_waited_for_for_ever(own_progress, monkeypatch):
    monkeypatch.setattr(sys.modules[note.__module__], "_WAIT_S", 0.1)
    place = os.open(own_progress.parent, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        assert "something else holds" in sentence(check("02.3", s.merge))
    finally:
        os.close(place)
    assert check("02.3", s.merge).kept == ""
