"""The npm packages of the pages: only what was pinned, fetched once, a sentence where it can't."""

import io
import tarfile
from pathlib import Path

import pytest

from book.tools import packages
from book.tools.build import build_html


def test_another_tarball_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    tarball = tmp_path / "requirejs.tgz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("package/require.js"), io.BytesIO())
    with pytest.raises(packages.PackageError, match=r"^npm package requirejs: its tarball has the"):
        packages._unpack("requirejs", tarball, tmp_path / "requirejs")
    assert not (tmp_path / "requirejs").exists()


def test_no_network_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "NPM", ["sh", "-c", "echo no network >&2; exit 1"])
    told = r"^npm package axe-core@\S+ could not be fetched; .* npm said: no network$"
    with pytest.raises(packages.PackageError, match=told):
        packages.fetch(["axe-core"], tmp_path)


def test_a_build_without_the_packages_fails_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise packages.PackageError("npm package mathjax could not be fetched")

    monkeypatch.setattr(packages, "lay_out", fail)
    (tmp_path / "book").mkdir()
    (tmp_path / "_config.yml").write_text("title: A book\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    assert build_html(tmp_path) == 1
    assert capsys.readouterr().out == ("npm package mathjax could not be fetched\nHTML: FAILED\n")


def test_what_is_laid_out_is_laid_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.lay_out(tmp_path / "extra")
    vendor = tmp_path / "extra/_static/vendor"
    for name in (
        "mathjax/es5/tex-mml-chtml.js",
        "requirejs/require.js",
        "@jupyter-widgets/embed-amd.js",
        "anywidget.js",
        "widgets.js",
    ):
        assert (vendor / name).stat().st_size > 0, name
    assert list((vendor / "mathjax/es5/output/chtml/fonts").rglob("*.woff"))

    def fail(*_: object) -> None:
        raise AssertionError("laid out again")

    monkeypatch.setattr(packages, "fetch", fail)
    packages.lay_out(tmp_path / "extra")
