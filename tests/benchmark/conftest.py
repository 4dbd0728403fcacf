"""What tests of the training experiment share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.benchmark.coder import BENCHMARKS


@pytest.fixture(scope="module")
def coder_importable() -> Iterator[None]:
    """The experiment's modules, and those that they import from beside them, can be imported."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
