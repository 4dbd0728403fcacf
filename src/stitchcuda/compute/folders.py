"""Where caches live between runs: builds, baselines, measured ceilings. Imports nothing, for workers' sake."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """STITCHCUDA_CACHE, or the user's cache folder."""
    given = os.environ.get("STITCHCUDA_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stitchcuda"
