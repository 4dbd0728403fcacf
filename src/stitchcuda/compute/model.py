"""The data that travels to where evaluations run and back: a Job and its Outcome, and the interface of every place.

Doing a Job is in ``compute.executor``; the places are ``local``, ``spool`` and ``ray_cluster``, and
``open_compute`` of the package opens one by name.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import uuid
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stitchcuda import __version__
from stitchcuda.evaluation.model import Evaluation, Tier, Timing
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import torch_version
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

PROTOCOL = 2
"""Raise when a Job or an Outcome changes in a way that an earlier reader would misunderstand."""

Kind = Literal["evaluate", "profile", "baselines", "inspect", "ceilings", "probe"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""What the id of a Job may be: it becomes part of file names."""


class Versions(BaseModel):
    """What a side runs. Two sides go together when ``protocol`` is equal and so are the first two numbers of
    ``stitchcuda``; torch and Python may differ, and stand in what was measured."""

    model_config = ConfigDict(frozen=True)

    protocol: int = PROTOCOL
    stitchcuda: str = __version__
    torch: str = Field(default_factory=lambda: torch_version()[0])
    python: str = Field(default_factory=platform.python_version)

    @property
    def series(self) -> str:
        """What must be equal on both sides, such as '0.1-p1'."""
        return f"{'.'.join(self.stitchcuda.split('.')[:2])}-p{self.protocol}"

    def goes_with(self, other: Versions) -> bool:
        """Whether jobs of one side may run on the other."""
        return self.series == other.series


class _Message(BaseModel):
    """What goes between processes and machines as one line of JSON, with NaN and infinities kept."""

    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        """As UTF-8 JSON."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises pydantic's ValidationError, a ValueError."""
        return cls.model_validate_json(data)


class Wanted(BaseModel):
    """The device a Job must run on."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["cuda", "cpu"]
    name: str = Field(default="", description="exact name, as ``Device.name``; empty: any of that kind")

    def fits(self, device: Device) -> bool:
        """Whether ``device`` is one."""
        return device.target.kind == self.kind and self.name in ("", device.name)


class Job(_Message):
    """One piece of work, self-contained: a worker without the user's folder can do it.

    ``evaluate`` needs a task and a program, ``profile`` a task (no program: the reference), ``baselines`` and
    ``inspect`` a task; ``ceilings`` gives the worker's device with its measured ceilings, and ``probe`` only shows that
    a worker answers. ``facts`` and ``device`` may be left out, and the worker finds them; a run that compares times
    gives both, so that no other device answers.
    """

    schema_version: Literal[1] = 1
    id: str = Field(
        default_factory=lambda: uuid.uuid4().hex,
        description="unique within a place: a second Job with the id of a finished one gets that one's Outcome",
    )
    kind: Kind
    wanted: Wanted
    task: Task | None = None
    facts: TaskFacts | None = Field(default=None, description="None: the worker runs the reference once, and remembers")
    device: Device | None = Field(default=None, description="as measured before; None: the worker's own")
    program: Program | None = None
    tier: Tier = "screen"
    counters: int = Field(
        default=0, ge=0, le=16, description="``profile`` only: kernels whose counters are read; 0: a trace only"
    )
    settings: EvaluationSettings = Field(default_factory=EvaluationSettings)
    time_limit_s: float = Field(
        default=1800.0, gt=0, description="whole job once it runs, seconds; past it the worker's process is ended"
    )
    attempts: int = Field(
        default=3, ge=1, description="times it may be begun when workers die; then it is an infrastructure failure"
    )
    priority: int = Field(default=50, ge=0, le=99, description="lower goes first; equal ones in the order they came")
    pause_s: float = Field(default=0.0, ge=0, le=3600, description="``probe`` only: waits so long, seconds")
    versions: Versions = Field(default_factory=Versions)

    @field_validator("id")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"a job's id is 1 to 100 letters, digits, '_', '.' or '-', not {value[:120]!r}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind not in ("ceilings", "probe") and self.task is None:
            raise ValueError(f"a job of kind '{self.kind}' needs a task")
        if self.kind == "evaluate" and self.program is None:
            raise ValueError("a job of kind 'evaluate' needs a program")
        if self.task is not None and self.task.target.kind != self.wanted.kind:
            raise ValueError(f"the task is for {self.task.target.kind}, and the job wants {self.wanted.kind}")
        return self

    @property
    def opens(self) -> str:
        """Digest of the task whose Evaluator it needs; "" for a job that needs none."""
        needs = self.task is not None and self.kind in ("evaluate", "profile", "baselines")
        return self.task.digest if self.task is not None and needs else ""

    @property
    def builds(self) -> bool:
        """Whether something has to be compiled for its program first, by what its sources say."""
        if self.program is None:
            return False
        texts = (text for path, text in self.program.files.items() if path.endswith(".py"))
        return self.program.manifest is not None or any("load_inline" in text for text in texts)

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides its result; equal for equal work whatever the id."""
        rest = {"id", "versions", "time_limit_s", "attempts", "priority"}
        return hashlib.sha256(json.dumps(self.model_dump(mode="json", exclude=rest)).encode()).hexdigest()


