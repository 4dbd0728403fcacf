"""The supervisor's end of one runner: starts it confined, sends commands, keeps the clock, bounds what it
prints, and says in a sentence how it ended. Judges no output; no torch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stitchcuda import nursery
from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import sandbox, wire
from stitchcuda.evaluation.device_gate import free
from stitchcuda.evaluation.model import Finding, Layer, Status
from stitchcuda.evaluation.peaks import peak_host_bytes
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.wire import Code, Op, Reply

LAYERS: dict[Status, Layer] = {"wrong_output": "numerics", "build_failed": "build"}
"""Which defence sees a failure, unless it is said; the rest is the protocol's: a record is missing or late."""

PROCESS_CLOCK = 2
"""With a process id above it, Linux's clock of that process's processor time."""

REFUSED = re.compile(
    r"PermissionError|Operation not permitted|Read-only file system|Network is unreachable|Permission denied|"
    r"No space left|File too large|Address family not supported"
)
"""How a refusal of the confinement reads in a Program's own error."""


class Failure(Exception):
    """The subject failed: a status and a sentence, and which rule of which layer saw it."""

    def __init__(
        self, status: Status, message: str, log: str = "", *, rule: str = "", layer: Layer | None = None
    ) -> None:
        super().__init__(message)
        self.status: Status = status
        self.message = message
        self.log = log
        self.rule = rule or status
        self.layer: Layer = layer or LAYERS.get(status, "protocol")

    def finding(self) -> Finding:
        """The same as an integrity finding."""
        return Finding(rule=self.rule, severity="reject", evidence=self.message, layer=self.layer)

    @property
    def sentence(self) -> str:
        """Status and message, cut short."""
        return f"{self.status}: {self.message}"[:300]


@dataclass(frozen=True)
class Subject:
    """What a runner runs: a Program, whose files follow by ``deliver``, or the reference through a stock option."""

    name: str
    """'program', or a baseline's name"""
    source: str = ""
    """the Task's source, for a baseline"""
    search_path: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """A tool, with its options, that starts the interpreter"""

    @property
    def trusted(self) -> bool:
        """Baselines are the user's own code under torch: not confined, so that compiler caches persist."""
        return self.name != "program"

    @property
    def instrumented(self) -> bool:
        """Whether something is loaded into the process before Python: it takes address space, and cannot be forked."""
        return bool(self.prefix) or "LD_PRELOAD" in self.environment


