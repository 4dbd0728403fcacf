"""Three hundred jobs while workers are killed every few seconds and the orchestrator twice: all are done exactly once
to effect, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stitchcuda.compute.spool_folder import SpoolFolder
from tests.compute.orchestrator import EVALUATED, PROBES, jobs
from tests.compute.support import EXPECTED, PATIENCE, start_worker, until

WORKERS = 3
KILLS = 8
"""Bounded, so that the test ends on a machine that is too slow to get much done in between."""


def start_orchestrator(spool: Path, journal: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.compute.orchestrator", str(spool), str(journal)]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


@pytest.mark.timeout(600)
def test_three_hundred_jobs_survive_their_workers_and_their_orchestrator(tmp_path: Path) -> None:
    path, journal, cache = tmp_path / "spool", tmp_path / "journal", tmp_path / "cache"
    draw = random.Random(8)
    orchestrator = start_orchestrator(path, journal)
    until(lambda: (path / "artifacts").is_dir(), "the spool")
    folder = SpoolFolder(path, create=False)

    def lines() -> list[str]:
        return journal.read_text().splitlines() if journal.exists() else []

    workers = {f"w{number}": start_worker(path, cache, "--name", f"w{number}", "--quiet") for number in range(WORKERS)}
    started, kills, orchestrators = WORKERS, 0, 0
    deadline = time.monotonic() + 2 * PATIENCE
    while orchestrator.poll() is None:
        assert time.monotonic() < deadline, f"{len(lines())} of {len(jobs())} after {2 * PATIENCE:g} s"
        time.sleep(draw.uniform(0.2, 0.8))
        if orchestrators < 2 and len(lines()) >= 60 * (orchestrators + 1):
            orchestrator.kill()
            orchestrator.wait()
            orchestrator = start_orchestrator(path, journal)
            orchestrators += 1
        if kills < KILLS:
            claimed = {entry.worker.rpartition("-")[0] for entry in folder.listed("claimed")}
            victims = sorted(claimed & workers.keys())
            if victims:
                victim = draw.choice(victims)
                workers.pop(victim).kill()
                workers[f"w{started}"] = start_worker(path, cache, "--name", f"w{started}", "--quiet")
                started, kills = started + 1, kills + 1
    for worker in workers.values():
        worker.send_signal(signal.SIGTERM)
    for worker in workers.values():
        worker.wait(PATIENCE)

    told = [line.split() for line in lines()]
    assert len(told) == PROBES + len(EVALUATED)
    assert len({line[0] for line in told}) == len(told), "a result was given twice"
    assert all(line[1] == "ok" for line in told)
    assert {line[0]: line[3] for line in told if len(line) > 3} == {
        f"eval-{name}": EXPECTED[name] for name in EVALUATED
    }
    assert sorted(folder.results()) == sorted(line[0] for line in told)
    assert folder.listed("jobs") == []
    assert kills >= 5
    assert orchestrators == 2
    assert any(int(line[2]) > 1 for line in told), "no job was interrupted"
