"""A tool of the machine around a driver, killed whole when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress


def printed(words: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    """What the command printed, errors included. Raises subprocess.TimeoutExpired, and OSError when it cannot start.

    It has a process group of its own, of which nothing is left afterwards.
    """
    process = subprocess.Popen(
        words,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=timeout_s)[0]
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
