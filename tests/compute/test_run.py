"""A whole run whose evaluations happen elsewhere: the real command, and a worker on a spool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stitchcuda.compute.spool import SpoolCompute
from tests.cli.world import GOOD, QUICK, TASK, script, stitchcuda
from tests.compute.support import PATIENCE, start_worker
from tests.support.scripted_endpoint import ScriptedEndpoint


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_run_takes_its_measurements_from_a_spool(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.py").write_text(TASK)
    SpoolCompute(tmp_path / "spool").close()
    worker = start_worker(tmp_path / "spool", cache)
    try:
        with ScriptedEndpoint(script(ideas={"in place": [GOOD]})) as endpoint:
            model = ("--model", "openai:scripted", "--base-url", endpoint.base_url, "--no-knowledge")
            where = ("--compute", "spool:spool", "--confirm", "none", "--json")
            done = stitchcuda("optimize", "small.py", *model, *QUICK, *where, cache=cache, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["status"] == "correct"
        assert summary["over_best"] > 0
        # From anywhere: the run knows where its spool is.
        again = stitchcuda("runs", "resume", summary["run"], "--json", cache=cache, cwd=Path("/"))
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout) == summary
    finally:
        worker.terminate()
        worker.wait(PATIENCE)


def test_auto_without_a_worker_asks_for_the_target(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.py").write_text(TASK)
    done = stitchcuda("optimize", "small.py", "--compute", "spool:spool", cache=cache, cwd=tmp_path)
    assert done.returncode == 2
    assert "--target" in done.stderr
    assert not (tmp_path / "runs").exists()
