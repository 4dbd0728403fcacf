"""``stitchcuda optimize`` as a user meets it: the real command, evaluator and HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Finished
from tests.cli.world import GOOD, QUICK, TASK, WRONG, attempts, command, environment, script, stitchcuda, the_run
from tests.support.scripted_endpoint import ScriptedEndpoint, status


def test_a_model_takes_a_task_to_a_confirmed_program(finished: Finished) -> None:
    summary = finished.summary
    assert summary["status"] == "correct"
    assert summary["mind"] == "openai:scripted"
    assert summary["tier"] == "publish"
    assert summary["speedup"]["eager"] > 1.2
    assert summary["speedup"]["over_best"] == summary["over_best"] > 0
    assert set(summary["seconds"]) >= {"program", "eager", "compile"}
    assert summary["census"]["label"] == "host_only"
    assert summary["spent"]["requests"] == finished.requests == 9
    assert summary["spent"]["input_tokens"] > 0
    assert [(n, i, s) for n, i, s, _ in attempts(finished.run)] == [
        (1, "in place", "wrong_output"),
        (2, "in place", "correct"),
        (3, "clamp", "crashed"),
        (4, "clamp", "correct"),
    ]


def test_the_run_folder_holds_everything_but_keys(finished: Finished) -> None:
    for name in ("task.py", "config.toml", "journal.jsonl", "summary.json", "best/program.py", "programs/002.json"):
        assert (finished.run / name).is_file(), name
    written = "".join(p.read_text() for p in finished.run.rglob("*") if p.is_file())
    assert "sk-planted-secret" not in written + finished.printed
    assert json.loads((finished.run / "summary.json").read_text()) == finished.summary


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.py",), "missing.py"),
        (("small.py", "--compute", "ray"), "--compute local"),
        (("small.py", "--target", "tpu"), "target"),
        (("small.py", "--model", "nobody:x", "--yes"), "nobody:x"),
        (("small.py", "--iterations", "0"), "iterations"),
        (("small.py", "--base-url", "http://me:pw@host/v1", "--model", "openai:x"), "environment variable"),
        (("small.py", "--from", "missing.py"), "missing.py"),
        (("small.py", "--coder-model", "openai:x"), "no effect on recipes"),
        (("small.py", "--target", "cpu", "--out", "small.py"), "cannot be kept in small.py (Not a directory)"),
        (("broken.py", "--target", "cpu"), "forward raised NameError at line 13"),
    ],
)
def test_wrong_use_is_a_sentence_and_leaves_nothing(
    home: Path, cache: Path, arguments: tuple[str, ...], words: str
) -> None:
    (home / "broken.py").write_text(TASK.replace("y = x", "y = undefined"))
    done = stitchcuda("optimize", *arguments, cache=cache, cwd=home)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(home.glob("runs/*"))


def test_an_endpoint_that_is_down_leaves_a_run_that_goes_on(home: Path, cache: Path) -> None:
    """A server that fails for good ends the command with a sentence; once it answers, the run ends well."""
    rules = script(ideas={"in place": [GOOD]})
    broken = {"rules": [{"answers": [status(400, {"error": {"message": "no such deployment"}})]}]}
    with ScriptedEndpoint(broken) as endpoint:
        port = endpoint.port
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        failed = stitchcuda("optimize", "small.py", *model, *QUICK, cache=cache, cwd=home)
    assert failed.returncode == 1
    assert "no such deployment" in failed.stderr
    assert f"stitchcuda runs resume {the_run(home)}" in failed.stderr
    with ScriptedEndpoint(rules, port=port):
        done = stitchcuda("runs", "resume", "last", "--json", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "correct"


def test_a_given_program_is_the_base_and_may_win(home: Path, cache: Path) -> None:
    (home / "mine.py").write_text(GOOD)
    with ScriptedEndpoint(script(ideas={"in place": [WRONG, WRONG]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        done = stitchcuda("optimize", "small.py", "--from", "mine.py", *model, *QUICK, "--json", cache=cache, cwd=home)
        prompts = [request.text for request in endpoint.requests]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["number"] == 0
    assert any("mul_(16.0)" in prompt for prompt in prompts), "the Coder sees what it builds on"


def test_a_plan_is_edited_before_anything_is_written(home: Path, cache: Path) -> None:
    with ScriptedEndpoint(script(ideas={"bad": [WRONG], "in place": [GOOD]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        waiting = stitchcuda("optimize", "small.py", "--approve-plan", *model, *QUICK, cache=cache, cwd=home)
        assert waiting.returncode == 0, waiting.stderr
        assert "plan.json" in waiting.stdout
        assert endpoint.count == 1
        run = the_run(home)
        listing = stitchcuda("runs", "list", "--json", cache=cache, cwd=home)
        assert json.loads(listing.stdout)[0]["status"] == "awaiting_approval"
        plan = json.loads((run / "plan.json").read_text())
        plan["ideas"] = [idea for idea in plan["ideas"] if idea["name"] != "bad"]
        (run / "plan.json").write_text(json.dumps(plan))
        done = stitchcuda("runs", "resume", "last", "--json", cache=cache, cwd=home)
    assert json.loads(done.stdout)["status"] == "correct"
    assert [idea for _, idea, _, _ in attempts(run)] == ["in place"]


def test_a_target_out_of_reach_is_answered_with_no(home: Path, cache: Path) -> None:
    with ScriptedEndpoint(script(ideas={"in place": [GOOD]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url, "--target-speedup", "1000")
        done = stitchcuda("optimize", "small.py", *model, *QUICK, "--no-live", cache=cache, cwd=home)
    assert done.returncode == 1
    assert "not met" in done.stdout


def children(root: int) -> set[int]:
    """Every process below ``root``."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    while True:
        more = {child for child, parent in parents.items() if parent == root or parent in found} - found
        if not more:
            return found
        found |= more


def alive(processes: set[int]) -> set[int]:
    """Those that still run; zombies do not count."""
    found = set()
    for number in processes:
        try:
            if Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.add(number)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_stopped_run_leaves_no_process_and_can_be_resumed(
    home: Path, cache: Path, sent: signal.Signals, code: int
) -> None:
    with ScriptedEndpoint(script(ideas={"in place": [GOOD]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        process = subprocess.Popen(
            command("optimize", "small.py", *model, *QUICK, "--no-live"),
            cwd=home,
            env=environment(cache),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "evaluating" in line:
                break
        deadline = time.monotonic() + 30
        while len(children(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        below = children(process.pid)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        deadline = time.monotonic() + 10
        while alive(below) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(below), "processes outlived the run"
        if sent is not signal.SIGKILL:
            assert f"stitchcuda runs resume {the_run(home)}" in errors
            assert "Traceback" not in errors
        done = stitchcuda("runs", "resume", "last", "--json", cache=cache, cwd=home)
    assert json.loads(done.stdout)["status"] == "correct"


def test_another_verb_that_is_stopped_leaves_no_process(home: Path, cache: Path) -> None:
    process = subprocess.Popen(
        command("profile", "small.py", "--target", "cpu"),
        cwd=home,
        env=environment(cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (below := children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert below
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "")
    deadline = time.monotonic() + 10
    while alive(below) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(below)
