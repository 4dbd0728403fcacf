"""Start a run and go on with one: all that is around the state machine (its folder, journal, mind and bench)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from stitchcuda import __version__
from stitchcuda.agents.lookup import Librarian, Library
from stitchcuda.agents.roles import Mind, ReplyLog
from stitchcuda.compute.folders import data_folder
from stitchcuda.errors import RunError, StitchError, TaskError
from stitchcuda.hardware.model import Device
from stitchcuda.program.files import load_program
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from stitchcuda.workflow import events
from stitchcuda.workflow.approval import Ask, approval, later
from stitchcuda.workflow.bench import Bench, ComputeBench, find_device, open_bench
from stitchcuda.workflow.budget import Limits
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.effects import Created, Extended
from stitchcuda.workflow.events import Notice
from stitchcuda.workflow.folder import CONFIG, RunFolder
from stitchcuda.workflow.interruption import stopped_in_order
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.machine import AwaitingApproval, Machine
from stitchcuda.workflow.records import NAME
from stitchcuda.workflow.result import Result
from stitchcuda.workflow.storage import full_disk_is_an_error

Replies = Callable[[Journal], ReplyLog]
"""Puts something between the model and the journal of its replies, such as limits that several runs share."""


def optimize(
    config: RunConfig,
    *,
    events: events.EventSink,
    runs: Path = Path("runs"),
    ask: Ask = later,
    mind: Mind | None = None,
    bench: Bench | None = None,
    librarian: Librarian | None = None,
    replies: Replies | None = None,
    device: Device | None = None,
) -> Result:
    """Start a run in a new folder under ``runs`` and take it to its end.

    ``mind``, ``bench``, ``librarian`` and ``device`` replace what ``config`` names; ``replies`` sees every request to a
    model of ``config``'s. Raises StitchError for what cannot be used, and leaves no folder then; InfrastructureError,
    ModelAccessError or Interrupted later, with a run that can be resumed.
    """
    created = _create(config, device)
    folder = RunFolder.new(runs, created.task, config)
    with Journal.create(folder.path) as journal:
        try:
            mind = mind or make_mind(config, replies(journal) if replies else journal, events, config.limits())
        except StitchError:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        try:
            return _drive(folder, journal, created, False, events, ask, mind, bench, librarian)
        except TaskError:
            if journal.last("prepared") is None:  # its source is part of the run, so resuming would not help
                shutil.rmtree(folder.path, ignore_errors=True)
            raise


def resume(
    folder: RunFolder,
    *,
    events: events.EventSink,
    more: dict[str, float] | None = None,
    max_output_tokens: int | None = None,
    ask: Ask = later,
    mind: Mind | None = None,
    bench: Bench | None = None,
    librarian: Librarian | None = None,
    replies: Replies | None = None,
    device: Device | None = None,
) -> Result:
    """Go on with a run where its journal ends; a finished one gives its result again.

    ``more`` holds new values for fields of ``Limits``: when the run comes to its end, it goes on within them.
    ``max_output_tokens`` is the longest reply from here on, until the run is resumed again.
    ``device``: for a run that has not got as far as to know its own.
    Raises RunError when the folder is no run, is in use, was edited or is damaged.
    """
    config = RunConfig.read(folder.path / CONFIG)
    if not (folder.path / NAME).exists():
        Journal.create(folder.path).close()
    with Journal.open(folder.path) as journal:
        folder.tidy()
        finished = folder.summary() if journal.ended else None
        if finished is not None and not more:
            return finished
        created = None if journal.replaying else _create(config, device)
        limits = _limits(config, journal)
        raised = limits.model_copy(update=more) if more else None
        length = {} if max_output_tokens is None else {"max_output_tokens": max_output_tokens}
        asked = config.model_copy(update=length)
        mind = mind or make_mind(asked, replies(journal) if replies else journal, events, raised or limits)
        return _drive(folder, journal, created, True, events, ask, mind, bench, librarian, raised)


def _limits(config: RunConfig, journal: Journal) -> Limits:
    """The limits that hold now: the settings', or those that the run was given later."""
    later = journal.last("extended")
    return Extended.model_validate(later).limits if later else config.limits()


