"""What tests of the command share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.world import GOOD, OTHER, QUICK, RAISES, TASK, WRONG, script, stitchcuda, the_run
from tests.support.scripted_endpoint import ScriptedEndpoint


@dataclass(frozen=True)
class Finished:
    """A run that came to its end."""

    home: Path
    run: Path
    summary: dict[str, Any]
    requests: int
    printed: str


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a task in it."""
    (tmp_path / "small.py").write_text(TASK)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Finished:
    """Two ideas, each wrong at first and right after a repair."""
    home = tmp_path_factory.mktemp("finished")
    (home / "small.py").write_text(TASK)
    with ScriptedEndpoint(script(ideas={"in place": [WRONG, GOOD], "clamp": [RAISES, OTHER]})) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        done = stitchcuda(
            "optimize", "small.py", *model, *QUICK, "--confirm", "publish", "--json", cache=cache, cwd=home
        )
        assert done.returncode == 0, done.stderr
        return Finished(home, the_run(home), json.loads(done.stdout), endpoint.count, done.stdout + done.stderr)
