"""One subject in play: its runner, its share of the oracle, and the exchange of one call. The protocol over
several calls and subjects is in ``calls``."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import wire
from stitchcuda.evaluation.exchange import exchange
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.planes import Planes
from stitchcuda.evaluation.runner_client import Failure, RunnerClient, Subject
from stitchcuda.evaluation.schedule import Strata
from stitchcuda.evaluation.timing import Sample
from stitchcuda.evaluation.wire import Code, Op

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator

_numbers = itertools.count(1)

KEPT_CALLS, KEPT_SHARE = 3, 1 / 8
"""Timed calls on cpu whose outputs the runner keeps, at most, and among how many there is one."""

ASKED = 3
"""Processes that are asked what an exchange costs, where it is not asked of each"""

KEPT_BYTES = 1 << 30
"""From this size on outputs are not kept beyond the first."""


class Exchanges:
    """What an exchange costs without a Program, by input case: of each the smallest of the first few processes, since
    whatever else the machine does makes it longer."""

    def __init__(self) -> None:
        self.costs: dict[str, tuple[float, float]] = {}
        self.asked = 0

    def enough(self) -> bool:
        """Whether another process need not be asked."""
        return self.asked >= ASKED

    def take(self, costs: dict[str, tuple[float, float]]) -> None:
        """Those of one more process."""
        self.asked += 1
        self.costs = {case: min(cost, self.costs.get(case, cost)) for case, cost in costs.items()}


class Session:
    """A started runner. Use ``open`` and ``close``."""

    def __init__(self, subject: Subject, evaluator: Evaluator) -> None:
        self.subject, self.evaluator = subject, evaluator
        self.kind, self.settings = evaluator.kind, evaluator.settings
        self.number = next(_numbers)
        self.runner: RunnerClient | None = None
        self.missing: list[str] = []
        self.seeded = False
        self.seconds: dict[str, float] = {}
        self.samples: list[tuple[str, Sample]] = []
        self.noop = 0.0
        self.costs: dict[str, tuple[float, float]] = {}
        """By input case, what an exchange costs without a Program: see ``cost_without_program``"""
        self.watching = self.kind == "cpu" and self.settings.defences and not subject.trusted
        """Whether the processor time of exchanges is looked at."""
        self.by_itself = False
        """Whether it asks what an exchange costs whatever is known, and tells nobody else."""
        self.beside: Session | None = None
        """A process that no Program has been in, whose exchanges are timed between this one's"""
        self.controls: dict[str, list[Sample]] = {}
        self._strata: dict[tuple[str, float], Strata] = {}
        self.thorough = False
        """Whether processes that have come since are looked for every time."""
        self.told: dict[str, str] = {}
        self.processes = 0
        self.exported = 0.0
        """When the outputs of the last call were out, by time.monotonic()"""
        self.rested = (-1, 0.0)
        """Commands and processor time up to the end of the last exchange"""
        self.deep: Counter[str] = Counter()
        """Timed calls that were compared with fp64, by input case"""
        self.kept = 0
        """Outputs of timed calls that the runner keeps"""
        self.kept_late = False
        """Whether it keeps those of a call after a pause"""
        self.held = 0
        self.peaks = {"host": 0, "device": 0}
        """Bytes at most, of runners that have ended"""
        self.missing_state: set[str] = set()
        self.calls = 0
        self.loaded = False
        self.attached = False
        self.aborted = False
        self.begun = Planes.level, Planes.ipc
        self.level = ""
        """A confinement level of its own, for what does not work under the machine's"""
        self.torch = ""
        self.note = ""
        self.failure: Failure | None = None

    @property
    def oracle(self) -> OracleClient:
        """The oracle, with the task loaded."""
        return self.evaluator.oracle

    @property
    def plan(self) -> dict[str, Any]:
        """What the oracle said about the task."""
        return self.evaluator.plan

    @property
    def live(self) -> RunnerClient:
        """The runner; only between ``open`` and ``close``."""
        assert self.runner is not None
        return self.runner

    def open(self) -> None:
        """Start the runner and attach the shared buffers, at the strictest confinement under which they can be
        shared. Raises InfrastructureError when no runner can be started, Failure when ``abort`` was called."""
        _ = self.plan
        with self.evaluator.gate.hold("start"):
            self._open()

    def _open(self) -> None:
        retried = False
        while True:
            if self.runner is not None and not self.runner.alive():
                self.close()
            if self.runner is None:
                self.begin()
            level, ipc = self.begun
            self._arrange(ipc)
            problem = self._attach()
            if not problem:
                Planes.proven.add((self.kind, self.subject.trusted))
                return
            self.close()
            if self.aborted:
                raise Failure("crashed", "the session was given up")
            # What worked before failed for another reason (memory, a full machine): once more, then say so.
            trusted = self.subject.trusted
            proven = (self.kind, trusted) in Planes.proven
            if (proven and retried) or not (proven or Planes.step_down(level, ipc, trusted=trusted, kind=self.kind)):
                raise InfrastructureError(f"a runner could not be started: {problem}")
            retried = True
            self.number = next(_numbers)

    def wake(self) -> None:
        """Wait until the process has imported torch and, on cuda, opened the device; Failure when it has ended."""
        self.live.ask(Op.HELLO, timeout_s=self.settings.load_timeout_s)

    def abort(self) -> None:
        """End the runner from another thread; whoever waits for it gets a Failure, and still has to close."""
        self.aborted = True
        runner = self.runner
        if runner is not None:
            runner.kill()

    def begin(self) -> None:
        """Start the process, which takes seconds to import torch; a stock option's needs nothing of the oracle yet."""
        self.begun = self.level or Planes.level, Planes.ipc
        arena = None if self.subject.trusted else self._arena(Planes.ipc)
        self.runner = RunnerClient(
            self.subject, kind=self.kind, level=self.begun[0], arena=arena, settings=self.settings
        )
        self.runner.gate = self.evaluator.gate
        if self.aborted:
            self.runner.kill()

    def _arena(self, ipc: bool) -> wire.Arena:
        sizes = {region: self.plan[region] for region in ("inputs", "outputs", "state")}
        self.ipc = dict(sizes) if self.kind == "cuda" and ipc else {}
        if self.ipc and self.plan["host_inputs"]:
            del self.ipc["inputs"]
        return wire.Arena(
            setup=self.plan["descriptions"],
            structure=self.plan["descriptions"],
            report=max(1 << 20, self.plan["descriptions"]),
            **{region: 0 if region in self.ipc else size for region, size in sizes.items()},
        )

    def _arrange(self, ipc: bool) -> None:
        if self.subject.trusted:
            self.live.arrange(self._arena(ipc))

    def _attach(self) -> str:
        """Empty when the runner sees the shared buffers; otherwise why not."""
        runner = self.live
        self.oracle.ask(
            "attach",
            fds=[runner.arena_fd],
            session=self.number,
            arena=vars(runner.arena),
            ipc=self.ipc,
            trusted=self.subject.trusted,
            flush_bytes=self.settings.flush_bytes,
        )
        self.attached = True
        try:
            runner.ask(Op.HELLO, timeout_s=self.settings.load_timeout_s)
            hello = runner.report()
            self.missing = [str(m) for m in hello.get("missing", [])]
            self.torch = str(hello.get("torch", ""))
            reply = runner.ask(Op.ATTACH, timeout_s=self.settings.load_timeout_s)
        except Failure as failure:
            return f"{failure.message}; {failure.log[-1500:]}"
        return "" if reply.code == Code.OK else str(runner.report().get("error", "no reason given"))

    def load(self, folder: Path | None = None, *, knocked_out: bool = False) -> None:
        """Import, construct, copy the state (or reseed both sides), and let the subject prepare.

        ``folder``: the built Program; None for a stock option. ``knocked_out``: its launchers do nothing.
        """
        runner, settings = self.live, self.settings
        if folder is not None:
            if settings.defences and not knocked_out:
                self.control()
            runner.deliver(folder)
        flags = wire.KNOCK_OUT if knocked_out else 0
        runner.ask(Op.LOAD, timeout_s=settings.load_timeout_s, flags=flags, argument=secrets.randbits(62))
        self.seconds["load"] = runner.handed
        self.oracle.ask("state", session=self.number)
        reply = runner.ask(Op.STATE, timeout_s=settings.load_timeout_s)
        if reply.code == Code.STATE_MISMATCH:
            self.seeded = True
            self._match_by_value(self.oracle.ask("reseed")["seed"])
        reply = runner.ask(Op.PREPARE_MODEL, timeout_s=settings.prepare_timeout_s)
        if reply.code == Code.OK and not self.subject.trusted:
            self.seconds["prepare"] = runner.handed
        self.loaded = True

    def _match_by_value(self, seed: int) -> None:
        """Build the Program anew under the seed that the reference is built under, and give it the oracle's state:
        by name, and where it has other names to the tensors in which the seed left the same values.

        Raises Failure when it has no counterpart of something that no seed changes: it may be left out, or not.
        """
        patience = self.settings.load_timeout_s
        self.live.ask(Op.RESEED, timeout_s=patience, argument=seed)
        self.oracle.ask("state", session=self.number)
        self.live.ask(Op.STATE, timeout_s=patience, flags=wire.BY_VALUE)
        told = self.live.report().get("unmatched")
        names = [str(name) for name in told] if isinstance(told, list) else []
        lost = self.oracle.ask("unmatched", names=names)["constant"]
        if lost:
            some = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
            message = (
                f"the Program keeps no parameter or buffer named {some}, nor one that holds the same values after "
                "construction; keep the reference's state under its names, and fold it in prepare() if need be"
            )
            raise Failure("wrong_output", message, rule="missing_state", layer="state")

    def reweigh(self, seed: int) -> None:
        """Take the oracle's new weights and prepare again; a Program whose state did not match, or no longer does since
        it prepared, is built anew first (under ``seed`` unless it is negative)."""
        runner, patience = self.live, self.settings.load_timeout_s
        if self.subject.trusted:
            self.oracle.ask("state", session=self.number)
            runner.ask(Op.STATE, timeout_s=patience)
            return
        if seed >= 0:
            self._match_by_value(seed)
        else:
            self.oracle.ask("state", session=self.number)
            if runner.ask(Op.STATE, timeout_s=patience).code == Code.STATE_MISMATCH:
                runner.ask(Op.RESEED, timeout_s=patience, argument=secrets.randbits(62))
                self.oracle.ask("state", session=self.number)
                runner.ask(Op.STATE, timeout_s=patience)
        runner.ask(Op.PREPARE_MODEL, timeout_s=self.settings.prepare_timeout_s)

    def refresh(self) -> None:
        """Copy the oracle's present state into a stock option that stays open; its earlier samples are forgotten."""
        self.oracle.ask("state", session=self.number)
        self.live.ask(Op.STATE, timeout_s=self.settings.load_timeout_s)
        self.samples = []

    def control(self) -> None:
        """Exchanges as for a call of each input case, but without a Program, which is not there yet: what its clock is
        gated by. The first of each does not count, since it does everything for the first time.

        On cuda the smallest of the Task's first few screens are enough, unless this process is for itself: where they
        accuse a Program, a new process is asked before anybody believes it (see ``post_checks``), for which there has
        to be room.
        """
        known = self.evaluator.exchanges
        if self.kind == "cuda" and not self.by_itself and known.enough() and self.evaluator.room(2, 2):
            self.costs = dict(known.costs)
            return
        # What these cost beside others' work is more than what they cost alone, as timed calls are.
        alone = self.evaluator.gate.hold("clock") if self.evaluator.crowded else contextlib.nullcontext()
        with alone:
            for case in self.plan["cases"]:
                for _ in range(1 + self.settings.control_calls):
                    self.exchange_without_program(case)
                del self.controls[str(case)][0]
        self.costs = self.cost_without_program()
        if not self.by_itself:
            known.take(self.costs)

    def drawn(self, what: str, share: float) -> bool:
        """Whether the next call gets something that a share of this session's calls get."""
        return self._strata.setdefault((what, share), Strata(share))()

    def exchange_without_program(self, case: str | None) -> None:
        """One such exchange, with all that the oracle does between calls; kept in ``controls``."""
        number = self.evaluator.calls.number_call()
        filled = self.oracle.ask("fill", call=number, label=f"control{number}", case=case, sessions=[self.number])
        flags, patience = wire.CONTROL, self.settings.load_timeout_s
        form = self.plan["cases"].index(case)
        sample = exchange(self, number, filled["seed"], flags, wire.INPUTS_OUT, patience, form=form)
        self.controls.setdefault(str(case), []).append(sample)
        self.oracle.ask("answer", call=number)

    def cost_without_program(self) -> dict[str, tuple[float, float]]:
        """By those exchanges, for each input case: seconds of the shortest, and the median of their processor time."""
        costs = {}
        for case, samples in self.controls.items():
            spent = sorted(sample.outside or 0.0 for sample in samples)
            costs[case] = min(sample.total for sample in samples), spent[len(spent) // 2]
        return costs

    def call(
        self,
        call: int,
        seed: int,
        *,
        hold: bool,
        state: bool,
        timeout_s: float,
        timed: bool = False,
        reuse: bool = False,
        pause: float = 0.0,
        count: bool = False,
        ordered: bool = False,
    ) -> Sample:
        """One exchange: take the inputs, run, export. ``reuse``: at the last inputs' addresses; ``pause``: seconds
        between inputs and call, in which an honest Program has nothing to do; ``count`` its launches; ``ordered``: see
        ``wire.ORDERED``."""
        keep = not hold and self._keeps(timed, pause)
        if keep:
            self.oracle.ask("keep", session=self.number)
        hold = hold or keep
        flags = (wire.HOLD if hold else 0) | (0 if timed else wire.FILL) | (wire.COUNT if count else 0)
        out = (wire.STATE_OUT if state else 0) | (0 if self.subject.trusted else wire.INPUTS_OUT)
        sample = exchange(
            self,
            call,
            seed,
            flags,
            out,
            timeout_s,
            reuse=reuse,
            pause=pause,
            ordered=ordered,
            checked=not (timed and self.subject.trusted),
        )
        self.exported = time.monotonic()
        self.held += hold
        self.calls += 1
        if not self.subject.trusted:
            self._listen()
        return sample

    def _keeps(self, timed: bool, pause: float) -> bool:
        """Whether the runner keeps the outputs of a call that is not among the first, where anybody would expect it.
        It takes memory from later calls: on cuda that is left to the calls after those that count."""
        if self.subject.trusted or not self.settings.defences or self.plan["outputs"] >= KEPT_BYTES:
            return False
        if pause:
            first, self.kept_late = not self.kept_late, True
            return first
        if not timed or self.kind != "cpu" or self.kept >= KEPT_CALLS or not self.drawn("keep", KEPT_SHARE):
            return False
        self.kept += 1
        return True

    def _listen(self) -> None:
        """Note what the runner has seen of the Program's tricks; the first of each kind."""
        told = self.live.report().get("told")
        for kind, value in (told if isinstance(told, dict) else {}).items():
            if value and kind not in self.told:
                self.told[str(kind)] = ", ".join(map(str, value))[:300] if isinstance(value, list) else str(value)[:300]

    def look_again(self, call: int) -> str:
        """Read the last outputs once more after a while; in a sentence, how they have changed since."""
        time.sleep(max(0.0, self.exported + self.settings.late_seconds - time.monotonic()))
        self.live.ask(Op.EXPORT, timeout_s=self.settings.load_timeout_s, call=call)
        verdict = self.oracle.ask("recheck", session=self.number)
        return str(verdict["message"])

    def peak(self, where: str) -> int:
        """Bytes that the runner has held at most: 'host' or 'device'."""
        now = 0 if self.runner is None else self.runner.peak_host if where == "host" else self.runner.peak_device
        return max(self.peaks[where], now)

    def measure_noop(self) -> None:
        """What a hand-over costs by the supervisor's clock, seconds (median of nine). A runner could answer slowly so
        as to be allowed more: the same with the oracle bounds it."""
        costs, trusted = [], []
        for _ in range(9):
            self.live.ask(Op.NOOP, timeout_s=10)
            costs.append(self.live.handed)
            began = time.monotonic()
            self.oracle.ask("ping")
            trusted.append(time.monotonic() - began)
        self.noop = min(sorted(costs)[4], 2 * sorted(trusted)[4])

    def check_held(self) -> None:
        """Read the kept outputs again; Failure when one has changed."""
        for index in range(self.held):
            self.live.ask(Op.EXPORT_HELD, timeout_s=self.settings.load_timeout_s, argument=index)
            verdict = self.oracle.ask("check_held", session=self.number, index=index)
            if not verdict["ok"]:
                raise Failure("wrong_output", verdict["message"], rule="output_reused", layer="memory")

    def trace(self) -> str:
        """A torch.profiler pass over the inputs last taken; the runner's raw report,
        empty where it cannot be read. Raises Failure."""
        self.live.ask(Op.TRACE, timeout_s=self.settings.load_timeout_s, argument=self.settings.trace_calls)
        self._listen()
        error = self.live.report().get("error")
        if error:
            raise Failure("crashed", f"the trace raised {' '.join(str(error).split())[:300]}")
        try:
            return self.live.report_text()
        except ValueError:
            # The report lies in memory that the Program can write to: its length may be impossible.
            return ""

    def close(self) -> None:
        """End the runner and free its buffers; safe to call twice."""
        if self.runner is not None:
            with self.evaluator.gate.hold("work"):
                self.runner.close()
            self.peaks = {where: self.peak(where) for where in self.peaks}
            self.runner = None
        if self.attached:
            self.attached = False
            with contextlib.suppress(InfrastructureError):
                self.oracle.ask("detach", session=self.number)