def _create(config: RunConfig, device: Device | None) -> Created:
    """Load all that the run needs from outside, so that it never needs it again."""
    from stitchcuda.task.loader import load_task

    device = device or find_device(config.compute, config.target)
    task: Task = load_task(
        config.task,
        target=device.target,
        root=_path(config.root),
        precision=config.precision,
        inputs=_path(config.inputs),
        checkpoint=_path(config.checkpoint),
        submodule=config.submodule,
    )
    base: Program | None = load_program(Path(config.from_program)) if config.from_program else None
    return Created(stitchcuda=__version__, config=_plain(config), task=task, device=device, base=base)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _plain(config: RunConfig) -> dict[str, object]:
    return config.model_dump(mode="json", exclude_none=True)


def make_mind(config: RunConfig, journal: ReplyLog, sink: events.EventSink, limits: Limits) -> Mind:
    """The mind that the settings name. Raises KeyMissing without a key, StitchError for a wrong name."""
    if config.free:
        from stitchcuda.recipes.mind import mind as recipes

        return recipes()
    from stitchcuda.agents.llm import mind as language_model
    from stitchcuda.agents.schemes import arranged
    from stitchcuda.agents.settings import Limits as ModelLimits
    from stitchcuda.agents.settings import MindSettings

    settings = MindSettings(
        planner_model=config.planner_model,
        coder_model=config.coder_model,
        repair_model=config.repair_model,
        verifier_model=config.verifier_model,
        max_output_tokens=config.max_output_tokens,
    )
    whole = language_model(
        config.model,
        base_url=config.base_url,
        log=journal,
        limits=ModelLimits(tokens=limits.tokens or None, usd=limits.usd or None, seconds=limits.seconds or None),
        settings=settings,
        notify=lambda sentence: sink.emit(Notice(sentence)),
    )
    mind = arranged(whole, config.agents, config.ablate, judge=whole.judge)
    if not config.seeded:
        return mind
    from stitchcuda.recipes.seeds import seeded

    return seeded(mind)


def _drive(
    folder: RunFolder,
    journal: Journal,
    created: Created | None,
    resumed: bool,
    sink: events.EventSink,
    ask: Ask,
    mind: Mind,
    bench: Bench | None,
    librarian: Librarian | None,
    more: Limits | None = None,
) -> Result:
    """Run the machine over the journal, with signals turned into an orderly stop."""

    def produce() -> Created:
        if created is None:
            raise RunError(f"{folder.path} does not say what it is about; start a new run.")
        return created

    with stopped_in_order(folder.path), full_disk_is_an_error(folder.path), contextlib.ExitStack() as stack:
        begun = journal.effect("created", Created, produce)
        config = RunConfig.model_validate(begun.config)
        if config != RunConfig.read(folder.path / CONFIG):
            raise RunError(
                f"{folder.path / CONFIG} was changed since the run began, so what is in the journal does not fit it. "
                "Put it back, or start a new run with the new settings and --from the best program."
            )
        sink.emit(events.RunStarted(folder.path, begun.task, mind.name, resumed))
        if bench is None:
            bench = stack.enter_context(open_bench(config.compute, data_folder(), begun.device.target.kind))
        if isinstance(bench, ComputeBench):
            # A run that goes on after its end measures anew.
            mark = f"{journal.mark} {len(journal.opened('extended')) + (more is not None)}"
            bench.of_run(mark, begun.device.name)
        if not config.looks_up or not begun.config.get("knowledge"):
            librarian = None
        elif librarian is None:
            librarian = stack.enter_context(Library())
        machine = Machine(
            config,
            begun.task,
            begun.device,
            journal=journal,
            folder=folder,
            bench=bench,
            mind=mind,
            sink=sink,
            approve=approval(folder, resumed=resumed, ask=ask),
            librarian=librarian,
            base=begun.base,
            more=more,
        )
        try:
            return machine.run()
        except AwaitingApproval as waiting:
            return Result(
                status="awaiting_approval",
                message=f"The plan is in {waiting}: edit it, then `stitchcuda runs resume {folder.path}`.",
                task=begun.task.name,
                origin=begun.task.origin,
                target=begun.device.target.kind,
                device=begun.device.name,
                precision=begun.task.precision,
                mind=mind.name,
                run=str(folder.path),
                spent=machine.spent,
            )
