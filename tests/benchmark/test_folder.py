"""What a sweep's folder says, and what of it can be handed on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stitchcuda.benchmark.folder import RESULTS, load_results, write_results
from tests.benchmark.samples import record, sweep


def test_results_hold_no_paths_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("STITCHCUDA_CACHE", "/data/cache")
    folder = tmp_path / "sweep"
    folder.mkdir()
    tasks = str(tmp_path / "tasks")
    told = {
        "a.0": (f"the run in {folder}/items/a.0/x has not ended", "the run in sweep/items/a.0/x has not ended"),
        "b.0": (f"{tasks}/b.py is too large", "tasks/b.py is too large"),
        "c.0": ("no space left in /home/alice/x and /home/alice", "no space left in ~/x and ~"),
        "d.0": ("the spool /srv/spool. It is full", "the spool spool. It is full"),
        "e.0": ("in /data/cache/builds, not in /data/cache-2", "in cache/builds, not in /data/cache-2"),
    }
    found = sweep(
        [record("f", status="not_runnable", origin=f"{tasks}/f.py", message=f"it imports from {tasks}, which is not")],
        still_open={item: reason for item, (reason, _) in told.items()},
        folder=tasks,
        compute="spool:/srv/spool",
    )
    write_results(found, folder, table="", report="")
    handed = load_results(folder / RESULTS)
    assert handed.open == {item: plain for item, (_, plain) in told.items()}
    assert handed.records[0].message == "it imports from tasks, which is not"
    assert str(tmp_path) not in json.dumps(handed.model_dump(mode="json"))
