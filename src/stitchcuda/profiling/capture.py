"""Takes a profile: the subject runs in a confined process of its own, under Nsight Systems, torch.profiler or Nsight
Compute, on ordinary inputs. Never while a clock counts, and nothing here can change a verdict.

What is recorded is made sense of by ``profiling.profiler``.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.evaluation import sandbox, state
from stitchcuda.profiling import kineto, nsys, nsys_db
from stitchcuda.profiling.confinement import WORK, Confined, run_confined, torch_folder
from stitchcuda.profiling.recording import Recording
from stitchcuda.task.model import Task, TaskFacts

Source = Literal["auto", "nsys", "kineto"]
Mode = Literal["nsys", "kineto", "counters", "events"]

TIMEOUT_S = 240.0
"""Bound of one recording: start of torch, the weights, a few calls, the import of the recording."""
LEVELS = ("full", "shared_pids", "same_user")
"""Confinements that are tried in turn; see ``sandbox.LEVELS``. Looser ones have no network namespace, without which
Nsight Systems may not open its sockets."""
REPORT = "rep"
CONTROL, ANSWER = "control", "answer"
"""Pipes by which the driver switches perf's counters on and off."""
CONFINED = re.compile(r"CUDA|OSError|Permission|not permitted|Read-only|No such file|libcuda|driver", re.I)
"""How an error reads that a looser confinement may not have."""


@dataclass(frozen=True)
class Subject:
    """What is profiled: a Task's reference, or a built Program (``folder``) for it.

    ``facts``: what inspecting the task showed; None leaves a module without a mode of the task's as it is constructed.
    """

    task: Task
    facts: TaskFacts | None
    folder: Path | None = None

    @property
    def training(self) -> bool | None:
        """The mode of the module; None: as constructed."""
        if self.facts is not None:
            return self.facts.training
        return None if self.task.mode is None else self.task.mode == "train"

    def files(self, mode: Mode, *, ranges: bool = True) -> dict[str, bytes]:
        """The driver's job and what it runs, by relative path."""
        job = {
            "mode": mode,
            "kind": self.task.target.kind,
            "precision": self.task.precision,
            "training": self.training,
            "host_inputs": self.task.residence == "host",
            "search_path": self.task.search_path or "",
            "state": state.__file__,
            "torch_folder": torch_folder(),
            "reference": "reference.py",
            "program": "program" if self.folder is not None else "",
            "result": "result.json",
            "trace": "trace.json",
            "control": CONTROL,
            "answer": ANSWER,
            "ranges": ranges,
        }
        files = {"job.json": json.dumps(job).encode(), "reference.py": self.task.source.encode()}
        if self.folder is not None:
            for path in sorted(self.folder.rglob("*")):
                if path.is_file():
                    files[f"program/{path.relative_to(self.folder)}"] = path.read_bytes()
        return files


@dataclass
class Taken:
    """A recording and what was measured without the profiler: seconds per call by the host and by CUDA events."""

    recording: Recording
    wall_seconds: float
    event_seconds: float = 0.0
    traced_event_seconds: float = 0.0
    """Span by CUDA events of the calls that were recorded."""
    peak_bytes: int = 0
    flops: float = 0.0
    facts: TaskFacts | None = None
    """Shapes of inputs and outputs as this process saw them; enough for a roofline, and no more is known."""
    confinement: str = ""
    remarks: list[str] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    """Files that the tool wrote, by name."""


class _Works:
    """The strictest confinement in which a subject of a kind has run on this machine, found out by trying."""

    levels: ClassVar[dict[tuple[str, str], str]] = {}
    broken: ClassVar[dict[Path, str]] = {}
    """Why a copy of Nsight Systems records nothing here, whatever the confinement; it is not tried again."""


def record(subject: Subject, source: Source = "auto", *, timeout_s: float = TIMEOUT_S) -> Taken:
    """Record a few calls: by Nsight Systems on cuda where it is there, else by torch.profiler.

    Raises ToolMissing or ProfilerError when ``source`` names a tool that is not there or fails, and ProfilerError
    when the subject does not run.
    """
    remarks: list[str] = []
    if source == "nsys" and subject.task.target.kind == "cpu":
        raise ProfilerError("nsys traces CUDA; for a cpu target use kineto, which is torch.profiler")
    if source != "kineto" and subject.task.target.kind == "cuda":
        try:
            return _by_nsys(subject, nsys.find_nsys(), timeout_s)
        except (ToolMissing, ProfilerError) as error:
            if source == "nsys":
                raise
            remarks.append(f"without Nsight Systems: {error}")
    taken = _by_kineto(subject, timeout_s)
    taken.remarks[:0] = remarks
    return taken


def driver_command() -> list[str]:
    """The command that runs a subject's job in the confinement."""
    return [sys.executable, "-I", str(Path(__file__).with_name("driver.py")), f"{WORK}/job.json"]


def readable_for(subject: Subject) -> list[str]:
    """Folders beyond the package that a subject must be able to read."""
    return [subject.task.search_path] if subject.task.search_path else []


def levels(kind: str, mode: str) -> tuple[str, ...]:
    """Confinements to try in turn: the one that is known to work for subjects of a kind, else all."""
    known = _Works.levels.get((kind, mode))
    return (known,) if known else LEVELS


