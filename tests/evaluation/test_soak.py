"""Many evaluations in a row leave nothing behind, and the same Program always gets the same verdict.

``STITCHCUDA_SOAK=50 pytest tests/evaluation/test_soak.py`` runs more of them.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from stitchcuda.evaluation import sandbox
from stitchcuda.evaluation.evaluator import Evaluator
from tests.evaluation.conftest import DEVICE, QUICK, make_facts, make_task, program

COUNT = int(os.environ.get("STITCHCUDA_SOAK", "12"))

TASK = make_task("""
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(64, 32)]
def get_init_inputs():
    return []
""")

CALL = "class ModelNew(nn.Module):\n    def forward(self, x):\n        {}\n        return torch.relu(x) * 2\n"

PROGRAMS = {
    "correct": CALL.format("pass"),
    "wrong_output": CALL.format("x = x + 1e-3"),
    "timed_out": CALL.format("while True: pass"),
    "crashed": CALL.format("import os; os.kill(os.getpid(), 11)"),
    "dishonest": CALL.format("y = torch.relu(x) * 2; x.add_(1); return y"),
    "build_failed": "class ModelNew(nn.Module:\n",
}

LEAVES_A_CHILD = CALL.format("import os, time; os.fork() or (os.setsid(), time.sleep(600))")


def left_behind() -> dict[str, object]:
    """What this process and the machine hold on its behalf."""
    return {
        "descriptors": sum(not _lease(descriptor) for descriptor in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "folders": sorted(p.name for p in Path(tempfile.gettempdir()).glob("stitchcuda-*")),
        "processes": len(sandbox.descendants(os.getpid())),
    }


def _lease(descriptor: Path) -> bool:
    """Whether it keeps a built Program in the cache, which a process does for the latest of them."""
    try:
        return descriptor.readlink().parent.name == "locks"
    except FileNotFoundError:
        return False


def at_rest() -> dict[str, object]:
    """What is held once nothing has come or gone for half a second."""
    held, since = left_behind(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.05)
        now = left_behind()
        if now != held:
            held, since = now, time.monotonic()
    return held


def settled(expected: dict[str, object]) -> dict[str, object]:
    """What is held once it is as expected; after half a minute, as it is: the dying need a moment on a busy machine."""
    until = time.monotonic() + 30
    while (held := left_behind()) != expected and time.monotonic() < until:
        time.sleep(0.05)
    return held


def test_many_evaluations_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    settings = QUICK.model_copy(update={"call_timeout_s": 3.0, "call_timeout_factor": 1.1})
    kinds = itertools.cycle([*PROGRAMS.items(), ("dishonest", LEAVES_A_CHILD)])
    # What oracles and runners are forked from stays for the next evaluator.
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path, settings=settings) as evaluator:
        assert evaluator.evaluate(program(PROGRAMS["correct"])).status == "correct"
    before = at_rest()
    with Evaluator(TASK, make_facts(), DEVICE, cache=tmp_path, settings=settings) as evaluator:
        verdicts = []
        for expected, source in itertools.islice(kinds, COUNT):
            evaluation = evaluator.evaluate(program(source))
            verdicts.append((expected, evaluation.status, evaluation.message))
            if len(verdicts) == 1:
                first = at_rest()
            assert settled(first) == first, verdicts
            # The temporary folder is closed to other users here, which must cost nothing of the confinement.
            if not sandbox.probe() and expected != "build_failed":
                assert evaluation.provenance["confinement"] == "full"
        assert [(expected, status) for expected, status, _ in verdicts] == [(e, e) for e, _, _ in verdicts], verdicts
    assert settled(before) == before
