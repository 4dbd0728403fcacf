"""Effects that several states share: measure, profile, look up. Each is journaled in the lane of whoever asks.

Several turns may ask at the same time; the bench says whether it takes that, and is asked one by one where it does not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from stitchcuda.agents.lookup import Asked, Librarian
from stitchcuda.agents.references import References
from stitchcuda.errors import InfrastructureError, NotMeasured
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.program.model import Program
from stitchcuda.workflow import events
from stitchcuda.workflow.bench import Bench
from stitchcuda.workflow.effects import Measured, Profiled
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Lane
from stitchcuda.workflow.records import REFERENCES


class Instruments:
    """The bench, the librarian and the listener of a run, for one or several threads."""

    def __init__(
        self, bench: Bench, librarian: Librarian | None, folder: RunFolder, sink: events.EventSink, counters: int = 0
    ) -> None:
        """``counters``: kernels of each profile whose hardware counters are read."""
        self.counters = counters
        self.bench = bench
        self.librarian = librarian
        self.folder = folder
        self._sink = sink
        self._telling = threading.Lock()
        self._asking = threading.Lock()
        self._benching: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if getattr(bench, "concurrent", False) else threading.Lock()
        )
        self._told: set[str] = set()

    def emit(self, event: events.Event) -> None:
        """Tell the listener, one event at a time."""
        with self._telling:
            self._sink.emit(event)

    def informed(self, lane: Lane, request: Asked, say_state: Callable[[], None]) -> Asked:
        """The request with what was looked up for it; as it is where nothing is looked up.

        ``say_state`` is called where the journal ends after the look-up: what the state does now is no replay.
        """
        librarian = self.librarian
        if librarian is None:
            return request

        def produce() -> References:
            with self._asking:
                return librarian.look_up(request)

        replayed = lane.replaying
        found = lane.effect(REFERENCES, References, produce)
        if replayed and not lane.replaying:
            say_state()
        if found.problem and found.problem not in self._told:
            self._told.add(found.problem)
            self.emit(events.Notice(f"Knowledge: {found.problem}", lane.replaying))
        return request.model_copy(update={"references": found})

    def measured(self, lane: Lane, program: Program, tier: Tier) -> Evaluation:
        """Evaluate; the machine's own failures are tried once more and are never put on the Program."""

        def produce() -> Measured:
            with self._benching:
                evaluation = self.bench.evaluate(program, tier)
                if evaluation.status == "infrastructure_error":
                    self.emit(events.Notice(f"The machine failed, trying once more: {evaluation.message}"))
                    evaluation = self.bench.evaluate(program, tier)
            if evaluation.status == "infrastructure_error":
                raise InfrastructureError(f"An evaluation failed twice for the machine's reasons: {evaluation.message}")
            return Measured(digest=program.digest, evaluation=evaluation)

        return lane.effect("evaluation", Measured, produce).evaluation

    def profiled(self, lane: Lane, name: str, program: Program | None) -> Profiled:
        """Profile ('reference', or a program's number); one that cannot be had costs its insight, not the run. One that
        was interrupted is taken when the run goes on."""

        def produce() -> Profiled:
            try:
                with self._benching:
                    profile = self.bench.profile(program, self.counters)
            except InfrastructureError as error:
                if program is None or isinstance(error, NotMeasured):
                    raise
                return Profiled(problem=str(error))
            self.folder.save_profile(name, profile)
            return Profiled(profile=profile)

        profiled = lane.effect("profile", Profiled, produce)
        if profiled.profile is not None:
            self.emit(events.ProfileTaken(profiled.profile, None if program is None else int(name)))
        elif profiled.problem:
            self.emit(events.Notice(f"No profile of program {name}: {profiled.problem}", lane.replaying))
        return profiled
