"""Does Jobs in this process, one at a time, and keeps what the next ones need: the facts of tasks and, for the latest
tasks, an Evaluator whose oracle is warm. Where the process lives is the business of ``process`` and the places."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stitchcuda.compute.cpu_lock import cpu_lock
from stitchcuda.compute.model import FailureReason, Job, JobFailure, Outcome, Versions, WorkerInfo
from stitchcuda.errors import DeviceError, StitchError, TaskError
from stitchcuda.evaluation.device_gate import gate_of
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Task, TaskFacts

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator

OPEN_TASKS = 2
"""Tasks whose oracle stays warm; each holds its reference's memory, on the device too."""
KNOWN_FACTS = 1000
"""Tasks whose facts are remembered."""


class _Refused(StitchError):
    """The job does not belong on this worker."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Executor:
    """One thread at a time. ``cache`` holds builds, baselines and ceilings."""

    def __init__(self, cache: Path, *, name: str = "", open_tasks: int = OPEN_TASKS) -> None:
        self.cache = cache
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.open_tasks = open_tasks
        self._devices: dict[str, Device] = {}
        self._facts: OrderedDict[str, TaskFacts] = OrderedDict()
        self._evaluators: OrderedDict[str, Evaluator] = OrderedDict()

    def run(self, job: Job, artifacts: Path | None = None) -> Outcome:
        """Do ``job``; whatever goes wrong is in the Outcome. Further files are left in the folder ``artifacts``."""
        began = time.monotonic()
        result: dict[str, Any] = {}
        try:
            self._check(job)
            if job.kind == "probe":
                time.sleep(job.pause_s)
            else:
                with self._turn(job):
                    result = self._do(job, artifacts)
        except _Refused as refusal:
            result = {"failure": JobFailure(reason=refusal.reason, message=str(refusal))}
        except TaskError as error:
            result = {"failure": JobFailure(reason="task", message=str(error))}
        except DeviceError as error:
            result = {"failure": JobFailure(reason="no_device", message=str(error))}
        except (StitchError, OSError, MemoryError) as error:
            self.close()
            result = {"failure": JobFailure(reason="infrastructure", message=f"{type(error).__name__}: {error}")}
        except Exception as error:
            # A bug here must cost this job and not the worker, whose queue others wait in.
            self.close()
            where = _where(error)
            result = {"failure": JobFailure(reason="infrastructure", message=f"{type(error).__name__}: {error}{where}")}
        known = self._devices.get(job.wanted.kind)
        result.setdefault("device", known)
        return Outcome(
            job=job.id,
            kind=job.kind,
            worker=WorkerInfo(
                name=self.name, host=socket.gethostname(), pid=os.getpid(), device=known.name if known else ""
            ),
            run_seconds=time.monotonic() - began,
            **result,
        )

    def device(self, kind: Literal["cuda", "cpu"], ceilings: bool = False) -> Device:
        """The device here. Raises DeviceError where there is none of that kind."""
        from stitchcuda.hardware.ceilings import measure
        from stitchcuda.hardware.detect import detect

        if kind not in self._devices:
            self._devices[kind] = detect(kind)
        found = self._devices[kind]
        if ceilings and found.ceilings is None:
            found = found.model_copy(update={"ceilings": measure(found, self.cache)})
            self._devices[kind] = found
        return found

    def close(self) -> None:
        """End the oracles; the next job starts its own anew."""
        while self._evaluators:
            self._drop(next(iter(self._evaluators)))

    def _check(self, job: Job) -> None:
        here = Versions()
        if not here.goes_with(job.versions):
            raise _Refused(
                "version_mismatch",
                f"the job is from stitchcuda {job.versions.stitchcuda} (protocol {job.versions.protocol}) and this "
                f"worker is {here.stitchcuda} (protocol {here.protocol}); install one version on both sides",
            )
        if job.kind == "probe":
            return
        name = job.device.name if job.device is not None else job.wanted.name
        found = self.device(job.wanted.kind)
        if name and found.name != name:
            raise _Refused("no_device", f"the job is for '{name}', and this worker has '{found.name}'")
        if job.task is not None and job.task.search_path and not Path(job.task.search_path).is_dir():
            raise _Refused(
                "task",
                f"the task imports from {job.task.search_path}, which this worker does not see; put the package on a "
                "shared file system, or make the task one file",
            )

    def _turn(self, job: Job) -> contextlib.AbstractContextManager[None]:
        """Keep others from what is measured here. A GPU has a gate, which evaluations pass when a clock counts, so
        that others may prepare meanwhile; on a CPU all work is in the way of a clock."""
        if job.wanted.kind == "cpu":
            return cpu_lock(self.cache)
        return gate_of("cuda").hold("clock") if job.kind == "ceilings" else contextlib.nullcontext()

    def _do(self, job: Job, artifacts: Path | None) -> dict[str, Any]:
        if job.kind == "ceilings":
            return {"device": self.device(job.wanted.kind, ceilings=True)}
        assert job.task is not None
        if job.kind == "inspect":
            return {"facts": self._inspected(job.task)}
        evaluator = self._evaluator(job, job.task)
        if job.kind == "baselines":
            return {"baselines": evaluator.baselines(job.tier)}
        if job.kind == "profile":
            return {"profile": self._profile(job, evaluator, artifacts)}
        assert job.program is not None
        evaluation = evaluator.evaluate(job.program, job.tier)
        if evaluation.status == "infrastructure_error" and len(self._evaluators) > 1:
            # Others' oracles may have held the memory that it needed.
            self.close()
            evaluation = self._evaluator(job, job.task).evaluate(job.program, job.tier)
        return {"evaluation": evaluation}

    def _profile(self, job: Job, evaluator: Evaluator, artifacts: Path | None) -> Any:
        from stitchcuda.profiling.looking import look

        if artifacts is not None and not job.counters:
            artifacts.mkdir(parents=True, exist_ok=True)
            text = evaluator.trace(job.program).model_dump_json()
            (artifacts / "trace.json").write_text(text, encoding="utf-8")
        return look(evaluator, job.program, cache=self.cache, counters=job.counters)

    def _inspected(self, task: Task) -> TaskFacts:
        from stitchcuda import nursery
        from stitchcuda.task.inspect import inspect_task

        key = f"{task.digest} {task.search_path}"
        if key not in self._facts:
            if nursery.forks(task.target.kind):
                nursery.expect()
            self._facts[key] = inspect_task(task)
            if len(self._facts) > KNOWN_FACTS:
                self._facts.popitem(last=False)
        return self._facts[key]

    def _evaluator(self, job: Job, task: Task) -> Evaluator:
        """The task's Evaluator under the job's settings, opened where it is not."""
        from stitchcuda.evaluation.evaluator import Evaluator

        facts = job.facts or self._inspected(task)
        device = job.device or self.device(job.wanted.kind, ceilings=True)
        key = hashlib.sha256(
            "\0".join((task.digest, str(task.search_path), facts.model_dump_json(), device.model_dump_json())).encode()
        ).hexdigest()
        found = self._evaluators.get(key)
        if found is None:
            while len(self._evaluators) >= self.open_tasks:
                self._drop(next(iter(self._evaluators)))
            found = Evaluator(task, facts, device, cache=self.cache, settings=job.settings)
            found.__enter__()
            self._evaluators[key] = found
        elif found.settings != job.settings:
            found.settings = job.settings
        self._evaluators.move_to_end(key)
        return found

    def _drop(self, key: str) -> None:
        self._evaluators.pop(key).__exit__(None, None, None)


def _where(error: Exception) -> str:
    """The innermost line of this package that the error came through."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
