"""Requests that a run's Coder was given, found again by passing through the run's states with its journal.

Nothing is asked, run or written but in a copy that is thrown away: the journal serves every effect, and where it ends,
so does this. What comes of the requests is ``dataset``'s business.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from stitchcuda.agents.lookup import Asked
from stitchcuda.agents.roles import CodeRequest, Mind, VerifyRequest
from stitchcuda.errors import RunError, StitchError
from stitchcuda.workflow import events
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.effects import Created
from stitchcuda.workflow.folder import CONFIG, RunFolder
from stitchcuda.workflow.instruments import Instruments
from stitchcuda.workflow.journal import Journal, Lane
from stitchcuda.workflow.machine import Machine
from stitchcuda.workflow.records import NAME

Tell = Callable[[tuple[str, CodeRequest | VerifyRequest]], None]
"""Gets every request with the lane of whoever asked."""


class _Ended(Exception):
    """The journal is at its end: what would come now never happened."""


@dataclass(frozen=True)
class Asking:
    """A request to the Coder, and what came of it."""

    run: str
    mind: str
    request: CodeRequest
    outcome: VerifyRequest
    """Holds the program of the answer and its Evaluation."""


def run_folders(path: Path) -> Iterator[Path]:
    """Every run in or below ``path``: a run, a folder of runs, a sweep."""
    if (path / NAME).is_file() and (path / CONFIG).is_file():
        yield path
        return
    yield from sorted(found.parent for found in path.rglob(NAME) if (found.parent / CONFIG).is_file())


def askings(run: Path) -> list[Asking]:
    """What the run's Coder was asked, in order, as far as it was answered and measured.

    Raises RunError for a run that is damaged or was made by a version whose states were others.
    """
    with tempfile.TemporaryDirectory(prefix="stitchcuda-replay-") as name:
        copy = Path(name)
        for part in (CONFIG, NAME):
            shutil.copyfile(run / part, copy / part)
        for part in ("programs", "profiles"):
            (copy / part).mkdir()
        with Journal.open(copy) as journal:
            if not journal.replaying:
                raise RunError(f"{run} holds nothing yet")
            seen: list[tuple[str, CodeRequest | VerifyRequest]] = []
            try:
                config = _pass_through(copy, journal, seen.append)
            except (StitchError, ValidationError, KeyError) as error:
                first = str(error).splitlines()[0]
                raise RunError(f"the run was made by another version, or is damaged: {first}") from None
    return list(_paired(run.name, config.model, seen))


def _pass_through(copy: Path, journal: Journal, tell: Tell) -> RunConfig:
    """Go through the run's states as far as the journal goes."""
    created = journal.effect("created", Created, _nothing)
    config = RunConfig.model_validate(created.config)
    machine = Machine(
        config,
        created.task,
        created.device,
        journal=journal,
        folder=RunFolder(copy),
        bench=_Absent(),
        mind=_mind(config),
        sink=events.Silent(),
        approve=_nothing,
        base=created.base,
    )
    machine.instruments = _Listening(machine.instruments, _librarian(config, created), tell)
    with contextlib.suppress(_Ended):
        machine.run()
    return config


def _paired(run: str, mind: str, seen: list[tuple[str, CodeRequest | VerifyRequest]]) -> Iterator[Asking]:
    """Each request to the Coder with the Verifier's next in the same lane: it is about the answer."""
    waiting: dict[str, CodeRequest] = {}
    for lane, request in seen:
        if isinstance(request, CodeRequest):
            waiting[lane] = request
        elif lane in waiting:
            yield Asking(run, mind, waiting.pop(lane), request)


def _nothing(*_: object) -> NoReturn:
    raise _Ended


class _Absent:
    """Stands for all that a run reaches outside of its journal."""

    def use(self, *_: object) -> None:
        """Says what would be measured."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "concurrent":
            raise AttributeError(name)
        return _nothing


def _mind(config: RunConfig) -> Mind:
    absent = _Absent()
    return Mind(name=config.model, planner=absent, coder=absent, verifier=absent, paid=not config.free)


def _librarian(config: RunConfig, created: Created) -> Any:
    """Whether this run looks things up, as its driver decides it."""
    return _Absent() if config.looks_up and created.config.get("knowledge") else None


class _Listening(Instruments):
    """Tells what is asked; everything else is the machine's own instruments'."""

    def __init__(
        self,
        plain: Instruments,
        librarian: Any,
        tell: Tell,
    ) -> None:
        super().__init__(plain.bench, librarian, plain.folder, events.Silent())
        self._tell = tell

    def informed(self, lane: Lane, request: Asked, say_state: Callable[[], None]) -> Asked:
        """The request, as journaled look-ups complete it."""
        told = super().informed(lane, request, say_state)
        if isinstance(told, CodeRequest | VerifyRequest):
            self._tell((lane.name, told))
        return told
