"""Runners forked from one process that has torch: what they share, what they do not, and what happens without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import venv
from pathlib import Path

import pytest
import torch

from stitchcuda import nursery
from stitchcuda.evaluation import sandbox, wire
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.runner_client import RunnerClient, Subject
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.wire import Op
from tests.evaluation.conftest import DEVICE, QUICK, make_facts, make_task

ARENA = wire.Arena(setup=4096, structure=4096, report=1 << 16, inputs=4096, outputs=4096, state=4096)


def start() -> RunnerClient:
    """A runner that has nothing to run yet."""
    runner = RunnerClient(Subject("program"), kind="cpu", level="full", arena=ARENA, settings=EvaluationSettings())
    runner.ask(Op.HELLO, timeout_s=60)
    return runner


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_runners_come_from_one_process_each_confined_anew() -> None:
    one, two = start(), start()
    assert parent(one.process.pid) == parent(two.process.pid)
    for runner in (one, two):
        leash, *_, inner = [runner.process.pid, *sandbox.descendants(runner.process.pid)]
        assert os.getsid(leash) == leash
        if not sandbox.probe():
            assert os.stat(f"/proc/{inner}").st_uid >= sandbox.FIRST_UID
            assert os.readlink(f"/proc/{inner}/ns/net") != os.readlink("/proc/self/ns/net")
        assert runner.report()["missing"] == sandbox.probe()
    one.close()
    two.ask(Op.NOOP, timeout_s=10)
    two.close()


def test_a_later_runner_is_quick() -> None:
    start().close()
    took = []
    for _ in range(3):
        began = time.monotonic()
        start().close()
        took.append(time.monotonic() - began)
    assert min(took) < 1, "an interpreter that imports torch takes longer"


def test_the_process_holds_neither_keys_nor_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    runner = start()
    mother = parent(runner.process.pid)
    for pid in (mother, runner.process.pid):
        began_with = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"planted" not in began_with
        assert b"OMP_NUM_THREADS=3" in began_with, "what libraries read when they are loaded is as it is now"
    assert len(os.listdir(f"/proc/{mother}/fd")) <= 4, "its end of the channel and nothing of any runner's"
    runner.close()


def test_an_exit_code_is_told_once_the_process_has_ended() -> None:
    runner = start()
    assert runner.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        runner.process.wait(timeout=0.01)
    os.kill(runner.process.pid, signal.SIGKILL)
    assert runner.process.wait(timeout=10) == -signal.SIGKILL
    assert runner.process.poll() == -signal.SIGKILL
    runner.close()


def test_there_is_one_for_each_set_of_cores() -> None:
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("this machine lets the process run on one core")
    first = start()
    os.sched_setaffinity(0, {min(every)})
    try:
        second = start()
    finally:
        os.sched_setaffinity(0, every)
    assert os.sched_getaffinity(second.process.pid) == {min(every)}
    assert os.sched_getaffinity(first.process.pid) == every
    assert parent(first.process.pid) != parent(second.process.pid)
    first.close()
    second.close()


def test_gpu_processes_are_forked_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nursery.FORKS_CUDA, raising=False)
    assert nursery.forks("cuda")
    monkeypatch.setenv(nursery.FORKS_CUDA, "0")
    assert not nursery.forks("cuda")
    assert nursery.forks("cpu")


STARTS_A_PROBE = """
import os, stitchcuda.nursery as nursery
reading, writing = os.pipe()
process = nursery.start_module("stitchcuda.task.probe", ["/nowhere/task.json", "/nowhere/facts.json"], output=writing)
assert process is not None, "not forked"
assert process.wait(60) == 1
os.close(writing)
print(os.fdopen(reading).read())
"""


def test_packages_that_only_the_search_path_shows_are_found(tmp_path: Path) -> None:
    """As on a machine whose Python is not to be written to, with all but torch in a folder on PYTHONPATH."""
    apart = ("pydantic", "annotated_types", "typing_inspection")
    packages, own = tmp_path / "packages", tmp_path / "own"
    for folder in (packages, own):
        folder.mkdir()
    for path in Path(torch.__file__).parents[1].iterdir():
        if path.suffix != ".pth" and path.name != "__pycache__" and not path.name.startswith("__editable__"):
            ((own if path.name.startswith(apart) else packages) / path.name).symlink_to(path)
    venv.create(tmp_path / "python", with_pip=False)
    site = next((tmp_path / "python").glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(f"{packages}\n")
    source = Path(nursery.__file__).parents[1]
    done = subprocess.run(
        [tmp_path / "python" / "bin" / "python", "-c", STARTS_A_PROBE],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{source}:{own}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "/nowhere/task.json" in done.stdout


def test_a_dead_nursery_is_replaced_and_its_runners_can_still_be_closed() -> None:
    runner = start()
    os.kill(parent(runner.process.pid), signal.SIGKILL)
    runner.close()
    assert not runner.alive()
    start().close()


def test_without_a_nursery_a_runner_is_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: str) -> nursery.Nursery:
        raise OSError("no process can be started")

    monkeypatch.setattr(nursery, "nursery", refuse)
    runner = start()
    assert parent(runner.process.pid) == os.getpid()
    assert json.dumps(runner.report()["missing"])
    runner.close()


READS_ITS_SURROUNDINGS = """
import os
class Model(nn.Module):
    def forward(self, x):
        return x * float(os.environ["FACTOR"]) + float(open("offset").read())
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""


def test_an_oracle_has_the_users_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offset").write_text("2")
    monkeypatch.chdir(tmp_path)
    for factor in ("3", "4"):
        monkeypatch.setenv("FACTOR", factor)
        task = make_task(READS_ITS_SURROUNDINGS)
        with Evaluator(task, make_facts(), DEVICE, cache=tmp_path, settings=QUICK) as evaluator:
            assert evaluator.plan["inputs"] > 0
            assert parent(evaluator.oracle.process.pid) != os.getpid()