def _by_nsys(subject: Subject, tool: nsys.Nsys, timeout_s: float) -> Taken:
    if tool.path in _Works.broken:
        raise ProfilerError(_Works.broken[tool.path])
    missing = nsys.missing_library(tool)
    if missing:
        raise ToolMissing(nsys.explain(f"{missing}: cannot open shared object file"))
    outputs = ["result.json", f"{REPORT}.nsys-rep", f"{REPORT}.sqlite"]
    done, silent = Confined({}), ""
    for level in levels("cuda", "nsys"):
        for ranged in (True, False):
            commands = [
                nsys.profile_command(tool, driver_command(), f"{WORK}/{REPORT}", ranged=ranged),
                nsys.export_command(tool, f"{WORK}/{REPORT}", f"{WORK}/{REPORT}.sqlite"),
            ]
            done = run_confined(
                commands,
                subject.files("nsys"),
                outputs,
                level=level,
                timeout_s=timeout_s,
                environment=tool.environment,
                readable=[*tool.readable, *readable_for(subject)],
            )
            database = done.files.get(f"{REPORT}.sqlite")
            if database is not None and "result.json" in done.files:
                recording = _database(database)
                if recording.ops:
                    _Works.levels["cuda", "nsys"] = level
                    taken = _taken(done, recording, tool.version)
                    if not ranged:
                        taken.remarks.append("nsys traced the whole process: the wall time includes what that costs")
                    return taken
                silent = f"nsys recorded no kernel: {'; '.join(recording.remarks)}"
            elif "result.json" not in done.files:
                break  # the subject itself did not run here: tracing more of it will not help
        if own_fault(done):
            break
    told = failure_of(done, silent or nsys.explain(done.printed))
    if not own_fault(done):
        _Works.broken[tool.path] = told
    raise ProfilerError(told)


def _by_kineto(subject: Subject, timeout_s: float) -> Taken:
    kind = subject.task.target.kind
    done = Confined({})
    for level in levels(kind, "kineto"):
        done = run_confined(
            [driver_command()],
            subject.files("kineto"),
            ["result.json", "trace.json"],
            level=level,
            timeout_s=timeout_s,
            readable=readable_for(subject),
        )
        if "trace.json" in done.files and "result.json" in done.files:
            _Works.levels[kind, "kineto"] = level
            with tempfile.TemporaryDirectory(prefix="stitchcuda-trace-") as folder:
                path = Path(folder) / "trace.json"
                path.write_bytes(done.files["trace.json"])
                recording = kineto.read(path)
            recording.target = kind
            return _taken(done, recording, recording.version)
        if own_fault(done):
            break
    raise ProfilerError(failure_of(done, "torch.profiler wrote nothing"))


def _error(printed: str) -> str:
    """The last line of the first traceback; '' where there is none."""
    lines = [line for line in printed.splitlines() if line.strip()]
    trouble = next((n for n, line in enumerate(lines) if line.startswith("Traceback")), None)
    if trouble is None:
        return ""
    return next((line for line in lines[trouble + 1 :] if line[:1] not in (" ", "\t", "^")), lines[-1])


def own_fault(done: Confined) -> bool:
    """Whether the subject failed for reasons that no other confinement changes."""
    error = _error(done.printed)
    return bool(error) and "result.json" not in done.files and not CONFINED.search(error)


def failure_of(done: Confined, otherwise: str) -> str:
    """Why a recording failed: the subject's own error where there is one."""
    if error := _error(done.printed):
        return f"the profiled subject failed: {error[:300]}"
    if done.codes and done.codes[-1] is None:
        return "profiling took too long and was stopped; allow more seconds (--timeout of 'stitchcuda profile')"
    return otherwise


def _database(data: bytes) -> Recording:
    with tempfile.TemporaryDirectory(prefix="stitchcuda-nsys-") as folder:
        path = Path(folder) / "export.sqlite"
        path.write_bytes(data)
        return nsys_db.read(path)


def _taken(done: Confined, recording: Recording, version: str) -> Taken:
    """With the driver's numbers, believed as far as numbers go."""
    try:
        told: Any = json.loads(done.files["result.json"])
    except (ValueError, RecursionError):
        told = {}

    def number(name: str) -> float:
        value = told.get(name) if isinstance(told, dict) else None
        return float(value) if isinstance(value, int | float) and 0 <= value < 1e18 else 0.0

    recording.version = recording.version or version
    return Taken(
        recording,
        number("wall"),
        number("events"),
        number("traced_events"),
        int(number("peak_bytes")),
        number("flops"),
        _facts(told),
        "full" if not done.missing else "without " + ", ".join(done.missing),
        kept={name: data for name, data in done.files.items() if name != "result.json"},
    )


def _facts(told: Any) -> TaskFacts | None:
    try:
        facts = told["facts"]
        unknown = {"stochastic": False, "seedable": False, "mutates_state": False, "eager_seconds": told["wall"]}
        return TaskFacts.model_validate(facts | unknown)
    except (KeyError, TypeError, ValidationError):
        return None


assert set(LEVELS) <= set(sandbox.LEVELS)
