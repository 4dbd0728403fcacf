"""An orchestrator that can be killed: submits jobs under fixed ids to a spool, and keeps what came of each in a
journal, so that started again it goes on. Run as a module by ``test_chaos``."""

from __future__ import annotations

import os
import sys
from concurrent.futures import as_completed
from pathlib import Path

from stitchcuda.compute.model import Job
from stitchcuda.compute.spool import SpoolCompute
from tests.compute.support import evaluation_of, probe

PROBES = 296
EVALUATED = ("relu", "square", "gelu", "tanh")


def jobs() -> list[Job]:
    """Three hundred: mostly probes, which go through all that evaluations do but the work itself."""
    real = [evaluation_of(name, id=f"eval-{name}", attempts=100) for name in EVALUATED]
    probes = [probe(id=f"probe-{number}", pause_s=0.1, attempts=100) for number in range(PROBES)]
    return [*probes[:40], *real, *probes[40:]]


def main(spool: Path, journal: Path) -> None:
    """Submit what the journal does not hold, and add what comes, one line each."""
    known = {line.split()[0] for line in journal.read_text().splitlines()} if journal.exists() else set()
    with SpoolCompute(spool, lease_s=2) as place, journal.open("a") as file:
        futures = [place.submit(job) for job in jobs() if job.id not in known]
        for future in as_completed(futures):
            outcome = future.result()
            said = (
                outcome.evaluation.status if outcome.evaluation else outcome.failure.reason if outcome.failure else ""
            )
            file.write(f"{outcome.job} {'failed' if outcome.failure else 'ok'} {outcome.attempts} {said}\n")
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
