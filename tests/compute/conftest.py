"""Places that several files use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.compute.devices import VISIBLE
from stitchcuda.compute.spool import SpoolCompute

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags) { return strcmp(getenv("CUDA_VISIBLE_DEVICES"), "broken") ? 0 : 999; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int number) { *device = 0; return 0; }
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "Kind %s", getenv("CUDA_VISIBLE_DEVICES"));
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = 9; return 0; }
"""


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolCompute]:
    """An orchestrator's end of a fresh spool whose leases last 4 seconds."""
    with SpoolCompute(tmp_path / "spool", lease_s=4) as compute:
        yield compute


@pytest.fixture
def two_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs of different kinds, "Kind 0" and "Kind 1", as far as a driver is asked about them."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "driver.c").write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1", f"{folder}/driver.c"]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv(VISIBLE, "0,1")
    monkeypatch.setattr("stitchcuda.hardware.detect.torch_version", lambda: ("2.11.0", "13.0"))


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
