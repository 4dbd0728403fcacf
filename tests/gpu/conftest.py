"""Tests in this folder need an NVIDIA GPU; where there is none they are skipped with the reason."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest


def cuda_missing() -> str:
    """Why there is no CUDA device, or '' when there is one; asks the driver, so that torch stays unimported."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver sees no device"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/gpu, and skip it where no device is."""
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    reason = cuda_missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
