"""One build cache for the session: equal kernels compile once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for builds."""
    return tmp_path_factory.mktemp("builds")
