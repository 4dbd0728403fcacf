"""The stock options of one task in the supervisor: started, warmed up, timed, kept. How the reference is wrapped for
each is in ``stock``; earlier timings are in ``baseline_cache``."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stitchcuda.evaluation import baseline_cache
from stitchcuda.evaluation.model import Tier, Timing
from stitchcuda.evaluation.runner_client import Failure, Subject
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.starting import side_by_side
from stitchcuda.evaluation.timing import TimingPlan
from stitchcuda.hardware.detect import torch_version
from stitchcuda.task.model import Task, TaskFacts, TensorFacts

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator

COMPILE_THREADS = 8
"""At most so many of Inductor's compile processes for each stock option."""


class StockOptions:
    """The stock options beside an Evaluator's Programs."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.held: dict[str, Session] = {}
        """Open sessions, warm; those that failed stay here with their ``failure``."""
        self.early: dict[str, Session] = {}
        """Begun already, so that they import torch while the oracle does."""
        self.failing: dict[str, str] = {}
        """Those that fail alone too, with the reason"""

    def names(self) -> list[str]:
        """Those that exist on this target, eager first."""
        if self.evaluator.kind == "cpu":
            names = ["eager", "compile"]
        else:
            names = ["eager", "cuda_graph", "compile", "compile_reduce_overhead"]
        settings = self.evaluator.settings
        if settings.channels_last and images(self.evaluator.task, self.evaluator.facts):
            names.append("channels_last")
        return [*names, "compile_max_autotune"] if settings.max_autotune else names

    def session(self, name: str, at_once: int = 1) -> Session:
        """A session for a stock option, not yet open; ``at_once`` of all kinds are going to be started together."""
        evaluator = self.evaluator
        folder = evaluator.cache / "inductor" / torch_version()[0]
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
        threads = 1 if evaluator.kind == "cpu" else min(COMPILE_THREADS, max(1, cores() // max(1, at_once // 2)))
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        task = evaluator.task
        return evaluator.session(Subject(name, task.source, task.search_path, environment))

    def warm(self, session: Session, label: str = "stock-", settled: threading.Event | None = None) -> None:
        """Open a session and make its first calls under the oracle's state once that is settled; ``failure`` says if
        that failed."""
        evaluator = self.evaluator
        try:
            session.open()
            if settled is not None:
                settled.wait()
            session.load()
            patience = evaluator.settings.compile_timeout_s
            evaluator.calls.warm_up(session, full=1, patience=patience, label=f"{label}{session.subject.name}-")
        except Failure as failure:
            session.failure = session.failure or failure
            session.close()

    def beside(self) -> list[Session]:
        """Those that stay open beside screened Programs, brought to the oracle's present state."""
        for held in self.held.values():
            if held.failure is None:
                held.refresh()
        missing = [name for name in self.names() if name not in self.held]
        if missing:
            self.held |= self._ready(missing)
        return list(self.held.values())

    def _ready(self, names: Sequence[str]) -> dict[str, Session]:
        sessions = {
            name: self.early.pop(name) if name in self.early else self.session(name, len(names)) for name in names
        }
        side_by_side([(session, partial(self.warm, session)) for session in sessions.values()], cores())
        return sessions

    def alone(self, name: str, plan: TimingPlan) -> Session:
        """A stock option that has failed beside a Program, started anew once that has ended, and timed by ``plan``;
        ``failure`` says if it fails by itself. In place of the one that failed it stays open beside others."""
        evaluator = self.evaluator
        session = self.session(name)
        known = self.failing.get(name) or self._failed_before(name)
        if known:
            session.failure = Failure("crashed", known)
            return session
        self.warm(session, f"alone-{session.number}-")
        if session.failure is None:
            evaluator.calls.time([session], plan, label=f"alone-{session.number}-")
        if session.failure is not None:
            self.failing[name] = session.failure.message
        elif name in self.held:
            self.held[name] = session
        return session

    def _failed_before(self, name: str) -> str:
        """Why it has failed when the baselines were measured, without any Program; empty where it has not, or might
        not again: beside others it may have had no room."""
        timing = baseline_cache.read(self._cache_path()).get(name)
        if timing is None or timing.n or timing.note.startswith("out_of_memory") or self._worth_another_try(timing):
            return ""
        return timing.note.partition(": ")[2] or timing.note

    def _cache_path(self) -> Path:
        evaluator = self.evaluator
        cores = evaluator.device.multiprocessors
        return baseline_cache.cache_path(evaluator.cache, evaluator.task, evaluator.device, torch_version()[0], cores)

    def baselines(self, tier: Tier, *, keep: bool, only: Sequence[str] | None = None) -> dict[str, Timing]:
        """Timings, of ``only`` these where they are named; from the cache where they are known and ``tier`` is
        ``screen``.

        ``keep`` leaves all sessions open for Programs to be timed beside; otherwise eager alone stays, for a trace,
        until ``release``.
        """
        evaluator = self.evaluator
        path = self._cache_path()
        kept = baseline_cache.read(path)
        known = kept if tier == "screen" else {}
        wanted = [name for name in self.names() if only is None or name in only]
        missing = [name for name in wanted if name not in known or self._worth_another_try(known[name])]
        if missing:
            if not keep:
                self.release()
            self.early = {name: self.session(name, len(missing)) for name in missing if name not in self.held}
            for session in self.early.values():
                session.begin()
            evaluator.oracle.ask("renew", nonce=secrets.token_hex(16))
            known |= self._measure(missing, keep)
            baseline_cache.write(path, kept | known)
        return {name: known[name] for name in wanted}

    def _worth_another_try(self, timing: Timing) -> bool:
        """It took too long once, and may take longer now."""
        usual = type(self.evaluator.settings)().compile_timeout_s
        return not timing.n and "timed_out" in timing.note and self.evaluator.settings.compile_timeout_s > usual

    def _measure(self, names: list[str], keep: bool) -> dict[str, Timing]:
        """All of them call by call beside each other; one after the other where memory does not hold them."""
        if keep:
            # One that has failed beside a Program is started anew: this is about what it does without one.
            self.held = {name: held for name, held in self.held.items() if held.failure is None or name in self.failing}
            sessions = {s.subject.name: s for s in self.beside() if s.subject.name in names}
            return self._timed(sessions, keep=True)
        evaluator = self.evaluator
        if evaluator.room(len(names)):
            timings = self._timed(self._ready(names), keep=False)
            crowded = [name for name, timing in timings.items() if timing.note.startswith("out_of_memory")]
            if len(names) == 1 or not crowded:
                return timings
            self.release()
        evaluator.close_all(list(self.early.values()))
        self.early.clear()
        return {name: self._timed(self._ready([name]), keep=False)[name] for name in reversed(names)}

    def _timed(self, sessions: dict[str, Session], keep: bool) -> dict[str, Timing]:
        evaluator = self.evaluator
        evaluator.calls.time([s for s in sessions.values() if s.failure is None], evaluator.calls.screen_plan())
        timings = {}
        for name, session in sessions.items():
            if session.failure is None:
                timings[name] = evaluator.summary(session, session.note)
            else:
                timings[name] = Timing(median=0, p10=0, p90=0, n=0, note=session.failure.sentence)
        if not keep:
            self.held |= {name: s for name, s in sessions.items() if name == "eager" and s.failure is None}
            evaluator.close_all([s for s in sessions.values() if s not in self.held.values()])
        return timings

    def traceable(self) -> Session | None:
        """Eager as it was left open, with inputs taken."""
        session = self.held.get("eager")
        return session if session is not None and session.failure is None and session.calls else None

    def release(self) -> None:
        """Close what is open."""
        self.evaluator.close_all(list(self.held.values()))
        self.held.clear()


IMAGES = re.compile(r"conv(_?transpose)?[23]d|(batch|instance)_?norm[23]d|pool(ing)?[23]d", re.IGNORECASE)
"""What a source names that works on images or volumes."""


def images(task: Task, facts: TaskFacts) -> bool:
    """Whether another memory layout can mean something: an input with the dimensions of images, and layers for them."""
    shaped = any(isinstance(item, TensorFacts) and len(item.shape) in (4, 5) for item in facts.inputs)
    return shaped and IMAGES.search(task.source) is not None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
