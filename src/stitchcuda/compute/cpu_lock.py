"""One piece of work on the CPU at a time, among all processes that share a cache folder. GPUs have
``evaluation.device_gate``, which is finer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def cpu_lock(cache: Path) -> Iterator[None]:
    """Hold this machine's CPU, waiting as long as another does. The kernel frees it when the holder dies."""
    # The folder may be shared by several machines.
    name = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    path = cache / "locks" / f"{name}-cpu.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
