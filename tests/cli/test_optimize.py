"""``stitchcuda optimize`` and ``runs`` as a user meets them: the real command, evaluator and HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.world import GOOD, OTHER, RAISES, WRONG, attempts, script, stitchcuda, the_run
from tests.support.scripted_endpoint import ScriptedEndpoint

QUICK = ("--target", "cpu", "--beam", "2", "--drafts", "1", "--replans", "0", "--confirm", "screen", "--yes")


def test_a_model_takes_a_task_to_a_confirmed_program(home: Path, cache: Path) -> None:
    ideas = {"in place": [WRONG, GOOD], "clamp": [RAISES, OTHER]}
    with ScriptedEndpoint(script(ideas=ideas)) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        done = stitchcuda("optimize", "small.py", *model, *QUICK, "--json", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "correct"
    assert summary["mind"] == "openai:scripted"
    assert summary["tier"] == "screen"
    assert summary["speedup"]["eager"] > 1.2
    assert summary["speedup"]["over_best"] == summary["over_best"] > 0
    assert set(summary["seconds"]) >= {"program", "eager", "compile"}
    assert summary["census"]["label"] == "host_only"
    assert summary["spent"]["requests"] == endpoint.count == 9
    assert summary["spent"]["input_tokens"] > 0
    run = the_run(home)
    assert [(n, i, s) for n, i, s, _ in attempts(run)] == [
        (1, "in place", "wrong_output"),
        (2, "in place", "correct"),
        (3, "clamp", "crashed"),
        (4, "clamp", "correct"),
    ]
    for name in ("task.py", "config.toml", "journal.jsonl", "summary.json", "best/program.py", "programs/002.json"):
        assert (run / name).is_file(), name
    written = "".join(p.read_text() for p in run.rglob("*") if p.is_file())
    assert "sk-planted-secret" not in written + done.stdout + done.stderr
