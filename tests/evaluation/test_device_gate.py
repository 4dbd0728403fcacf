"""The gate of a device: clocks are alone on it, in this process and among processes; work is not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stitchcuda.evaluation.device_gate import Gate, Hold, device_key, gate_of, locks_folder

LONG = 60.0


class Holding:
    """A thread that holds a gate until it is told to stop."""

    def __init__(self, gate: Gate, what: Hold) -> None:
        self.inside, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(gate, what), daemon=True)
        self.thread.start()

    def _run(self, gate: Gate, what: Hold) -> None:
        with gate.hold(what):
            self.inside.set()
            self.stop.wait(LONG)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(LONG)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(params=["this process", "a file"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    return Gate(tmp_path / "device.lock" if request.param == "a file" else None)


def test_work_is_done_side_by_side(gate: Gate) -> None:
    one, two = Holding(gate, "work"), Holding(gate, "start")
    assert one.inside.wait(LONG)
    assert two.inside.wait(LONG)
    one.end()
    two.end()


def test_a_clock_waits_for_work_and_keeps_new_work_out(gate: Gate) -> None:
    work = Holding(gate, "work")
    assert work.inside.wait(LONG)
    clock = Holding(gate, "clock")
    until(lambda: gate._waiting == 1)
    later = Holding(gate, "work")
    assert not later.inside.wait(0.1)
    assert not clock.inside.is_set()
    work.end()
    assert clock.inside.wait(LONG)
    assert not later.inside.wait(0.1)
    clock.end()
    assert later.inside.wait(LONG)
    later.end()


def test_short_work_goes_on_while_a_clock_waits_for_a_start(gate: Gate) -> None:
    start = Holding(gate, "start")
    assert start.inside.wait(LONG)
    clock = Holding(gate, "clock")
    until(lambda: gate._waiting == 1)
    with gate.hold("work"):
        assert not clock.inside.is_set()
    other = Holding(gate, "start")
    assert not other.inside.wait(0.1)
    start.end()
    assert clock.inside.wait(LONG)
    clock.end()
    assert other.inside.wait(LONG)
    other.end()


def test_who_holds_it_may_enter_again_but_no_clock_begins_within_work(gate: Gate) -> None:
    with gate.hold("clock"), gate.hold("work"), gate.hold("clock"):
        pass
    with gate.hold("start"), gate.hold("work"):
        pass
    with gate.hold("work"), pytest.raises(RuntimeError, match="wait for itself"), gate.hold("clock"):
        pass
    with gate.hold("clock"):
        pass


def test_spans_tell_who_held_it(gate: Gate) -> None:
    with gate.hold("clock", "mine"), gate.hold("work", "inner"):
        pass
    ((label, hold),) = [(span.label, span.hold) for span in gate.spans]
    assert (label, hold) == ("mine", "clock")


OTHER = (
    "import sys; from pathlib import Path; from stitchcuda.evaluation.device_gate import Gate;"
    "gate = Gate(Path(sys.argv[1]));\nwith gate.hold(sys.argv[2]): print('in', flush=True); sys.stdin.read()"
)


def other_process(path: Path, what: Hold) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_share_the_gate_and_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    gate = Gate(path)
    holder = other_process(path, "clock")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    mine = Holding(gate, "work")
    assert not mine.inside.wait(0.1)
    holder.kill()
    holder.wait()
    assert mine.inside.wait(LONG)
    clock = other_process(path, "clock")
    assert clock.stdout is not None
    until(gate._others_wait)
    # Work of this process that never ends as a whole lets the other's clock in between.
    late = Holding(gate, "work")
    assert not late.inside.wait(0.1)
    mine.end()
    assert clock.stdout.readline() == "in\n"
    clock.kill()
    clock.wait()
    assert late.inside.wait(LONG)
    late.end()


def test_a_device_has_one_gate_in_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STITCHCUDA_LOCKS", str(tmp_path / "locks"))
    assert gate_of("cpu") is gate_of("cpu")
    assert gate_of("cpu").path == locks_folder() / "cpu.lock"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1/2")
    assert device_key("cuda") == "GPU-1_2"
