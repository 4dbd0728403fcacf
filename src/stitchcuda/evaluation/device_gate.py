"""Who may use a device when: while one clock counts, nothing else runs on it; otherwise any number of processes do.

A lock per device in the file system, which all processes of the machine share and the system takes back when its holder
dies. What is done while it is held is in ``session`` and ``calls``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Hold = Literal["work", "start", "clock"]
"""Short work on the device; a long start of a process, which nothing that is to be timed waits for gladly; a clock that
counts."""

LOCKS_VARIABLE = "STITCHCUDA_LOCKS"
LOCKS = "/tmp/stitchcuda-locks"
"""The same for all users of a machine."""

SPANS = 200_000
"""The latest spans that are kept."""


@dataclass(frozen=True)
class Span:
    """One hold of a device; time.monotonic() seconds."""

    label: str
    hold: Hold
    begin: float
    end: float


class Gate:
    """A device's gate in this process. Threads that hold it may enter again, with what they hold already.

    Clocks go one by one. Once one waits no start begins, and short work goes on only until the starts that run are
    done; then all clocks that wait have their turns, so that starts do not make each of them wait.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.spans: deque[Span] = deque(maxlen=SPANS)
        self._changed = threading.Condition()
        self._own = threading.local()
        self._working = 0
        self._starting = 0
        self._clock = False
        self._waiting = 0
        self._fd: int | None = None

    @contextlib.contextmanager
    def hold(self, what: Hold, label: str = "") -> Iterator[None]:
        """Hold the device for ``what``, waiting as long as it takes. A thread that holds it for a clock may do
        anything; one that holds it otherwise must not ask for a clock (RuntimeError): it would wait for itself."""
        held: Hold | None = getattr(self._own, "held", None)
        if held is not None:
            if what == "clock" and held != "clock":
                raise RuntimeError(f"a clock cannot begin within {held}: it would wait for itself")
            yield
            return
        self._enter(what)
        self._own.held = what
        began = time.monotonic()
        try:
            yield
        finally:
            self._own.held = None
            self.spans.append(Span(label, what, began, time.monotonic()))
            self._leave(what)

    def _enter(self, what: Hold) -> None:
        with self._changed:
            if what == "clock":
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not self._clock and not self._working and not self._starting)
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()
                self._clock = True
                try:
                    self._lock(fcntl.LOCK_EX)
                except BaseException:
                    self._clock = False
                    self._unlock()
                    raise
                return
            self._changed.wait_for(lambda: self._admits(what))
            if not self._working and not self._starting:
                self._lock(fcntl.LOCK_SH)
            if what == "start":
                self._starting += 1
            else:
                self._working += 1

    def _admits(self, what: Hold) -> bool:
        if self._clock or (self._waiting and (what == "start" or not self._starting)):
            return False
        # Another process waits for its clock: it gets its turn once what runs here is done.
        return not (self._working or self._starting) or not self._others_wait()

    def _leave(self, what: Hold) -> None:
        with self._changed:
            if what == "clock":
                self._clock = False
            elif what == "start":
                self._starting -= 1
            else:
                self._working -= 1
            if not (self._clock or self._working or self._starting):
                self._unlock()
            self._changed.notify_all()

    def _lock(self, how: int) -> None:
        """Take the machine's lock; called by the only one of this process that may go on. First a turnstile, so that
        a clock is not kept waiting by work that never ends."""
        if self.path is None:
            return
        turnstile = _open(self.path.with_suffix(".next"))
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            self._fd = _open(self.path)
            fcntl.flock(self._fd, how)
        finally:
            os.close(turnstile)

    def _unlock(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _others_wait(self) -> bool:
        if self.path is None:
            return False
        turnstile = _open(self.path.with_suffix(".next"))
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(turnstile)
        return False


class Holder:
    """One who holds a gate, and for whom: several objects that serve the same Program share it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.label = ""
        self.waits: deque[float] = deque(maxlen=SPANS)
        """Seconds that each hold was waited for"""

    @contextlib.contextmanager
    def hold(self, what: Hold) -> Iterator[None]:
        """As ``Gate.hold``, under this label."""
        began = time.monotonic()
        with self.gate.hold(what, self.label):
            self.waits.append(time.monotonic() - began)
            yield


def free() -> Holder:
    """Of a gate that nobody else knows."""
    return Holder(Gate(None))


_gates: dict[Path, Gate] = {}
_guard = threading.Lock()


def gate_of(kind: Literal["cuda", "cpu"]) -> Gate:
    """This process's gate of the device that it sees first; one per device, however often it is asked for."""
    try:
        path = locks_folder() / f"{device_key(kind)}.lock"
    except OSError:  # no folder that others share: this process alone keeps its order
        path = Path(tempfile.gettempdir()) / f"stitchcuda-{os.getuid()}-{device_key(kind)}.lock"
    with _guard:
        if path not in _gates:
            _gates[path] = Gate(path)
        return _gates[path]


def locks_folder() -> Path:
    """Where locks lie; made if need be, for all users."""
    folder = Path(os.environ.get(LOCKS_VARIABLE) or LOCKS)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            folder.chmod(0o1777)
    return folder


def device_key(kind: Literal["cuda", "cpu"]) -> str:
    """A name for the device that this process sees first, the same in every process: the GPU's UUID where NVML knows
    it."""
    if kind == "cpu":
        return "cpu"
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    name = (_uuid(int(first)) or f"cuda-{first}") if first.isdigit() else first
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)


def _uuid(index: int) -> str:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    device, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return ""
    return text.value.decode() if library.nvmlDeviceGetUUID(device, text, len(text)) == 0 else ""


def _open(path: Path) -> int:
    """A descriptor of a lock file, made if need be, that every user can lock."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o666)
        return fd
