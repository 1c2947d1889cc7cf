"""Nothing is patched while a kernel runs: threads, forks and compilations don't meet."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from kernels.launch import interpreting, recording
from kernels.launch.triton_compile import compile_launch
from tests.launch import kernels_under_test as k

OWNERS = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
OWNERS += (JITFunction, tl.core.constexpr, k)


def attributes():
    return [{name: id(value) for name, value in vars(owner).items()} for owner in OWNERS]


seen = []


@triton.constexpr_function
def look():
    seen.append(attributes())
    return 0


@triton.jit
def looks(x_ptr, N: tl.constexpr):
    x = tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0)
    tl.store(x_ptr, x + look())


def test_nothing_is_patched_even_while_a_kernel_runs():
    before = attributes()
    looks[(1,)](torch.ones(4), N=4)
    assert seen.pop() == before == attributes()


# In a process of its own: the code generator must not have been imported before the count.
COUNT_THEN_COMPILE = """
import sys, torch, triton, triton.language as tl
from kernels.launch import interpreting, recording
assert "triton.compiler.code_generator" not in sys.modules or {eager}

@triton.jit
def kernel(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < min(n, N), other=0.0)
    if n < 0:
        print("negative", n)
    tl.store(x_ptr + i, tl.maximum(x, max(n, 2)), mask=i < n)

with interpreting() as counted:
    kernel[(1,)](torch.zeros(5), 5, N=8)
with recording() as launches:
    kernel[(1,)](torch.zeros(5), 5, N=8)
from kernels.launch import compile_launch
print({capability: compile_launch(launches.seen[0], capability).registers > 0
       for capability in (75, 90)})
"""


def test_counting_first_and_compiling_later_in_one_process(tmp_path):
    file = tmp_path / "count_then_compile.py"
    file.write_text(COUNT_THEN_COMPILE)
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "{75: True, 90: True}"


@triton.jit
def meets(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + i, max(tl.load(x_ptr + i), n) + look_and_wait())


started, go_on = threading.Event(), threading.Event()


@triton.constexpr_function
def look_and_wait():
    started.set()
    go_on.wait(60)
    return 0


@pytest.fixture
def interpreting_elsewhere():
    """Another thread that is in the middle of a kernel; its counts, and what it raised."""
    started.clear()
    go_on.clear()
    told = []

    def work():
        with interpreting() as launches:
            meets[(1,)](torch.zeros(8), 3.0, N=8)
        told.extend(launches)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    yield told
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:builtin max")
def test_a_compilation_beside_another_threads_interpreter(interpreting_elsewhere, monkeypatch):
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)
    with recording() as launches:
        k.copy[(1,)](torch.zeros(64), torch.zeros(64), 64, BLOCK=64)
        k.run_time_loop[(1,)](torch.zeros(64), torch.zeros(1), 64)
    for launch in launches:
        assert compile_launch(launch, 90).registers > 0


@pytest.mark.filterwarnings("ignore:builtin max")
def test_a_count_beside_another_threads_launches_counts_its_own(interpreting_elsewhere):
    with interpreting() as mine:
        k.copy[(1,)](torch.zeros(64), torch.zeros(64), 64, BLOCK=64)
        go_on.set()
        for thread in threading.enumerate():
            if thread.name.endswith("(work)"):
                thread.join(60)
        k.add_in_place[(1,)](torch.zeros(16), BLOCK=16)
    assert [launch.name for launch in mine] == ["copy", "add_in_place"]
    assert [launch.name for launch in interpreting_elsewhere] == ["meets"]


@pytest.mark.filterwarnings("ignore:builtin max", "ignore:This process")
def test_a_fork_while_another_thread_interprets_does_not_hang(interpreting_elsewhere):
    child = os.fork()
    if child == 0:
        y = torch.zeros(16)
        k.copy[(1,)](torch.ones(16), y, 16, BLOCK=16)
        os._exit(int(y.sum()))
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 16


class Deeper(torch.autograd.Function):
    """A backward pass inside a backward pass; PyTorch runs deep ones in threads of its own."""

    @staticmethod
    def forward(ctx, x, depth, threads):
        ctx.depth, ctx.threads = depth, threads
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth == 0:
            ctx.threads.append(threading.get_ident())
            out = torch.zeros(4)
            k.copy[(1,)](gradient.contiguous(), out, 4, BLOCK=4)
            return out, None, None
        with torch.enable_grad():
            x = torch.ones(4, requires_grad=True)
            Deeper.apply(x, ctx.depth - 1, ctx.threads).sum().backward()
        return x.grad, None, None


def test_what_a_backward_pass_launches_in_another_thread_is_counted():
    x, threads = torch.ones(4, requires_grad=True), []
    with interpreting() as launches:
        Deeper.apply(x, 70, threads).sum().backward()
    assert threads != [threading.get_ident()]
    assert [launch.name for launch in launches] == ["copy"]


def test_a_thread_that_python_did_not_start_belongs_to_the_open_block():
    """PyTorch's threads of a backward pass are such; here a pool of ctypes' stands for one."""
    import _thread

    from kernels.launch import launches

    found, done = [], _thread.allocate_lock()
    done.acquire()

    def foreign():
        found.append(launches.mode())
        done.release()

    with recording():
        _thread.start_new_thread(foreign, ())  # unknown to `threading`
        assert done.acquire(timeout=10)
    _thread.start_new_thread(foreign, ())
    assert done.acquire(timeout=10)
    assert found == ["record", None]


def test_blocks_that_look_alike_are_closed_each_by_itself():
    with recording() as outer:
        with recording() as inner:
            pass
        k.add_in_place[(1,)](torch.ones(2, dtype=torch.int32), BLOCK=2)
    assert (len(outer), len(inner)) == (1, 0)
