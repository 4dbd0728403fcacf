"""The measurement runner keeps what is finished, skips it next time, and ends when its slice does."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import gone

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MEASURE = BENCHMARKS / "measure.py"


def command(folder: Path, *arguments: str) -> list[str]:
    return [
        *(sys.executable, str(MEASURE), *arguments),
        *("--results", str(folder / "r.json"), "--runs", str(folder / "runs")),
    ]


def measure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *arguments), capture_output=True, text=True, timeout=120, cwd=folder)


def items(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder / "r.json").read_text())
    assert isinstance(document["items"], list)
    return document["items"]


def script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(body)
    return str(path)


COUNTED = "from pathlib import Path\nwith Path('count').open('a') as f: f.write('x')\nprint('figures', 42)\n"


def test_a_finished_item_is_kept_with_provenance_and_skipped_next_time(tmp_path: Path) -> None:
    one = script(tmp_path, "one.py", COUNTED)
    first = measure(tmp_path, "script", one)
    assert first.returncode == 0, first.stderr
    (entry,) = items(tmp_path)
    assert entry["output"].strip() == "figures 42"
    assert {"commit", "date", "gpu", "driver", "torch", "cuda", "cpu"} <= set(entry["provenance"])
    second = measure(tmp_path, "script", one)
    assert second.returncode == 0
    assert (tmp_path / "count").read_text() == "x"
    assert measure(tmp_path, "script", one, "--again").returncode == 0
    assert (tmp_path / "count").read_text() == "xx"
    assert len(items(tmp_path)) == 1
    assert "figures 42" in (tmp_path / "r.md").read_text()


def test_an_item_over_its_limit_is_stopped_with_its_children_and_the_others_are_measured(tmp_path: Path) -> None:
    slow = script(
        tmp_path,
        "slow.py",
        "import os, signal, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "Path('pid').write_text(str(child.pid))\n"
        "time.sleep(60)\n",
    )
    quick = script(tmp_path, "quick.py", COUNTED)
    done = measure(tmp_path, "script", slow, quick, "--item-seconds", "2")
    assert done.returncode == 3, done.stderr
    states = {Path(e["item"]).name: e["provisional"] for e in items(tmp_path)}
    assert states == {"slow.py": True, "quick.py": False}
    child = int((tmp_path / "pid").read_text())
    assert gone(child)


def test_a_terminated_runner_keeps_what_is_finished(tmp_path: Path) -> None:
    quick = script(tmp_path, "quick.py", COUNTED)
    slow = script(tmp_path, "slow.py", "import time\ntime.sleep(60)\n")
    running = subprocess.Popen(
        command(tmp_path, "script", quick, slow), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "r.md").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(running.pid, signal.SIGTERM)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 3
    assert "quick.py" in out.splitlines()[-1]
    assert [Path(e["item"]).name for e in items(tmp_path)] == ["quick.py"]


def test_more_measuring_lanes_than_gpus_are_refused(tmp_path: Path) -> None:
    done = measure(tmp_path, "script", script(tmp_path, "one.py", COUNTED), "--lanes", "64")
    assert done.returncode != 0
    assert "disturb each other" in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_a_foreign_result_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[1, 2]")
    done = measure(tmp_path, "script", script(tmp_path, "one.py", COUNTED))
    assert done.returncode != 0
    assert "not a result file" in done.stderr
    assert (tmp_path / "r.json").read_text() == "[1, 2]"


def test_a_failing_item_is_shown_as_pending_with_its_error(tmp_path: Path) -> None:
    bad = script(tmp_path, "bad.py", "raise SystemExit('no such device')\n")
    done = measure(tmp_path, "script", bad)
    assert done.returncode == 3
    assert "no such device" in items(tmp_path)[0]["error"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tables")


def entry(number: int, status: str, over_best: float | None, own: float, labels: list[str]) -> dict[str, Any]:
    speed = {} if over_best is None else {"over_best": over_best, "eager": 2 * over_best}
    return {
        "key": f"optimize kernelbench:3/{number}",
        "verb": "optimize",
        "item": f"kernelbench:3/{number}",
        "exit": 0,
        "seconds": 1.0,
        "provenance": {"gpu": "NVIDIA H200", "date": "2026-11-29T00:00:00Z"},
        "result": {
            "task": f"kb3_{number:03}",
            "status": status,
            "precision": "fp32",
            "speedup": speed,
            "seconds": {"program": 0.001, "eager": 0.002, "cuda_graph": 0.0015},
            "census": {"own": own, "library": 1 - own, "framework": 0.0, "label": "hybrid"},
            "labels": labels,
            "run": "runs/r1",
        },
    }


def test_means_count_failures_as_zero_and_ill_conditioned_tasks_apart(tables: Any) -> None:
    page = tables.page(
        {
            "title": "T",
            "items": [
                entry(2, "correct", 2.0, 0.5, []),
                entry(18, "correct", 1.0, 0.05, []),
                entry(39, "nothing_correct", None, 0.0, []),
                entry(24, "correct", 9.0, 0.2, ["ill_conditioned"]),
            ],
        }
    )
    assert "3 of 4 correct; 2 with 10% or more" in page
    assert "| over the best stock option | failures as 0 | 1.00 | 0.00 | 1.00 |" in page
    assert "| over the best stock option | without failures | 1.50 | 1.41 | 1.50 |" in page
    before, after = page.split("Reported apart")
    assert "kb3_024" not in before
    assert "kb3_024" in after
    assert "NVIDIA H200" in after
