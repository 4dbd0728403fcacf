"""Where the training experiment lies, and its modules; to be used with ``coder_importable``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def room(name: str) -> Any:
    """A module of it."""
    return importlib.import_module(f"coder_experiment.{name}")
