"""What the runner can see of a Program that plays false with Python: outputs that compute when they are read, work
that waits for a moment between calls, methods that were replaced. Whoever is in the process could silence it, so it
only ever lowers a verdict; the supervisor's clock and the oracle do not depend on it. torch and the standard library
only; loaded by path in the runner.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

WATCHED: tuple[Any, ...] = (torch.Tensor, torch._C.TensorBase, torch.cuda.Event, time)
"""Whose attributes no Program has a reason to replace."""


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _members(owners: Iterable[Any]) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for owner in owners:
        for name, value in vars(owner).items():
            if callable(value) or isinstance(value, property):
                found[(getattr(owner, "__name__", "?"), name)] = value
    return found


class Witness:
    """Made before a Program is imported; remembers what was there."""

    def __init__(self, harness: Iterable[ModuleType | type]) -> None:
        self.owners = (*WATCHED, *harness)
        self.before = _members(self.owners)
        self.seen: list[str] = []
        self.collected = list(gc.callbacks)

    def patched(self) -> list[str]:
        """Names that stand for something else than before: a list that ``lazy`` adds to."""
        self.seen = self._changed(self.owners)
        return self.seen

    def _changed(self, owners: Iterable[Any]) -> list[str]:
        owners = tuple(owners)
        now, known = _members(owners), {getattr(owner, "__name__", "?") for owner in owners}
        return [
            f"{owner}.{name}"
            for (owner, name), value in self.before.items()
            if owner in known and now.get((owner, name)) is not value
        ]

    def lazy(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        """Why outputs may not be what they seem, in words; empty where nothing is odd. Clocks are looked at here too,
        since all calls come by: whoever is honest where memory is filled, and so nothing is timed, is seen."""
        self.seen += [name for name in self._changed([time]) if name not in self.seen]
        given = list(tensors)
        # By identity: a class may say that it equals any other.
        tensors = [tensor for tensor in given if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter]
        said = []
        if len(tensors) < len(given):
            said.append("an output is of a class of its own, whose code runs when it is read")
        if any(tensor.is_neg() for tensor in tensors):
            said.append("the sign of an output is to be changed by who reads it")
        if any(type(tensor) is torch.Tensor and vars(tensor) for tensor in tensors):
            said.append("an output has attributes of its own")
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            said.append("a mode that intercepts operators is still active")
        if sys.getprofile() is not None or sys.gettrace() is not None or threading.getprofile() is not None:
            said.append("a profiling or tracing hook is set")
        return said

    def waiting(self) -> list[str]:
        """What is going to run by itself between calls, in words; empty where nothing is."""
        said = []
        if gc.callbacks != self.collected:
            said.append("a callback of the garbage collector is set")
        if any(signal.getitimer(which)[0] for which in TIMERS):
            said.append("a timer's signal is on its way")
        if any(isinstance(thread, threading.Timer) for thread in threading.enumerate()):
            said.append("a thread waits for its time to come")
        return said
