"""Places that several files use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.compute.spool import SpoolCompute


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolCompute]:
    """An orchestrator's end of a fresh spool whose leases last 4 seconds."""
    with SpoolCompute(tmp_path / "spool", lease_s=4) as compute:
        yield compute


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=False)
