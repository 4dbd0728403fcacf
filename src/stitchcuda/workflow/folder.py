"""The folder of a run: what lies where, and how runs are found again. What happened in it is the journal's to tell.

``task.py``, ``config.toml``, ``journal.jsonl``, ``programs/NNN/`` (with ``programs/NNN.json``, the verdict on it),
``profiles/``, ``best/`` (with ``best.json``), ``plan.json`` where plans are approved, ``summary.json`` at the end.
"""

from __future__ import annotations

import datetime
import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt
from stitchcuda.errors import ProgramError, RunError, StitchError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.files import load_program, write_program
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from stitchcuda.workflow import records as lines
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.lock import is_running
from stitchcuda.workflow.result import Best, Result, finite
from stitchcuda.workflow.storage import FULL, full_disk_is_an_error, place_folder, sweep, write_whole

CONFIG = "config.toml"
SUMMARY = "summary.json"


def _json(value: BaseModel | dict[str, Any]) -> bytes:
    """Indented standard JSON."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return (json.dumps(finite(data), indent=2) + "\n").encode()


def _write(program: Program, folder: Path) -> None:
    """Write a program's files; what the disk refused is told apart from what is wrong with the program."""
    try:
        write_program(program, folder)
    except ProgramError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _make_new(parent: Path, stem: str) -> Path:
    """Make a folder that was not there: many runs of a task may begin in one second."""
    while True:
        path = parent / f"{stem}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if path.exists():
                continue
            raise
        return path


class RunFolder:
    """Paths of one run and the artifacts in it; every write is whole or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.best = self.path / "best"

    @classmethod
    def new(cls, parent: Path, task: Task, config: RunConfig) -> RunFolder:
        """Make ``parent/<date-time>-<task>-<short>`` with its task and settings. Raises RunError where it may not."""
        stem = f"{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}-{task.name}"
        with full_disk_is_an_error(parent / stem):
            try:
                path = _make_new(parent, stem)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise RunError(
                    f"A run cannot be kept in {parent} ({error.strerror}); give another folder with --out."
                ) from None
            folder = cls(path)
            write_whole(folder.path / "task.py", task.source.encode())
            write_whole(folder.path / CONFIG, config.to_toml().encode())
            for name in ("programs", "profiles"):
                (folder.path / name).mkdir()
        return folder

    def tidy(self) -> None:
        """Remove what a killed process left half-written."""
        for place in (self.path, self.path / "programs", self.path / "profiles"):
            if place.is_dir():
                sweep(place)

    def program(self, number: int) -> Path:
        """Folder of a program."""
        return self.path / "programs" / f"{number:03d}"

    def save_program(self, number: int, program: Program) -> None:
        """Write the files of a program. Raises ProgramError when it is not valid."""
        with full_disk_is_an_error(self.path):
            place_folder(self.program(number), lambda folder: _write(program, folder))

    def save_attempt(self, attempt: Attempt, evaluation: Evaluation, feedback: Feedback) -> None:
        """Write the verdict on a program beside it."""
        verdict = {
            "attempt": attempt.model_dump(mode="json"),
            "evaluation": evaluation.model_dump(mode="json"),
            "feedback": feedback.model_dump(mode="json"),
        }
        with full_disk_is_an_error(self.path):
            write_whole(self.path / "programs" / f"{attempt.number:03d}.json", _json(verdict))

    def save_profile(self, name: str, profile: Profile) -> None:
        """Write a profile: 'reference', or a program's number."""
        with full_disk_is_an_error(self.path):
            write_whole(self.path / "profiles" / f"{name}.json", _json(profile))

    def save_best(self, program: Program, best: Best) -> None:
        """Replace the best program, unless it is there already."""
        path, told = self.path / "best.json", _json(best)
        if self.best.is_dir() and path.is_file() and path.read_bytes() == told:
            return
        with full_disk_is_an_error(self.path):
            place_folder(self.best, lambda folder: _write(program, folder))
            write_whole(path, told)

    def drop_best(self) -> None:
        """Take away the best program: it did not hold."""
        (self.path / "best.json").unlink(missing_ok=True)
        shutil.rmtree(self.best, ignore_errors=True)

    def save_summary(self, result: Result) -> None:
        """Write how the run ended."""
        with full_disk_is_an_error(self.path):
            write_whole(self.path / SUMMARY, _json(result))

    def drop_summary(self) -> None:
        """Take away how the run had ended: it goes on."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def plan(self, number: int) -> Path:
        """The file in which the first (0) or a later plan waits for approval."""
        return self.path / (f"plan-{number}.json" if number else "plan.json")

    def save_plan(self, number: int, plan: Plan) -> None:
        """Write the plan for a person to edit."""
        with full_disk_is_an_error(self.path):
            write_whole(self.plan(number), _json(plan))

    def edited_plan(self, number: int) -> Plan:
        """The plan as a person left it. Raises RunError naming what is not valid in it."""
        path = self.plan(number)
        try:
            return Plan.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise RunError(f"{path} is gone; restore it, or start a new run.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise RunError(f"{path}: {where}: {first['msg']}. Correct it, then resume the run.") from None

    def summary(self) -> Result | None:
        """How the run ended; None while it has not."""
        try:
            return Result.model_validate_json((self.path / SUMMARY).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RunError(
                f"{self.path / SUMMARY} is damaged ({error.errors()[0]['msg']}); delete it, and "
                "`stitchcuda runs resume` writes it anew from the journal."
            ) from None

    def load(self, which: str) -> Program:
        """A program by its number, or 'best'. Raises RunError when there is none."""
        path = self.best if which == "best" else self.program(int(which)) if which.isdigit() else None
        if path is None:
            raise RunError(f"'{which}' is neither a program's number nor 'best'.")
        if not path.is_dir():
            have = sorted(p.name for p in (self.path / "programs").glob("[0-9]*") if p.is_dir())
            raise RunError(
                f"The run has no program '{which}'; it has {', '.join(have) or 'none'}. "
                f"What became of it: stitchcuda runs show {self.path}"
            )
        return load_program(path)


@dataclass(frozen=True)
class Listed:
    """One entry of a folder of runs."""

    path: Path
    status: str
    """A Result's status, or 'running', 'interrupted', 'damaged', 'not a run'."""
    task: str = ""
    mind: str = ""
    over_best: float | None = None
    eager: float | None = None
    attempts: int = 0
    problem: str = ""


