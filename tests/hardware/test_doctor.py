"""``stitchcuda doctor`` tells what is there and what is missing, and never the value of a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "sk-do-not-print-this"


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stitchcuda.cli.main", "doctor", *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120
    )


def test_keys_are_named_and_never_shown(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="needs the extra llm")
    done = doctor("--json", OPENAI_API_KEY=SECRET, STITCHCUDA_CACHE=str(tmp_path))
    outcome = json.loads(done.stdout)
    checks = {check["name"]: check for check in outcome["checks"]}
    assert "OPENAI_API_KEY" in checks["language models"]["found"]
    assert SECRET not in done.stdout + done.stderr
    assert checks["cache folder"]["found"].startswith(str(tmp_path))
    assert (done.returncode == 0) == outcome["ok"]


def test_a_missing_compiler_is_an_answer_of_no(tmp_path: Path) -> None:
    done = doctor(PATH=str(tmp_path), CXX="", STITCHCUDA_CACHE=f"{tmp_path}/own[llm]", COLUMNS="250")
    assert done.returncode == 1
    assert "To repair: g++" in done.stdout
    assert "own[llm]" in done.stdout, "brackets in what was found or is advised are no markup"
