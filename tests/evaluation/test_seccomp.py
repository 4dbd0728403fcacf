"""What the filter of system calls lets through, asked of processes that install it."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys

import pytest

from stitchcuda.evaluation import seccomp
from tests.evaluation.conftest import QUICK, Judge, make_task

pytestmark = pytest.mark.skipif(platform.machine() not in seccomp.NUMBERS, reason="no table for this architecture")

FILTERED = """
import ctypes, os, socket, subprocess, sys, threading
sys.path.insert(0, {folder!r})
import seccomp
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
assert seccomp.install(libc, profiling={profiling})
{body}
"""


def filtered(body: str, profiling: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python under the filter."""
    folder = seccomp.__file__.rpartition("/")[0]
    source = FILTERED.format(folder=folder, body=body, profiling=profiling)
    return subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "body",
    [
        "libc.ptrace(16, os.getppid(), 0, 0)",
        "libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0)",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "libc.unshare(0x10000000)",
        "libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000, 0, 0, 0, 0)",
    ],
    ids=["ptrace", "other-memory", "mount", "unshare", "clone-namespace"],
)
def test_attacks_end_the_process(body: str) -> None:
    assert filtered(body).returncode == -signal.SIGSYS


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("socket.socket(socket.AF_INET)", "Address family not supported"),
        ("socket.socket(socket.AF_INET6)", "Address family not supported"),
        ("assert libc.syscall(425, 8, None) == -1; raise OSError(ctypes.get_errno(), 'x')", "PermissionError"),
    ],
    ids=["inet", "inet6", "io_uring"],
)
def test_what_libraries_may_try_is_refused(body: str, error: str) -> None:
    done = filtered(body)
    assert done.returncode == 1
    assert error in done.stderr


def test_threads_children_and_local_sockets_still_work() -> None:
    body = (
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "subprocess.run(['echo', 'child'], check=True)\nsocket.socketpair()\nos.fork() or os._exit(0)\nos.wait()"
    )
    done = filtered(body)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"thread", "child"}


def test_profilers_may_trace() -> None:
    assert filtered("libc.ptrace(16, 1, 0, 0)", profiling=True).returncode == 0


TASK = make_task("""
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(64, 32)]
def get_init_inputs():
    return []
""")


def test_a_program_that_reaches_for_its_parent_is_dishonest(judge: Judge) -> None:
    source = """
import ctypes, os
class ModelNew(nn.Module):
    def forward(self, x):
        ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
        return torch.relu(x) * 2
"""
    evaluation = judge(TASK, source, settings=QUICK)
    assert evaluation.status == "dishonest"
    assert [(f.rule, f.layer) for f in evaluation.findings] == [("forbidden_call", "confinement")]
