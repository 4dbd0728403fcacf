"""Running the real command on a task that takes microseconds, with a scripted model behind real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.scripted_endpoint import Answer, text, tool

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    @torch.compiler.disable  # the stock option is there, and needs no minute of compilation in a test
    def forward(self, x):
        y = x
        for _ in range(16):
            y = y + torch.relu(x * self.scale)
        return y


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return [128]
"""

PROGRAM = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return {expression}
"""

GOOD = PROGRAM.format(expression="torch.relu_(x * self.scale).mul_(16.0).add_(x)")
OTHER = PROGRAM.format(expression="(x * self.scale).clamp_(min=0.0).mul_(16.0).add_(x)")
WRONG = PROGRAM.format(expression="torch.relu_(x * self.scale).mul_(17.0).add_(x)")
RAISES = PROGRAM.format(expression="undefined_name + x")

SMALL = ("--target", "cpu", "--beam", "2", "--drafts", "1", "--replans", "0", "--confirm", "screen")
QUICK: tuple[str, ...] = (*SMALL, "--no-seeds", "--yes")
"""Options of a small run."""


def reply(source: str) -> Answer:
    """A Coder's answer."""
    return text(f"Here it is.\n\n```python program.py\n{source}```\n", delay_s=0.2)


def plan(*names: str) -> Answer:
    """A Planner's answer: one idea with one step for each name."""
    step = {"operators": ["mul", "relu", "add"], "fusion": "one pass", "acceptance": "correct and faster"}
    ideas = [{"name": name, "rationale": "bytes", "steps": [{"title": f"{name} step", **step}]} for name in names]
    return tool({"summary": "pointwise passes", "bottleneck": "memory", "ideas": ideas}, delay_s=0.2)


def feedback(route: str, diagnosis: str) -> Answer:
    """A Verifier's answer."""
    words = {"diagnosis": diagnosis, "evidence": "the figures", "suggestion": "the one change"}
    return tool({"route": route, **words}, delay_s=0.2)


def script(*, ideas: dict[str, list[str]]) -> dict[str, Any]:
    """A model that plans these ideas and writes these programs for each in turn, until one passes."""
    coder = [
        {"contains": f"Step 1 of 1: **{name} step**", "plain": True, "answers": [reply(source) for source in sources]}
        for name, sources in ideas.items()
    ]
    return {
        "rules": [
            {"tool": "plan", "answers": [plan(*ideas)]},
            {"tool": "feedback", "contains": "**correct**", "answers": [feedback("next", "as good as it gets")]},
            {"tool": "feedback", "contains": "**wrong_output**", "answers": [feedback("retry", "one too many")]},
            {"tool": "feedback", "contains": "**crashed**", "answers": [feedback("retry", "a name is missing")]},
            *coder,
        ]
    }


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Of a user with a cache of their own and a key that must never be written anywhere."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("OPENAI", "STITCHCUDA", "KERNELBENCH"))}
    key = {"OPENAI_API_KEY": "sk-planted-secret"}
    return {**kept, "STITCHCUDA_CACHE": str(cache), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **key, **more}


def command(*arguments: str | Path) -> list[str]:
    """The command as a user's shell starts it."""
    return [sys.executable, "-m", "stitchcuda.cli.main", *map(str, arguments)]


def stitchcuda(
    *arguments: str | Path, cache: Path, cwd: Path, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


IN_TURN = """
import contextlib, io, json, sys
from stitchcuda.cli.main import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["stitchcuda", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def in_turn(
    *lines: tuple[str | Path, ...], cache: Path, cwd: Path, **more: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run several command lines one after the other in one process, which saves what starting one takes."""
    told = json.dumps([[str(argument) for argument in line] for line in lines])
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, told],
        cwd=cwd,
        env=environment(cache, **more),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        subprocess.CompletedProcess(line, code, out, err) for line, (code, out, err) in zip(lines, results, strict=True)
    ]


def the_run(cwd: Path) -> Path:
    """The one run in a folder's ``runs``."""
    (found,) = (cwd / "runs").iterdir()
    return found


def attempts(run: Path) -> list[tuple[str, str, str]]:
    """Idea, status and program text of everything that was tried, idea by idea in the order of trying."""
    told = []
    for line in (run / "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "attempt":
            attempt = record["data"]["attempt"]
            source = (run / "programs" / f"{attempt['number']:03d}" / "program.py").read_text()
            told.append((attempt["idea"], attempt["number"], attempt["status"], source))
    return [(idea, status, source) for idea, _, status, source in sorted(told)]
