"""One process at a time works on a folder: a lock that ends with its process. Knows nothing of what is in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stitchcuda.errors import RunError

NAME = "lock"


def take_lock(folder: Path) -> int:
    """An exclusive lock on the folder, held until the descriptor is closed; raises RunError when another process has
    it."""
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunError(f"{folder} is in use by another stitchcuda process; wait for it or stop it first.") from None
    return handle


def is_running(folder: Path) -> bool:
    """A process works on this folder now. Never blocks and never takes the lock from it."""
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)
