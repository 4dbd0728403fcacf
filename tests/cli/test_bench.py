"""Sweeps through the real command: killed and gone on with, with a model, asked to stop, and over others' programs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.cli.bench import _usual_jobs as usual_jobs
from stitchcuda.compute.model import Outcome
from stitchcuda.compute.spool_folder import Registered, SpoolFolder
from stitchcuda.hardware.detect import detect
from tests.cli.world import GOOD, TASK, WRONG, command, environment, in_turn, script, stitchcuda
from tests.support.scripted_endpoint import ScriptedEndpoint

MATMUL = """
import torch
from torch import nn


class Model(nn.Module):
    @torch.compiler.disable
    def forward(self, x, y):
        return torch.matmul(x, y)


def get_inputs():
    return [torch.randn(48, 48), torch.randn(48, 48)]


def get_init_inputs():
    return []
"""
"""No recipe makes this faster."""
SCREEN = ("--target", "cpu", "--tier", "screen")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Three tasks: recipes have something for the second."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "a.py").write_text(MATMUL)
    (folder / "b.py").write_text(TASK)
    (folder / "c.py").write_text(MATMUL.replace("48", "32"))
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a journal."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def of_kind(path: Path, kind: str) -> list[dict[str, Any]]:
    return [line["data"] for line in lines(path) if line["kind"] == kind]


@pytest.mark.timeout(600)
def test_a_killed_sweep_ends_as_one_that_was_not_and_does_nothing_twice(
    tasks: Path, tmp_path: Path, cache: Path
) -> None:
    line = command("bench", "folder", tasks, *SCREEN, "--iterations", "1", "--out", "sweep")
    sweep = tmp_path / "sweep"
    process = subprocess.Popen(
        line, cwd=tmp_path, env=environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = sweep / "journal.jsonl"
    while not any(line["kind"] == "baselines" for line in _second(sweep)):
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = of_kind(journal, "record")
    begun = _second(sweep)

    done = stitchcuda("bench", "resume", "sweep", "--json", cache=cache, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [(r["task"], r["status"]) for r in results["records"]] == [
        ("a", "no_rewrite"),
        ("b", "correct"),
        ("c", "no_rewrite"),
    ]
    assert results["records"][0] == {**first[0], "origin": "a.py"}, "what was done stays as it was"
    assert str(tmp_path) not in (sweep / "results.json").read_text(), "results can be handed on"
    assert Counter(data["item"] for data in of_kind(journal, "record")) == {"a.0": 1, "b.0": 1, "c.0": 1}
    assert [line["sha256"] for line in _second(sweep)][: len(begun)] == [line["sha256"] for line in begun]
    for path in sweep.glob("items/*/*/journal.jsonl"):
        effects = [line for line in lines(path) if line["kind"] not in ("state", "attempt", "reply")]
        assert max(Counter((e["kind"], e["node"]) for e in effects).values()) == 1
    assert len(list(sweep.glob("items/*/*/journal.jsonl"))) == 3

    again, shown, compared = in_turn(
        ("bench", "resume", "sweep", "--json"),
        ("bench", "show", "sweep", "--markdown"),
        ("bench", "compare", "sweep", "sweep", "--json"),
        cache=cache,
        cwd=tmp_path,
    )
    assert json.loads(again.stdout)["records"] == results["records"]
    assert json.loads(compared.stdout)["ratio"] == 1.0
    assert shown.stdout == (sweep / "table.md").read_text()
    assert "| b | correct |" in shown.stdout
    assert "tier: screen" in shown.stdout
    assert "href=" in (sweep / "report.html").read_text()


def _second(sweep: Path) -> list[dict[str, Any]]:
    """The journal of the second item's run."""
    return [line for path in sweep.glob("items/b.0/*/journal.jsonl") for line in lines(path)]


