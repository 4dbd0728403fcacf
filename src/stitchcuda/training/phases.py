"""Where a training step's time and memory go: seconds and peak bytes of each phase, one inside another or not.

Seconds are exclusive: what a phase inside takes is not counted for the one around it, so phases add up to the time that
passed. Nothing here knows a trainer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

OTHER = "other"
"""What no phase claims."""


class Meter(Protocol):
    """Reads and resets a peak of memory."""

    def take(self) -> int:
        """The peak since the last call, bytes; the next one starts from what is in use now."""
        ...


class ProcessMeter:
    """Peak resident memory of this process. Where the kernel lets no one reset the peak, it is the peak so far."""

    def take(self) -> int:
        """Bytes; 0 where there is no /proc."""
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            status = ""
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


class CudaMeter:
    """Peak of what torch has allocated on the current CUDA device; waits for the device, so that phases keep their
    time."""

    def take(self) -> int:
        """Bytes."""
        import torch

        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak


class Phases:
    """A stack of phases with a clock and a meter; for one thread."""

    def __init__(self, meter: Meter | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._meter, self._clock = meter, clock
        self._stack: list[str] = []
        self._since = clock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._peaks: dict[str, int] = defaultdict(int)
        self.total: dict[str, float] = defaultdict(float)
        """Seconds of each phase, from the start."""
        self.peaks: dict[str, int] = defaultdict(int)
        """Largest peak of each phase, from the start, bytes."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside for this phase."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def begin(self, name: str) -> None:
        """Enter a phase. Phases inside ``evaluate`` are counted as its parts (``evaluate/generate``)."""
        self._settle()
        prefix = "evaluate/" if self._stack and self._stack[-1].startswith("evaluate") else ""
        self._stack.append(prefix + name)

    def end(self) -> None:
        """Leave the phase that was entered last."""
        self._settle()
        self._stack.pop()

    def take(self) -> dict[str, float]:
        """Seconds and peak bytes of each phase since the last call, as ``seconds/NAME`` and ``peak_bytes/NAME``."""
        self._settle()
        found: dict[str, float] = {f"seconds/{name}": spent for name, spent in sorted(self._seconds.items())}
        found |= {f"peak_bytes/{name}": float(peak) for name, peak in sorted(self._peaks.items()) if peak}
        self._seconds.clear()
        self._peaks.clear()
        return found

    def _settle(self) -> None:
        """Book what passed since the last change for the phase that is on."""
        name = self._stack[-1] if self._stack else OTHER
        peak = self._meter.take() if self._meter is not None else 0
        now = self._clock()
        for book in (self._seconds, self.total):
            book[name] += now - self._since
        for peaks in (self._peaks, self.peaks):
            peaks[name] = max(peaks[name], peak)
        self._since = now
