"""One piece of timed work per device at a time, among all processes that share a cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def lock_path(kind: Literal["cuda", "cpu"], cache: Path) -> Path:
    """The lock of the device that this process sees; the folder may be shared by several machines."""
    device: str = kind
    if kind == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
        device = f"cuda-{first}"
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{socket.gethostname()}-{device}")
    return cache / "locks" / f"{name}.lock"


@contextlib.contextmanager
def device_lock(kind: Literal["cuda", "cpu"], cache: Path) -> Iterator[None]:
    """Hold the device, waiting as long as another process holds it. The kernel frees it when the holder dies."""
    path = lock_path(kind, cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
