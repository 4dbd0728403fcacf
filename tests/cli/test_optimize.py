"""``stitchcuda optimize`` as a user meets it: the real command, evaluator and HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Finished
from tests.cli.world import GOOD, QUICK, TASK, WRONG, attempts, in_turn, script, stitchcuda, the_run
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
    assert [(idea, status) for idea, status, _ in attempts(finished.run)] == [
        ("clamp", "crashed"),
        ("clamp", "correct"),
        ("in place", "wrong_output"),
        ("in place", "correct"),
    ]


def test_the_run_folder_holds_everything_but_keys(finished: Finished) -> None:
    for name in ("task.py", "config.toml", "journal.jsonl", "summary.json", "best/program.py", "programs/002.json"):
        assert (finished.run / name).is_file(), name
    written = "".join(p.read_text() for p in finished.run.rglob("*") if p.is_file())
    assert "sk-planted-secret" not in written + finished.printed
    assert json.loads((finished.run / "summary.json").read_text()) == finished.summary


WRONG_USE = {
    ("missing.py",): "missing.py",
    ("small.py", "--compute", "slurm"): "local, spool:DIR",
    ("small.py", "--target", "tpu"): "target",
    ("small.py", "--model", "nobody:x", "--yes"): "nobody:x",
    ("small.py", "--model", "anthropic:x", "--yes"): "ANTHROPIC_API_KEY is not set",
    ("small.py", "--iterations", "0"): "iterations",
    ("small.py", "--base-url", "http://me:pw@host/v1", "--model", "openai:x"): "environment variable",
    ("small.py", "--from", "missing.py"): "missing.py",
    ("small.py", "--coder-model", "openai:x"): "no effect on recipes",
    ("small.py", "--target", "cpu", "--out", "small.py"): "cannot be kept in small.py (Not a directory)",
    ("broken.py", "--target", "cpu"): "forward raised NameError at line 13",
}


def test_wrong_use_is_a_sentence_and_leaves_nothing(home: Path, cache: Path) -> None:
    (home / "broken.py").write_text(TASK.replace("y = x", "y = undefined"))
    lines: list[tuple[str, ...]] = [("optimize", *arguments) for arguments in WRONG_USE]
    told = in_turn(*lines, cache=cache, cwd=home, ANTHROPIC_API_KEY="")
    for done, words in zip(told, WRONG_USE.values(), strict=True):
        assert done.returncode == 2, done
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(home.glob("runs/*"))


def test_the_longest_reply_is_kept_with_the_run_and_may_be_another_one_on_going_on(home: Path, cache: Path) -> None:
    with ScriptedEndpoint(lambda request, number: status(400, {"error": {"message": "no"}})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url, "--max-output-tokens", "5000")
        again = ("runs", "resume", "last")
        lines = ("optimize", "small.py", *model, *QUICK), again, (*again, "--max-output-tokens", "6000"), again
        for done in in_turn(*lines, cache=cache, cwd=home):
            assert done.returncode == 1, done.stderr
        assert [request.body["max_tokens"] for request in endpoint.requests] == [5_000, 5_000, 6_000, 5_000]


def test_a_long_task_is_estimated_to_take_more(home: Path, cache: Path) -> None:
    (home / "long.py").write_text(TASK + "# a long remark\n" * 1_000)
    lines = [("optimize", task, "--model", "anthropic:x", "--yes") for task in ("small.py", "long.py")]
    told = in_turn(*lines, cache=cache, cwd=home, ANTHROPIC_API_KEY="")
    short, long = (float(done.stderr.partition("requests, ")[2].partition(" M tokens in")[0]) for done in told)
    assert short < long


def test_a_given_program_is_the_base_and_a_target_out_of_reach_is_answered_with_no(home: Path, cache: Path) -> None:
    (home / "mine.py").write_text(GOOD)
    with ScriptedEndpoint(script(ideas={"in place": [WRONG, WRONG]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url, "--target-speedup", "1000")
        options = (*model, *QUICK, "--no-live")
        done = stitchcuda("optimize", "small.py", "--from", "mine.py", *options, cache=cache, cwd=home)
        prompts = [request.text for request in endpoint.requests]
    assert done.returncode == 1, done.stderr
    assert "not met" in done.stdout
    summary = json.loads((the_run(home) / "summary.json").read_text())
    assert (summary["status"], summary["number"], summary["target_met"]) == ("correct", 0, False)
    assert any("mul_(16.0)" in prompt for prompt in prompts), "the Coder sees what it builds on"


def test_a_run_outlasts_an_endpoint_that_is_down_and_its_plan_is_edited_before_anything_is_written(
    home: Path, cache: Path
) -> None:
    """A server that fails for good ends the command with a sentence; once it answers, the run waits with its plan, as
    was asked for at first, and ends well."""
    broken = {"rules": [{"answers": [status(400, {"error": {"message": "no such deployment"}})]}]}
    with ScriptedEndpoint(broken) as endpoint:
        port = endpoint.port
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        failed = stitchcuda("optimize", "small.py", "--approve-plan", *model, *QUICK, cache=cache, cwd=home)
    run = the_run(home)
    assert failed.returncode == 1
    assert "no such deployment" in failed.stderr
    assert f"stitchcuda runs resume {run}" in failed.stderr
    with ScriptedEndpoint(script(ideas={"bad": [WRONG], "in place": [GOOD]}), port=port) as endpoint:
        waiting, listing = in_turn(("runs", "resume", "last"), ("runs", "list", "--json"), cache=cache, cwd=home)
        assert waiting.returncode == 0, waiting.stderr
        assert "plan.json" in waiting.stdout
        assert endpoint.count == 1
        assert json.loads(listing.stdout)[0]["status"] == "awaiting_approval"
        plan = json.loads((run / "plan.json").read_text())
        plan["ideas"] = [idea for idea in plan["ideas"] if idea["name"] != "bad"]
        (run / "plan.json").write_text(json.dumps(plan))
        done = stitchcuda("runs", "resume", "last", "--json", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "correct"
    assert [idea for idea, _, _ in attempts(run)] == ["in place"]
