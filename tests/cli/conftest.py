"""What tests of the command share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.world import TASK


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all, so that the device and the stock options are measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a task in it."""
    (tmp_path / "small.py").write_text(TASK)
    return tmp_path
