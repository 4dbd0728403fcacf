"""Where the reward service's measurements come from: a compute place, or what was recorded before.

Both give Evaluations and Profiles and no marks; those follow in ``reward.service``.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stitchcuda import __version__
from stitchcuda.compute.model import Compute, Job, JobFailure, Outcome, Wanted
from stitchcuda.errors import InfrastructureError, RecordMissing, RunError, TaskError
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward.score import dumped, hashed
from stitchcuda.reward.service import Backend
from stitchcuda.task.model import Task
from stitchcuda.workflow.effects import Coded, Created, Measured, Profiled
from stitchcuda.workflow.records import NAME, read_records

REFERENCE = "reference"
"""In place of a Program's digest."""
SWEEP_NOTES, SWEEP_SETTINGS = "measured.jsonl", "sweep.toml"
"""Files of ``benchmark``: a sweep's own notes and journal lie beside its runs', and hold no evaluations."""
TIME_OUTS = 2
"""Time limits of a job that must be up before its Program is at fault: the first may have gone to the stock options,
which are measured once for each task."""


class ComputeBackend:
    """Measures on a compute place: this machine, a spool or Ray.

    ``item_seconds`` is the longest that one job may run, queue apart; the Evaluator's own limits on what a Program does
    are far below it.
    """

    def __init__(
        self,
        compute: Compute,
        device: Device,
        *,
        tier: Tier = "screen",
        settings: EvaluationSettings | None = None,
        item_seconds: float = 900.0,
    ) -> None:
        self.compute, self.device, self.tier = compute, device, tier
        self.settings = settings or EvaluationSettings()
        self.item_seconds = item_seconds
        self._stamp = hashed(
            __version__,
            Job(kind="probe", wanted=Wanted(kind=device.target.kind)).versions.torch,
            device.model_dump_json(exclude={"ceilings"}),
            tier,
            self.settings.model_dump_json(),
        )

    @classmethod
    def on(
        cls,
        compute: Compute,
        kind: Literal["cuda", "cpu"],
        *,
        tier: Tier = "screen",
        settings: EvaluationSettings | None = None,
        item_seconds: float = 900.0,
    ) -> ComputeBackend:
        """On whatever device of this kind the place has, with its measured ceilings. Waits until a worker answers.

        Raises InfrastructureError when none does.
        """
        outcome = compute.submit(Job(kind="ceilings", wanted=Wanted(kind=kind))).result()
        if outcome.device is None:
            raise InfrastructureError(_failed(outcome.failure))
        return cls(compute, outcome.device, tier=tier, settings=settings, item_seconds=item_seconds)

    @property
    def stamp(self) -> str:
        """Device, versions, tier and settings."""
        return self._stamp

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        """One job; begun once more when its time was up. Raises TaskError, InfrastructureError."""
        for _ in range(TIME_OUTS):
            job = self._job("evaluate", task, program)
            outcome = await self._done(job)
            if outcome.failure is None or outcome.failure.reason != "time_limit":
                return outcome.evaluated(job)
        return Evaluation(
            status="timed_out",
            message=f"no verdict within {self.item_seconds:g} s, {TIME_OUTS} times",
            tier=self.tier,
            precision=task.precision,
        )

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        """One job. Raises TaskError, InfrastructureError."""
        outcome = await self._done(self._job("profile", task, program))
        if outcome.failure is not None and outcome.failure.reason == "task":
            raise TaskError(outcome.failure.message)
        if outcome.profile is None:
            raise InfrastructureError(_failed(outcome.failure))
        return outcome.profile

    def _job(self, kind: Literal["evaluate", "profile"], task: Task, program: Program | None) -> Job:
        return Job(
            kind=kind,
            wanted=Wanted(kind=self.device.target.kind, name=self.device.name),
            task=task,
            device=self.device,
            program=program,
            tier=self.tier,
            settings=self.settings,
            time_limit_s=self.item_seconds,
        )

    async def _done(self, job: Job) -> Outcome:
        waiting = await asyncio.to_thread(self.compute.submit, job)
        return await asyncio.wrap_future(waiting)


class Recorded(BaseModel):
    """One line of a record: what was measured of a Program of a task, or of the task's own."""

    model_config = ConfigDict(frozen=True)

    task: str
    """The task's digest."""
    program: str
    """The Program's digest, or 'reference'."""
    evaluation: Evaluation | None = None
    profile: Profile | None = None


class Recorder:
    """Passes on what another backend measures, and appends it to a file that RecordedEvaluations reads.

    Several processes may append to one file.
    """

    def __init__(self, backend: Backend, path: Path) -> None:
        self.backend, self.path = backend, path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def stamp(self) -> str:
        """Of the backend that measures."""
        return self.backend.stamp

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        """As the backend does."""
        found = await self.backend.evaluate(task, program)
        if found.status != "infrastructure_error":
            self._append(Recorded(task=task.digest, program=program.digest, evaluation=found))
        return found

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        """As the backend does."""
        found = await self.backend.profile(task, program)
        if found is not None:
            digest = program.digest if program is not None else REFERENCE
            self._append(Recorded(task=task.digest, program=digest, profile=found))
        return found

    def _append(self, record: Recorded) -> None:
        line = dumped(record) + b"\n"
        with self._lock, self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() and not _ends_whole(self.path):
                line = b"\n" + line  # after a line that a killed process left unfinished
            file.write(line)


