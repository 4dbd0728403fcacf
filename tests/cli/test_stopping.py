"""A command that is stopped leaves no process, and a run that can be resumed: real signals, processes and HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.world import GOOD, QUICK, command, environment, script, stitchcuda, the_run
from tests.support.processes import gone
from tests.support.scripted_endpoint import ScriptedEndpoint

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
"""Exit code by signal."""
A_RUNNER = 6
"""Processes below the command once a runner is there: two to fork from, the oracle, and a runner's three."""


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


@pytest.mark.slow
def test_a_run_leaves_no_process_however_often_it_is_stopped_and_can_be_resumed(home: Path, cache: Path) -> None:
    with ScriptedEndpoint(script(ideas={"in place": [GOOD]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        line = command("optimize", "small.py", *model, *QUICK, "--no-live")
        for sent, code in SIGNALS.items():
            process = subprocess.Popen(
                line, cwd=home, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            assert any("evaluating" in text for text in process.stdout)
            deadline = time.monotonic() + 60
            while len(below := children(process.pid)) < A_RUNNER and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(sent)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == code, errors
            assert gone(*below), "processes outlived the run"
            if sent is not signal.SIGKILL:
                assert f"stitchcuda runs resume {the_run(home)}" in errors
                assert "Traceback" not in errors
            line = command("runs", "resume", "last", "--no-live")
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
    assert gone(*below)