def listed(path: Path) -> Listed:
    """What can be said about a folder; never raises for what is in it."""
    if not _is_run(path):
        return Listed(path, "not a run", problem=f"no {lines.NAME}")
    try:
        config = RunConfig.read(path / CONFIG)
        records = lines.read_records(path / lines.NAME)[0] if (path / lines.NAME).is_file() else []
        result = RunFolder(path).summary()
        if result is not None and records and lines.ends(records[-1]):
            return Listed(
                path,
                result.status,
                task=result.task,
                mind=result.mind,
                over_best=result.over_best,
                eager=result.speedup.get("eager"),
                attempts=result.attempts,
            )
    except (StitchError, OSError) as error:
        return Listed(path, "damaged", problem=str(error))
    task = next((str(r.data["task"]["name"]) for r in records if r.kind == "created"), config.task)
    attempts = sum(1 for r in records if r.kind == "program")
    status = "running" if is_running(path) else "interrupted"
    if status == "interrupted" and records and records[-1].kind == "state" and records[-1].data.get("to") == "approve":
        status = "awaiting_approval" if config.approve_plan else status
    return Listed(path, status, task=task, mind=config.model, attempts=attempts)


def list_runs(parent: Path) -> list[Listed]:
    """Every folder in ``parent``, newest name first. Raises RunError when ``parent`` is missing."""
    if not parent.is_dir():
        raise RunError(f"There is no folder {parent}; give the folder of runs with --out.")
    return [listed(p) for p in sorted(parent.iterdir(), reverse=True) if p.is_dir() and not p.name.startswith(".")]


def _is_run(path: Path) -> bool:
    return (path / lines.NAME).is_file() or (path / CONFIG).is_file()


def find_run(reference: str, parent: Path) -> RunFolder:
    """A run by its path, its name, or the beginning or a part of its name that only it has; 'last' is the newest.

    Raises RunError when none or several fit.
    """
    direct = Path(reference)
    if direct.is_dir():
        return RunFolder(direct)
    names = sorted(p.name for p in parent.iterdir() if _is_run(p)) if parent.is_dir() else []
    if not names:
        raise RunError(
            f"There is no run '{reference}': it is no folder, and {parent} holds no runs. Give the folder of runs with "
            "--out, or start a run with stitchcuda optimize."
        )
    if reference == "last":
        return RunFolder(parent / names[-1])
    fitting = [name for name in names if reference in name]
    if len(fitting) == 1:
        return RunFolder(parent / fitting[0])
    if fitting:
        raise RunError(f"'{reference}' fits several runs: {', '.join(fitting[:5])}. Give more of the name.")
    newest = ", ".join(reversed(names[-3:]))
    raise RunError(f"There is no run '{reference}' (looked for a folder, and in {parent}, whose newest are {newest}).")