class Drain:
    """Reads everything a runner prints and keeps a bounded head and tail."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd, self.limit = fd, limit // 2
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self.fd, 1 << 16):
                self.total += len(part)
                room = self.limit - len(self.head)
                self.head += part[:room]
                self.tail = (self.tail + part[room:])[-self.limit :] if len(part) > room else self.tail
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def text(self) -> str:
        """What was printed, its middle left out when there was more."""
        self.thread.join(timeout=0.5)
        left_out = self.total - len(self.head) - len(self.tail)
        gap = f"\n[{left_out} bytes left out]\n" if left_out > 0 else ""
        return self.head.decode("utf-8", "replace") + gap + self.tail.decode("utf-8", "replace")


class RunnerClient:
    """One runner process. ``arena`` may follow by ``arrange`` where the sizes are not known yet."""

    def __init__(
        self, subject: Subject, *, kind: str, level: str, arena: wire.Arena | None, settings: EvaluationSettings
    ) -> None:
        self.subject = subject
        self.gate = free()
        """Of the device that it runs on"""
        self.workdir = Path(tempfile.mkdtemp(prefix="stitchcuda-runner-"))
        self.workdir.chmod(0o711)
        self.closed = False
        self.closing = threading.Lock()
        self.handed = 0.0
        self.commands = 0
        self.members: list[int] = []
        self.proper: list[int] = []
        """The runner proper among them, known from before there is a Program"""
        self.peak_device = self.peak_host = 0
        """Bytes: as the runner says, and of host memory also as the system does"""
        self.arena_fd = os.memfd_create("stitchcuda", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        self.arena: wire.Arena
        if arena is not None:
            self.arrange(arena)
        self.program_fd = os.memfd_create("program", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        command_read, self.command_fd = os.pipe()
        self.reply_fd, reply_write = os.pipe()
        leash_read, self.leash_fd = os.pipe()
        output_read, output_write = os.pipe()
        reference = ""
        if subject.trusted:
            reference = str(self.workdir / "reference.py")
            Path(reference).write_text(subject.source)
        environment = sandbox.scrubbed_environment(str(self.workdir), dict(subject.environment))
        inherited = {
            "arena_fd": self.arena_fd,
            "program_fd": self.program_fd,
            "command_fd": command_read,
            "reply_fd": reply_write,
            "leash_fd": leash_read,
        }
        config = inherited | {
            "subject": "reference" if subject.trusted else "program",
            "variant": subject.name if subject.trusted else "",
            "reference": reference,
            "search_path": subject.search_path,
            "kind": kind,
            "defences": settings.defences,
            "level": level,
            "trusted": subject.trusted,
            "workdir": str(self.workdir),
            "environment": environment,
            "limits": {
                "file_bytes": settings.disk_bytes,
                "disk_bytes": settings.disk_bytes,
                "processes": settings.processes,
                "address_bytes": _address_bytes(settings, arena.total if arena else 0)
                if kind == "cpu" and not subject.instrumented
                else 0,
            },
            "profiling": bool(subject.prefix),
            "torch_folder": _torch_folder(),
            "readable": _readable(subject),
        }
        forked = None
        if nursery.forks(kind) and not subject.instrumented:
            forked = nursery.start_confined(config, inherited | {nursery.STDOUT: output_write})
        try:
            self.process: nursery.Process = forked or subprocess.Popen(
                [*subject.prefix, sys.executable, "-I", sandbox.__file__, json.dumps(config)],
                pass_fds=list(inherited.values()),
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                env=environment,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            for fd in (self.command_fd, self.reply_fd, self.leash_fd, self.arena_fd, self.program_fd, output_read):
                os.close(fd)
            shutil.rmtree(self.workdir, ignore_errors=True)
            raise InfrastructureError(f"a runner process could not be started: {error}") from None
        finally:
            for fd in (command_read, reply_write, leash_read, output_write):
                os.close(fd)
        self.gone = os.pidfd_open(self.process.pid)
        self.drain = Drain(output_read, settings.log_bytes)

    def arrange(self, arena: wire.Arena) -> None:
        """Lay the shared memory out, once, before HELLO. Nobody can shrink it afterwards, so that the oracle cannot be
        made to fault."""
        self.arena = arena
        os.ftruncate(self.arena_fd, arena.total)
        os.pwrite(self.arena_fd, arena.pack(), 0)
        fcntl.fcntl(self.arena_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def deliver(self, folder: Path) -> None:
        """Hand the files of a built Program over; once, before LOAD."""
        wire.put_files(
            self.program_fd,
            {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()},
        )
        fcntl.fcntl(self.program_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def ask(self, op: Op, *, timeout_s: float, call: int = 0, flags: int = 0, argument: int = 0) -> Reply:
        """One command and its reply; raises Failure for anything but OK, STATE_MISMATCH, NO_IPC and NOTHING. Its time
        counts from when the device may be used."""
        with self.gate.hold("work"):
            return self._ask(op, timeout_s, call, flags, argument)

    def _ask(self, op: Op, timeout_s: float, call: int, flags: int, argument: int) -> Reply:
        token = secrets.randbits(64)
        record = wire.Command(op, call, token, flags, argument).pack()
        self.commands += 1
        began = time.monotonic()
        try:
            wire.write_all(self.command_fd, record)
            data = wire.read_before(self.reply_fd, wire.REPLY.size, began + timeout_s, self.gone)
        except wire.Late:
            log = self.drain.text()
            self.close()
            raise Failure("timed_out", f"{_DOING[op]} took longer than {timeout_s:.0f} s", log) from None
        except wire.Closed:
            raise self._death(op) from None
        self.handed = time.monotonic() - began
        try:
            reply = Reply.unpack(data)
        except ValueError:
            reply = None
        if reply is None or (reply.op, reply.call, reply.token) != (op, call, token):
            self.close()
            raise Failure(
                "dishonest",
                f"a forged, duplicate or out-of-order record came while {_DOING[op]} ran",
                rule="forged_record",
            )
        if not flags & wire.ORDERED:  # whose outputs are copied within it
            self.peak_device = max(self.peak_device, reply.peak_device)
        self.peak_host = max(self.peak_host, reply.peak_host)
        if reply.code in (Code.RAISED, Code.OUT_OF_MEMORY, Code.PROTOCOL):
            raise self._raised(op, reply.code)
        return reply

    def _raised(self, op: Op, code: Code) -> Failure:
        report = self.report()
        error = str(report.get("error", "an error without a message"))
        log = str(report.get("trace", ""))
        if code == Code.OUT_OF_MEMORY:
            return Failure("out_of_memory", f"{_DOING[op]} ran out of memory: {_first_line(error)}", log)
        layer: Layer | None = "confinement" if REFUSED.search(error) else None
        return Failure("crashed", f"{_DOING[op]} raised {_first_line(error)}", log, layer=layer)

    def _death(self, op: Op) -> Failure:
        try:
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = None
        log = self.drain.text()
        self.close()
        if code is None:
            return Failure("crashed", f"the program closed its channels during {_DOING[op]}", log)
        if code == 128 + signal.SIGSYS:
            refused = f"{_DOING[op]} made a system call that ends a runner: other processes, mounts, namespaces"
            return Failure("dishonest", refused, log, rule="forbidden_call", layer="confinement")
        if code == 128 + signal.SIGKILL:
            return Failure("out_of_memory", f"{_DOING[op]} was killed by the system, most likely for memory", log)
        if code > 128:
            with contextlib.suppress(ValueError):
                name = signal.Signals(code - 128)
                return Failure("crashed", f"{_DOING[op]} ended by {name.name} ({signal.strsignal(name)})", log)
        return Failure("crashed", f"the process ended with exit code {code} during {_DOING[op]}", log)

    def report(self) -> dict[str, Any]:
        """The JSON that the runner last wrote, empty if it is none; for people and telemetry only."""
        try:
            value = json.loads(self.report_text())
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def report_text(self) -> str:
        """The report region as text; ValueError when its length is impossible."""
        offset, size = self.arena.offsets["report"]
        length = int.from_bytes(os.pread(self.arena_fd, 8, offset), "little")
        if length > size - 8:
            raise ValueError(f"the report claims {length} bytes of {size}")
        return os.pread(self.arena_fd, length, offset + 8).decode("utf-8", "replace")

    def cpu_seconds(self, *, anew: bool = False) -> float:
        """Processor time so far of what runs under the leash, threads included; ``anew`` finds out what that is."""
        if anew or not self.members:
            self.members = sandbox.descendants(self.process.pid)
            self.proper = self.proper or self.members[-1:]
        spent = 0.0
        for pid in self.members:
            with contextlib.suppress(OSError):
                spent += time.clock_gettime((~pid << 3) | PROCESS_CLOCK)
        return spent

    def delayed_seconds(self) -> float | None:
        """How long the runner's threads and the calling one have been ready to run so far while others had the cores,
        seconds; None where the kernel does not say."""
        try:
            threads = [f"/proc/{pid}/task/{each}" for pid in self.proper for each in os.listdir(f"/proc/{pid}/task")]
            ran, delayed = _schedule("/proc/thread-self")
            for thread in threads:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                    delayed += _schedule(thread)[1]
        except (OSError, IndexError, ValueError):
            return None
        return delayed if ran and threads else None

    def alive(self) -> bool:
        """Whether the process still runs."""
        return not self.closed and self.process.poll() is None

    def kill(self) -> None:
        """Kill whatever still runs, children that left the group included; from any thread, also during ``ask``."""
        with self.closing:
            if self.closed:
                return
            if self.process.poll() is None:
                if not self.subject.trusted:
                    self.peak_host = max(self.peak_host, peak_host_bytes(sandbox.descendants(self.process.pid)))
                sandbox.kill_tree(self.process.pid)
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        """Kill it and give everything back, its folder included; in the thread that asks. Safe to call twice."""
        self.kill()
        if self.closed:
            return
        self.closed = True
        for fd in (self.command_fd, self.reply_fd, self.leash_fd, self.arena_fd, self.program_fd, self.gone):
            os.close(fd)
        self.drain.thread.join(timeout=1)
        shutil.rmtree(self.workdir, ignore_errors=True)


def _schedule(task: str) -> tuple[float, float]:
    """How long a thread has run, and how long it has waited to; seconds. OSError, ValueError, IndexError."""
    ran, delayed = Path(task, "schedstat").read_text().split()[:2]
    return int(ran) * 1e-9, int(delayed) * 1e-9


_DOING = {
    Op.HELLO: "starting the runner",
    Op.ATTACH: "opening the shared buffers",
    Op.LOAD: "loading the program",
    Op.STATE: "copying the state",
    Op.RESEED: "building the model again",
    Op.PREPARE_MODEL: "prepare()",
    Op.INPUTS: "taking the inputs",
    Op.SETTLE: "letting go of the last outputs",
    Op.CALL: "a call",
    Op.EXPORT: "exporting the outputs",
    Op.EXPORT_HELD: "exporting kept outputs",
    Op.NOOP: "a no-op",
    Op.TRACE: "the trace",
    Op.EXIT: "the end",
}


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["an error without a message"])[0][:400]


def _address_bytes(settings: EvaluationSettings, shared: int) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 * 3 // 4 + (4 << 30) + shared
    return 0


def _torch_folder() -> str:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise InfrastructureError("torch is not installed in this Python")
    return str(Path(spec.origin).parents[1])


def _readable(subject: Subject) -> list[str]:
    """What the runner must be able to read under another user id."""
    paths = [sys.base_prefix, sys.prefix, os.path.dirname(os.__file__), _torch_folder(), str(Path(__file__).parent)]
    paths += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths += [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), subject.search_path or ""]
    return list(dict.fromkeys(path for path in paths if path and os.path.exists(path)))
