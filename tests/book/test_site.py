"""What is published, and what runs on a push: the folder, its version, the workflows."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from book.tools import site
from book.tools.build import toc_files
from book.tools.config import version_and_date
from kernels.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_folder_holds_every_page_in_place_of_what_was_there(tmp_path: Path) -> None:
    html, out = tmp_path / "html", tmp_path / "site"
    (html / "_static").mkdir(parents=True)
    (html / "index.html").write_text("front")
    (html / "_static/pages.css").write_text("")
    out.mkdir()
    (out / "old.html").write_text("gone")
    site.lay_out(html, out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {"index.html", "_static/pages.css", ".nojekyll"}


def test_a_book_that_is_not_built_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no index.html: build the book first"):
        site.lay_out(tmp_path / "html", tmp_path / "site")


def git(folder: Path, *words: str, day: str = "2026-03-04T12:00:00Z") -> None:
    names = {"GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day, "HOME": str(folder)}
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, env={**names})


def test_version_and_date_are_those_of_the_project_and_the_commit(tmp_path: Path) -> None:
    assert version_and_date(tmp_path) == ""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "3.2.1"\n')
    assert version_and_date(tmp_path) == "Version 3.2.1."  # an archive, no clone
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "First")
    assert version_and_date(tmp_path) == "Version 3.2.1 of 2026-03-04."


def test_every_page_tells_version_and_date(html: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in toc_files(ROOT):
        page = (html / f"{name}.html").read_text()
        assert re.search(rf"Version {re.escape(version)} of \d{{4}}-\d\d-\d\d\.", page), name


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_sound(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}  # a job asks for more by itself
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert set(job.get("needs", "").split()) <= workflow["jobs"].keys()
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
            continue
        for target in re.findall(r"\bmake ([a-z]+)", step["run"]):
            assert target in TARGETS
        for name in re.findall(r"\S+\.py\b|\.ci/\w+|\brequirements\.txt", step["run"]):
            assert (ROOT / name).exists(), name
        subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)


def test_a_push_is_tested_and_main_published_and_the_newest_tried_weekly() -> None:
    # YAML reads the key `on` as true.
    by_name = {path.stem: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
    test, newest = by_name["test"], by_name["newest"]
    assert test[True].keys() == {"push", "pull_request"}
    commands = [step.get("run") for step in test["jobs"]["test"]["steps"]]
    assert commands.index(".ci/run") < commands.index("make site")
    published = test["jobs"]["publish"]
    assert published["needs"] == "test"
    assert "refs/heads/main" in published["if"]
    assert any(step.get("with", {}).get("path") == "_build/site" for step in steps(test))
    (cron,) = newest[True]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", cron["cron"])  # once a week
    install = next(step["run"] for step in steps(newest) if "pip install" in step.get("run", ""))
    assert "install -q torch triton numpy " in install
    left_out = re.compile(re.search(r"grep -vE '([^']+)'", install)[1])
    kept = list((ROOT / "requirements.txt").read_text().splitlines())
    kept = [line for line in kept if not left_out.search(line)]
    assert not [line for line in kept if re.match(r"(torch|triton|numpy)==", line)]
    assert any(line.startswith("jupyter-book==") for line in kept)
