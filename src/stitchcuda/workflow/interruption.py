"""Ctrl-C and SIGTERM as an orderly stop of work that can be gone on with."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """The run or sweep in ``folder`` was asked to stop (Ctrl-C, SIGTERM) and can be resumed."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.folder = folder
        self.number = number


@contextlib.contextmanager
def stopped_in_order(folder: Path) -> Iterator[None]:
    """Raise Interrupted on SIGINT and SIGTERM, so that every child is ended on the way out; a second one is not waited
    for. Does nothing outside of the main thread, where Python takes no signals."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        raise Interrupted(folder, number)

    try:
        before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
