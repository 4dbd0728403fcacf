"""What tests ask of processes that the code under test started."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """True for a process that runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(*pids: int, seconds: float = 10.0) -> bool:
    """Whether all have ended, within so many seconds."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))
