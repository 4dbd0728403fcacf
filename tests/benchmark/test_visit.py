"""A visit runs its steps in order, goes on where it was, stops in time and packs what it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.support.processes import gone

ROOT = Path(__file__).resolve().parents[2]
VISIT = ROOT / "benchmarks" / "visit.py"

STEPS = """
[[step]]
name = "first"
about = "ends at once"
command = "{python} -c \\"open(r'{results}/first.json','a').write('1')\\""
least_seconds = 0

[[step]]
name = "sliced"
about = "needs two visits"
command = "{python} -c \\"import sys; open(r'{state}/half','w'); sys.exit(3)\\""
again = "{python} -c \\"open(r'{state}/half')\\""
least_seconds = 0

[[step]]
name = "endless"
about = "never ends, nor does its child"
command = "sh -c 'trap : INT; sleep 600 & echo $! > {state}/child; while true; do wait; done'"
least_seconds = 0
"""


def visit(folder: Path, *more: str, steps: str = STEPS) -> subprocess.CompletedProcess[str]:
    """One visit with these steps."""
    (folder / "results").mkdir(exist_ok=True)
    (folder / "steps.toml").write_text(steps)
    places = ["--steps", folder / "steps.toml", "--state", folder / "state", "--results", folder / "results"]
    return subprocess.run(
        [sys.executable, VISIT, *map(str, places), *more], capture_output=True, text=True, timeout=60, cwd=folder
    )


PAIRS = """
[[step]]
name = "left"
about = "needs its neighbour at the same time"
command = "sh -c 'echo $CUDA_VISIBLE_DEVICES > {state}/left; until test -e {state}/right; do sleep 0.05; done'"
least_seconds = 0

[[step]]
name = "right"
about = "needs its neighbour at the same time"
command = "sh -c 'echo $CUDA_VISIBLE_DEVICES > {state}/right; until test -e {state}/left; do sleep 0.05; done'"
least_seconds = 0

[[step]]
name = "early"
about = "of a series"
command = "sh -c 'test ! -e {state}/late; sleep 1; test ! -e {state}/late; echo {gpus} > {state}/early'"
least_seconds = 0
series = "one"

[[step]]
name = "late"
about = "of the same series"
command = "sh -c 'test -e {state}/early && touch {state}/late'"
least_seconds = 0
series = "one"

[[step]]
name = "wide"
about = "has the machine to itself"
command = "sh -c 'test -e {state}/late && echo {gpus} $CUDA_VISIBLE_DEVICES > {state}/wide'"
least_seconds = 0
spreads = true
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's list of GPUs says two; nothing else of them is asked for."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: another'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_steps_side_by_side_have_a_gpu_each_and_series_their_order(tmp_path: Path) -> None:
    ended = visit(tmp_path, "--side-by-side", "--minutes", "0.75", steps=PAIRS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(statuses(tmp_path).values()) == {"done"}
    told = {name: (tmp_path / "state" / name).read_text().split() for name in ("left", "right", "early", "wide")}
    assert sorted([*told["left"], *told["right"]]) == ["0", "1"]
    assert (told["early"], told["wide"]) == (["1"], ["2"])


@pytest.mark.usefixtures("two_gpus")
def test_an_interrupt_ends_steps_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "steps.toml").write_text(STEPS)
    places = ["--steps", tmp_path / "steps.toml", "--state", tmp_path / "state", "--results", tmp_path]
    process = subprocess.Popen(
        [sys.executable, VISIT, *map(str, places), "--only", "endless", "--side-by-side"],
        cwd=tmp_path,
        # A batch job's children ignore interrupts from the start, and so would the visit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    child = tmp_path / "state" / "child"
    deadline = time.monotonic() + 30
    while not (child.exists() and child.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) not in (0, 3)
    assert gone(int(child.read_text()))


def statuses(folder: Path) -> dict[str, str]:
    held = json.loads((folder / "state" / "visit.json").read_text())
    return {name: entry["status"] for name, entry in held.items()}


def test_a_visit_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old.json").write_text("{}")
    first = visit(tmp_path, "--only", "first,sliced", "--out", str(tmp_path / "out"))
    assert first.returncode == 3, first.stdout + first.stderr
    assert statuses(tmp_path) == {"first": "done", "sliced": "left"}
    with tarfile.open(tmp_path / "out" / "visit.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"state/half", "state/visit.json", "state/logs/first.txt", "results/first.json"} <= names
    assert "results/old.json" not in names
    second = visit(tmp_path, "--only", "first,sliced")
    assert second.returncode == 0, second.stdout + second.stderr
    assert statuses(tmp_path) == {"first": "done", "sliced": "done"}
    assert (tmp_path / "results" / "first.json").read_text() == "1", "a step that is done was run again"


def test_a_step_is_stopped_with_its_children_when_the_time_is_over(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = visit(tmp_path, "--only", "endless", "--minutes", str(17 / 60))
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert time.monotonic() - began < 30
    child = int((tmp_path / "state" / "child").read_text())
    assert gone(child)


def test_steps_that_are_unknown_or_wrong_are_refused(tmp_path: Path) -> None:
    assert "no step is named nothing; there are first, sliced, endless" in visit(tmp_path, "--only", "nothing").stderr
    (tmp_path / "bad.toml").write_text("[[step]]\nname = 'x'\n")
    assert "is no list of steps" in visit(tmp_path, "--steps", str(tmp_path / "bad.toml")).stderr


def test_every_command_of_the_list_is_one_that_is_there() -> None:
    """Scripts exist and know the options that they are given."""
    import importlib.util
    import tomllib

    for step in tomllib.loads((ROOT / "benchmarks" / "visit.toml").read_text())["step"]:
        for command in filter(None, (step["command"], step.get("again"))):
            words = command.split()
            assert words[0] == "{python}"
            if words[1] == "-m":
                assert importlib.util.find_spec(f"{words[2]}.__main__"), f"python -m {words[2]} starts nothing"
                continue
            text = (ROOT / words[1]).read_text()
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in text, f"{words[1]} has no {option}"