FailureReason = Literal[
    "task",
    "infrastructure",
    "worker_lost",
    "time_limit",
    "version_mismatch",
    "no_device",
    "bad_job",
    "cancelled",
]


class JobFailure(BaseModel):
    """Why a Job has no result. Never a word about a Program: its faults are in an Evaluation.

    ``task``: the reference does not run. ``worker_lost``: as many workers died with it as it had attempts.
    ``bad_job``: the job's file was damaged or not valid. The others say what they name.
    """

    model_config = ConfigDict(frozen=True)

    reason: FailureReason
    message: str


class WorkerInfo(BaseModel):
    """Who did a Job."""

    model_config = ConfigDict(frozen=True)

    name: str
    host: str
    pid: int
    device: str = Field(default="", description="name of the device")
    versions: Versions = Field(default_factory=Versions)


class Outcome(_Message):
    """What came of a Job: the field that belongs to its kind, or ``failure``."""

    schema_version: Literal[1] = 1
    job: str = Field(description="the Job's id", pattern=f"^{NAME.pattern}$")
    kind: Kind
    failure: JobFailure | None = None
    evaluation: Evaluation | None = None
    profile: Profile | None = None
    baselines: dict[str, Timing] | None = None
    facts: TaskFacts | None = None
    device: Device | None = Field(default=None, description="what it ran on, with ceilings where the job needed them")
    worker: WorkerInfo | None = None
    attempts: int = Field(default=1, description="times it was begun")
    queue_seconds: float = Field(default=0.0, description="from submission to the attempt that gave this")
    run_seconds: float = Field(default=0.0, description="of that attempt")
    artifacts: dict[str, str] = Field(
        default_factory=dict, description="further files by name: their paths where the submitter can read them"
    )

    @property
    def ok(self) -> bool:
        """A result is there (for ``evaluate``, whatever the Evaluation says)."""
        return self.failure is None

    @property
    def machine_failed(self) -> bool:
        """There is no result, or none that says anything, for reasons that are not the job's: it can be tried again."""
        if self.failure is not None:
            return self.failure.reason != "task"
        return self.evaluation is not None and self.evaluation.status == "infrastructure_error"

    def evaluated(self, job: Job) -> Evaluation:
        """The Evaluation; an ``infrastructure_error`` where the place failed. Raises TaskError for a bad task."""
        from stitchcuda.errors import TaskError

        if self.evaluation is not None:
            return self.evaluation
        failure = self.failure or JobFailure(reason="infrastructure", message="no evaluation came back")
        if failure.reason == "task":
            raise TaskError(failure.message)
        assert job.task is not None
        return Evaluation(
            status="infrastructure_error",
            message=f"{failure.reason}: {failure.message}",
            tier=job.tier,
            precision=job.task.precision,
        )


class Capacity(BaseModel):
    """What a place offers now."""

    model_config = ConfigDict(frozen=True)

    kinds: list[Literal["cuda", "cpu"]] = Field(
        default_factory=list, description="of the devices there are, cuda first"
    )
    devices: list[Device] = Field(description="those that are known: one entry for each that works in parallel")
    workers: int = Field(description="processes that take jobs")
    queued: int = Field(description="jobs submitted here that have not begun")
    running: int


class Compute(Protocol):
    """A place where Jobs run; a context manager, safe to use from several threads."""

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a Job. The future gives an Outcome and raises for nothing but a cancelled or closed place; cancelling
        it before the Job begins withdraws the Job.

        Raises InfrastructureError when the Job cannot be queued at all.
        """
        ...

    def capacity(self) -> Capacity:
        """What is there now."""
        ...

    def close(self) -> None:
        """End what was started here. Jobs in a spool stay there; those of other places are cancelled."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