class RecordedEvaluations:
    """Evaluations and Profiles that were taken before; nothing is run.

    ``path`` is a run's folder or its journal, a file that a Recorder wrote, or a folder of any of them. Raises RunError
    when there is none, or it is damaged. What is not in it raises RecordMissing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._evaluations: dict[tuple[str, str], bytes] = {}
        self._profiles: dict[tuple[str, str], bytes] = {}
        files = list(_files(path))
        if not files:
            raise RunError(f"{path} holds no recorded evaluations; give a run's folder, or a .jsonl that was recorded")
        for file in files:
            for record in _journaled(file) if file.name == NAME else _recorded(file):
                self._take(record)
        texts = [
            key[0] + key[1] + raw.decode() for kept in (self._evaluations, self._profiles) for key, raw in kept.items()
        ]
        self._stamp = "recorded:" + hashed(*sorted(texts))

    def __len__(self) -> int:
        """Programs with an Evaluation."""
        return len(self._evaluations)

    @property
    def stamp(self) -> str:
        """Changes with what is recorded."""
        return self._stamp

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        """As recorded. Raises RecordMissing."""
        raw = self._evaluations.get((task.digest, program.digest))
        if raw is None:
            tasks = {digest for digest, _ in self._evaluations}
            known = f"of {len(self)} programs of {len(tasks)} tasks"
            about = "of other programs only" if task.digest in tasks else "but none of this task"
            raise RecordMissing(
                f"{self.path} holds evaluations {known}, {about} (wanted: program {program.digest[:12]} of task "
                f"'{task.name}', {task.digest[:12]}); evaluate it on a compute place, or score what was recorded"
            )
        return Evaluation.model_validate_json(raw)

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        """As recorded; None where no Profile was taken."""
        raw = self._profiles.get((task.digest, program.digest if program is not None else REFERENCE))
        return Profile.model_validate_json(raw) if raw is not None else None

    def _take(self, record: Recorded) -> None:
        """Keep a record; of several evaluations of a Program the last, but a screen never replaces a publish."""
        key = (record.task, record.program)
        if record.evaluation is not None and record.evaluation.status != "infrastructure_error":
            raw = dumped(record.evaluation)
            earlier = self._evaluations.get(key)
            published = earlier is not None and Evaluation.model_validate_json(earlier).tier == "publish"
            if not published or record.evaluation.tier == "publish":
                self._evaluations[key] = raw
        if record.profile is not None:
            self._profiles[key] = dumped(record.profile)


def _failed(failure: JobFailure | None) -> str:
    return f"{failure.reason}: {failure.message}" if failure is not None else "the place gave no result"


def _files(path: Path) -> Iterator[Path]:
    """Journals and records in or at ``path``."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for found in sorted(path.rglob("*.jsonl")):
            of_sweep = found.name == SWEEP_NOTES or (found.name == NAME and (found.parent / SWEEP_SETTINGS).is_file())
            if found.is_file() and not of_sweep:
                yield found


def _journaled(path: Path) -> Iterator[Recorded]:
    """What a run's journal holds. Programs side by side have a lane each, the part of a node's name before ':'."""
    records, _ = read_records(path)
    task = ""
    latest: dict[str, str] = {}
    try:
        for record in records:
            lane, colon, node = record.node.partition(":")
            lane, node = (lane, node) if colon else ("", lane)
            if record.kind == "created":
                created = Created.model_validate(record.data)
                task = created.task.digest
                if created.base is not None:
                    latest[lane] = created.base.digest
            elif record.kind == "program":
                written = Coded.model_validate(record.data).program
                latest[lane] = written.digest if written is not None else ""
            elif record.kind == "evaluation":
                measured = Measured.model_validate(record.data)
                latest[lane] = measured.digest
                yield Recorded(task=task, program=measured.digest, evaluation=measured.evaluation)
            elif record.kind == "profile" and (profile := Profiled.model_validate(record.data).profile) is not None:
                digest = REFERENCE if node.startswith(REFERENCE) else latest.get(lane, "")
                if digest:
                    yield Recorded(task=task, program=digest, profile=profile)
    except ValidationError as error:
        raise _damaged(path, f"{error.errors()[0]['msg']}; it was written by another version") from None


def _recorded(path: Path) -> Iterator[Recorded]:
    """What a Recorder wrote; lines that a killed process left unfinished are passed over."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                json.loads(line)
            except ValueError:
                continue
            try:
                yield Recorded.model_validate_json(line)
            except ValidationError as error:
                raise _damaged(path, f"line {number}: {error.errors()[0]['msg']}") from None


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} cannot be read as recorded evaluations ({why}); give another file, or record it again")


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
