"""Settings for the whole suite, the order of its files, and what all tests of a session share."""

from __future__ import annotations

import compileall
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is no failure of the code: examples have no deadline of their own, tests do (pytest-timeout).
settings.register_profile("suite", deadline=None, max_examples=100)
settings.load_profile("suite")

LONGEST = (
    "cli/test_optimize.py",
    "cli/test_kill.py",
    "compute/test_chaos.py",
    "compute/test_ray.py",
    "compute/test_places.py",
    "evaluation/test_evaluator.py",
    "cli/test_stopping.py",
    "recipes/test_cuda_sources.py",
    "evaluation/test_correctness.py",
    "cli/test_evaluate.py",
    "cli/test_runs.py",
)
"""Files that take longest, which start first, so that no worker is left with one of them when the other is done."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the package's bytecode, whatever the environment says: some hundred processes are started, and each would
    compile what it imports anew."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others as they come."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One cache for all workers, with the device measured, so that this and the stock options are measured once."""
    from stitchcuda.hardware.ceilings import measure
    from stitchcuda.hardware.detect import detect

    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared-cache"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        measure(detect("cpu"), folder)
    return folder