@pytest.mark.slow
def test_a_model_is_paid_once_and_its_tokens_stand_in_the_table(tasks: Path, tmp_path: Path, cache: Path) -> None:
    for name in ("a", "c"):
        (tasks / f"{name}.py").unlink()
    with ScriptedEndpoint(script(ideas={"in place": [GOOD]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url, "--no-knowledge")
        limits = ("--jobs", "1", "--iterations", "1", "--tokens-per-minute", "1000000", "--beam", "2", "--drafts", "1")
        done = stitchcuda("bench", "folder", tasks, *SCREEN, *model, *limits, "--json", cache=cache, cwd=tmp_path)
        asked = endpoint.count
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    (record,) = results["records"]
    assert (record["task"], record["status"], record["requests"]) == ("b", "correct", asked)
    assert record["input_tokens"] > 0
    assert results["summary"]["main"]["usd"] is None, "nobody knows what a scripted model costs"


def test_programs_of_others_are_judged_as_strictly_as_our_own(tasks: Path, tmp_path: Path, cache: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (tasks / "a.py").write_text(TASK)
    (programs / "a.py").write_text(GOOD)
    (programs / "b.py").write_text(WRONG)
    done = stitchcuda(
        *("bench", "score", programs, "--tasks", tasks, *SCREEN, "--jobs", "2", "--out", "scored", "--json"),
        cache=cache,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [(r["task"], r["status"], r["programs"]) for r in results["records"]] == [
        ("a", "correct", {"correct": 1}),
        ("b", "nothing_correct", {"wrong_output": 1}),
    ]
    assert results["records"][0]["speedup"]["over_best"] > 0
    assert results["summary"]["main"]["success"]["value"] == 0.5


def test_what_cannot_be_run_is_said_before_anything_is_begun(tmp_path: Path, cache: Path) -> None:
    (done,) = in_turn(("bench", "folder", "nowhere", *SCREEN, "--out", "sweep"), cache=cache, cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("known", [False, True], ids=["while it waits for a device", "while items wait"])
def test_a_sweep_that_is_asked_to_stop_ends_soon_and_says_how_to_go_on(
    tasks: Path, tmp_path: Path, cache: Path, known: bool
) -> None:
    line = command("bench", "folder", tasks, *SCREEN, "--compute", "spool:nobody", "--jobs", "2", "--out", "sweep")
    process = subprocess.Popen(
        line, cwd=tmp_path, env=environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "sweep" / "journal.jsonl"
    jobs = tmp_path / "nobody" / "jobs"
    while len(of_kind(journal, "item")) < 2 if known else not any(jobs.glob("*")):
        assert process.poll() is None, "ended although nobody does its work"
        if known:
            _tell_device(jobs.parent)
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "go on with: stitchcuda bench resume sweep" in told
    assert of_kind(journal, "stopped")
    assert "3 of 3" in (tmp_path / "sweep" / "table.md").read_text()


def _tell_device(folder: Path) -> None:
    """As a worker would that is gone afterwards."""
    if not (folder / "spool.json").is_file():
        return
    with closing(SpoolFolder(folder)) as spool:
        for entry in spool.listed("jobs"):
            claim = spool.claim(entry, "gone")
            assert claim is not None
            job = spool.read(claim)
            if job.kind == "ceilings":
                spool.finish(Outcome(job=job.id, kind=job.kind, device=detect("cpu")), claim)


def test_a_sweep_keeps_the_workers_of_a_spool_busy(tmp_path: Path) -> None:
    """Not as many items as this machine has GPUs: the devices are elsewhere."""
    assert usual_jobs("recipes", "cpu", "local") == 1
    assert usual_jobs("recipes", "cpu", f"spool:{tmp_path / 'later'}") == 8
    assert usual_jobs("recipes", "cpu", "ray") == 8
    facts = detect("cpu")
    with closing(SpoolFolder(tmp_path / "spool")) as spool:
        for number in range(6):
            spool.register(Registered(name=f"w{number}", host="h", pid=1, device=facts.name, kind="cpu", facts=facts))
    assert usual_jobs("recipes", "cpu", f"spool:{tmp_path / 'spool'}") == 12
    (tmp_path / "spool" / "spool.json").write_text("{")
    assert usual_jobs("recipes", "cpu", f"spool:{tmp_path / 'spool'}") == 8
