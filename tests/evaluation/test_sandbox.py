"""The confinement itself: what a confined process can see, and that nothing outlives its leash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stitchcuda.evaluation import sandbox, wire
from stitchcuda.evaluation.device_gate import Gate, Holder
from stitchcuda.evaluation.runner_client import RunnerClient, Subject
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.wire import Op

ARENA = wire.Arena(setup=4096, structure=4096, report=1 << 16, inputs=4096, outputs=4096, state=4096)


def test_probe_lists_what_is_missing() -> None:
    missing = sandbox.probe()
    assert isinstance(missing, list)
    if os.geteuid() == 0:
        assert "confinement" not in " ".join(missing)


def test_environment_holds_no_keys_and_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = sandbox.scrubbed_environment("/work", {"EXTRA": "1"})
    assert "secret" not in environment.values()
    assert "LD_PRELOAD" not in environment
    assert environment["HOME"] == environment["TMPDIR"] == "/work"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["EXTRA"] == "1"


def test_killing_a_tree_reaches_those_that_left_the_group() -> None:
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    sandbox.kill_tree(process.pid)
    process.wait()
    process.stdout.close()
    assert ended([child])


def ended(processes: list[int]) -> bool:
    """Whether none of them runs any more, or none does within half a minute: a busy machine takes its time."""
    until = time.monotonic() + 30
    while any(_runs(pid) for pid in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start(name: str = "eager") -> RunnerClient:
    """A runner that has nothing to run yet."""
    return RunnerClient(Subject(name), kind="cpu", level="full", arena=ARENA, settings=EvaluationSettings())


@pytest.mark.parametrize("name", ["eager", "program"])
def test_a_runner_ends_with_its_supervisor(name: str) -> None:
    runner = start(name)
    runner.ask(Op.HELLO, timeout_s=60)
    members = [runner.process.pid, *sandbox.descendants(runner.process.pid)]
    assert len(members) == 3
    os.close(runner.leash_fd)
    runner.leash_fd = os.open(os.devnull, os.O_RDONLY)
    assert runner.process.wait(timeout=60) != 0
    runner.close()
    assert ended(members)
    assert not runner.workdir.exists()


def test_the_arena_cannot_be_shrunk() -> None:
    runner = start()
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(runner.arena_fd, 0)
    runner.close()


def test_whatever_a_runner_is_asked_holds_the_device(tmp_path: Path) -> None:
    """An ordered call keeps its stream busy for as long as it is asked, so that no clock counts beside it."""
    gate = Gate(tmp_path / "device.lock")
    runner = start()
    runner.gate = Holder(gate)
    runner.ask(Op.HELLO, timeout_s=60)
    runner.close()
    assert [span.hold for span in gate.spans] == ["work"]


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    link = os.fsencode(tmp_path) + b"/a \xff) 1 2"
    os.symlink(b"/bin/sleep", link)
    named = subprocess.Popen([link, b"60"])
    try:
        until = time.monotonic() + 10
        while b"\xff" not in Path(f"/proc/{named.pid}/stat").read_bytes():
            assert time.monotonic() < until
        assert named.pid in sandbox.descendants(os.getpid())
    finally:
        named.kill()
        named.wait()
