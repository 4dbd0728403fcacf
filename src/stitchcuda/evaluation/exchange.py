"""The exchange of one call with a runner, and what the supervisor's clocks make of it: inputs are handed over, the call
is made, its outputs are exported and copied. Which calls there are is in ``calls``; whose they are, in ``session``.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from stitchcuda.evaluation import wire
from stitchcuda.evaluation.timing import Sample
from stitchcuda.evaluation.wire import Op

if TYPE_CHECKING:
    from stitchcuda.evaluation.session import Session

OWN_PROCESSES = 2
"""Under a leash: the init of its namespace, and the runner."""


def pool_size() -> int:
    """Threads that a call may use on cpu: what OpenMP is told, or one for each core."""
    return int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or len(os.sched_getaffinity(0))


def asleep_for(handed: float, spent: float, delayed: tuple[float | None, float | None]) -> float:
    """Of the ``handed`` seconds that a command took, how many the runner neither ran (``spent``, processor time of all
    its threads) nor was ready to run (``delayed``: waits for a core, its own and the supervisor's, before and after).
    One that copies inputs or outputs has no time to sleep; one for which another process computes them has. 0 where
    the kernel does not tell of waits.
    """
    before, after = delayed
    if before is None or after is None:
        return 0.0
    # The waits of threads that have ended since are gone from the sum.
    return max(0.0, handed - max(spent, 0.0) - max(after - before, 0.0))


def exchange(
    session: Session,
    call: int,
    seed: int,
    flags: int,
    out: int,
    timeout_s: float,
    *,
    reuse: bool = False,
    pause: float = 0.0,
    checked: bool = True,
    form: int = 0,
    ordered: bool = False,
) -> Sample:
    """One exchange. ``flags`` are the call's, ``out`` the export's; ``checked``: what it exports is going to be judged,
    so it is copied at once; ``form``: without a Program, the input case as which the answer is formed; ``ordered``: see
    ``wire.ORDERED``, its times mean nothing.

    Processor time outside the call counts from the end of the exchange before, if nothing was asked in between: while
    the oracle works a runner has nothing to do.
    """
    runner = session.live
    patience = session.settings.load_timeout_s
    commands, rested = session.rested
    between = _spent(session) - rested if runner.commands == commands else 0.0
    if session.settings.defences and not session.subject.trusted:
        runner.ask(Op.SETTLE, timeout_s=patience)
    spent = [_spent(session)]
    delayed = [_delayed(session)]
    began = time.monotonic()
    session.oracle.ask("hand", session=session.number, call=call)
    order = wire.ORDERED if ordered else 0
    flags, out = flags | order, out | order
    taking = (0 if ordered else wire.FLUSH) | (wire.REUSE if reuse else 0)
    runner.ask(Op.INPUTS, timeout_s=patience, call=call, flags=taking, argument=seed)
    asleep = asleep_for(runner.handed, _spent(session) - spent[0], (delayed[0], _delayed(session)))
    idle = _wait(session, pause) if pause else 0.0
    spent.append(_spent(session))
    reply = runner.ask(Op.CALL, timeout_s=timeout_s, call=call, flags=flags, argument=form)
    handed = runner.handed
    spent.append(_spent(session))
    delayed.append(_delayed(session))
    runner.ask(Op.EXPORT, timeout_s=patience, call=call, flags=out)
    total = time.monotonic() - began - pause
    spent.append(_spent(session))
    asleep += asleep_for(runner.handed, spent[3] - spent[2], (delayed[1], _delayed(session)))
    exported = runner.handed
    if checked:
        session.oracle.ask("freeze", session=session.number, call=call, inputs=bool(out & wire.INPUTS_OUT))
    session.rested = runner.commands, spent[3]
    wall = reply.wall_ns * 1e-9
    beyond = max(0.0, spent[2] - spent[1] - pool_size() * wall)
    outside = between + spent[1] - spent[0] + beyond + spent[3] - spent[2] + asleep if session.watching else None
    inside = spent[2] - spent[1] if session.watching else None
    return Sample(wall, reply.device_ns * 1e-9, handed, exported, total, idle, outside, inside)


def _spent(session: Session) -> float:
    """Processor time of the runner so far, where that is looked at."""
    return session.live.cpu_seconds(anew=session.thorough) if session.watching else 0.0


def _delayed(session: Session) -> float | None:
    """How long the runner's threads and this one have waited for a core so far, where that is looked at."""
    return session.live.delayed_seconds() if session.watching else None


def _wait(session: Session, seconds: float) -> float:
    """Wait; the share of one core that the runner used in the second half of that. Its processes are looked for at
    half of it, which takes milliseconds where a machine runs many."""
    runner, end = session.live, time.monotonic() + seconds
    time.sleep(seconds / 2)
    before = runner.cpu_seconds(anew=True)
    began = time.monotonic()
    session.processes = len(runner.members) - OWN_PROCESSES
    time.sleep(max(seconds / 4, end - began))
    return (runner.cpu_seconds() - before) / (time.monotonic() - began)
