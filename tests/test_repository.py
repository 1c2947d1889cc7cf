"""The promises that span files: the README's commands, CI, and the pins against the ranges."""

import os
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernels.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for name, version in [line.split("==")]
}


def test_the_commands_of_the_readme_exist() -> None:
    commands = set(re.findall(r"\bmake ([a-z]{2,})\b", (ROOT / "README.md").read_text()))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"book", "test"} <= commands <= set(targets)


def test_ci_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
def test_a_pin_lies_in_its_range(dependency: str) -> None:
    requirement = Requirement(dependency)
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])
