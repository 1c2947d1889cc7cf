"""What is kept on disk of compilers: by all that it was made from, and without harm if it can't."""

import os

import pytest

from kernels.cuda import CudaError, cuda_compile, nvrtc
from kernels.launch import binary, kept


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fusing-kernels"


class Maker:
    """Gives another number at each call."""

    calls = 0

    def __call__(self):
        self.calls += 1
        return f"{self.calls}\0".encode()


def test_the_same_is_made_once_and_anything_else_anew():
    make = Maker()
    assert kept.kept("a", ["x", b"y"], make) == b"1\0"
    assert kept.kept("a", ["x", "y"], make) == b"1\0"
    for kind, made_from in [("b", "xy"), ("a", ["xy"]), ("a", ["x", "y", ""]), ("a", ["x"])]:
        assert kept.kept(kind, made_from, make) != b"1\0"
    assert kept.kept("a", ["x", "y"], make) == b"1\0"
    assert make.calls == 5


def test_what_fails_is_not_kept(folder):
    def fails():
        raise CudaError("no")

    for _ in range(2):
        with pytest.raises(CudaError):
            kept.kept("a", ["x"], fails)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_keeps_nothing(folder):
    folder.write_text("a file")
    make = Maker()
    assert [kept.kept("a", ["x"], make) for _ in range(2)] == [b"1\0", b"2\0"]


def test_the_least_used_go_first(folder, monkeypatch):
    monkeypatch.setattr(kept, "_MOST", 8)
    make = Maker()
    for number in range(8):
        kept.kept("a", str(number), make)
        for file in (folder / "a").iterdir():  # a second older each
            os.utime(file, (0, file.stat().st_mtime - 1))
    assert kept.kept("a", "0", make) == b"1\0"  # now the one used last
    kept.kept("a", "8", make)
    assert len(os.listdir(folder / "a")) == 7
    assert kept.kept("a", "0", make) == b"1\0"
    assert kept.kept("a", "1", make) == b"10\0"


def test_a_file_is_told_from_another_version_of_it(tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("x")
    before = kept.identity(file, other)
    file.write_text("xx")
    told = {before, kept.identity(file, other)}
    os.utime(file, ns=(0, 1))
    told.add(kept.identity(file, other))
    other.touch()
    assert len({*told, kept.identity(file, other)}) == 4


needs_nvrtc = pytest.mark.skipif(
    cuda_compile.no_compiler() is not None, reason=f"{cuda_compile.no_compiler()}"
)
SOURCE = "__global__ void first(float* x) { x[0] = 1; }\n__global__ void second(float* x) {}"


@pytest.fixture
def compiled(monkeypatch):
    """The sources that NVRTC itself compiled, as often as it did."""
    seen = []
    program = nvrtc._program

    def told(source, expressions, arch):
        seen.append((source, expressions, arch))
        return program(source, expressions, arch)

    monkeypatch.setattr(nvrtc, "_program", told)
    monkeypatch.setattr(nvrtc, "_cubin", nvrtc._cubin.__wrapped__)
    return seen


@needs_nvrtc
def test_a_binary_is_compiled_once_for_its_source_kernels_and_card(compiled, monkeypatch):
    first = nvrtc.compile_cubin(SOURCE, ("first", "second"), 90)
    assert nvrtc.compile_cubin(SOURCE, ("first", "second"), 90) == first
    assert len(compiled) == 1
    assert first[0].startswith(b"\x7fELF")
    assert first[1] == {"first": "_Z5firstPf", "second": "_Z6secondPf"}
    used = [binary.resource_usage(first[0], name) for name in first[1].values()]
    assert all(one["REG"] > 0 == one["STACK"] for one in used)
    assert nvrtc.compile_cubin(SOURCE, ("first", "second"), 80)[0] != first[0]
    assert nvrtc.compile_cubin(SOURCE + "\n", ("first", "second"), 90)[1] == first[1]
    assert nvrtc.compile_cubin(SOURCE, ("second",), 90)[1] == {"second": "_Z6secondPf"}
    assert len(compiled) == 4
    monkeypatch.setattr(nvrtc, "_compiler", lambda: "another version")
    assert nvrtc.compile_cubin(SOURCE, ("first", "second"), 90) == first
    assert len(compiled) == 5
    for _ in range(2):
        with pytest.raises(CudaError, match="line "):
            nvrtc.compile_cubin("wrong", ("first",), 90)
    assert len(compiled) == 7


@needs_nvrtc
def test_resources_are_read_off_a_binary_once(monkeypatch):
    cubin, names = nvrtc.compile_cubin(SOURCE, ("first", "second"), 90)
    first = binary.resource_usage(cubin, names["first"])
    monkeypatch.setattr(binary, "_cuobjdump", None)
    assert binary.resource_usage(cubin, names["first"]) == first
    with pytest.raises(TypeError):
        binary.resource_usage(cubin + b"\0")
