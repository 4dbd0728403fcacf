"""The mark for CUDA engineering: how near the hardware's bound a Program runs, and what its machine code shows."""

from __future__ import annotations

import math

from stitchcuda.profiling.diagnosis import short, spelling
from stitchcuda.profiling.model import Cause
from stitchcuda.profiling.ncu import function_name
from stitchcuda.profiling.sass import KernelSass, Technique
from stitchcuda.reward.formula import overlap
from stitchcuda.reward.model import Mark
from stitchcuda.reward.observed import MOST, PART, SHOW, Observed
from stitchcuda.reward.signals import Cap, Signal, combine, level

SOL_BOUNDS = (0.05, 0.15, 0.35, 0.6)
"""Fractions of speed of light that levels 2 to 5 begin at."""
HEADROOM_BOUNDS = (0.03, 0.1, 0.2, 0.4)
"""The same for the share of the headroom over the best stock option, on a logarithmic scale. Lower, since the bound
knows no latency: of a recurrent network 20 % are four to five times the best stock option."""
TECHNIQUES: tuple[Technique, ...] = ("vector_loads", "warp_shuffles", "async_copy", "tma", "tensor_cores", "wgmma")
FAULTS: tuple[Cause, ...] = ("uncoalesced", "bank_conflicts", "spilling", "divergence", "few_blocks")
"""What a better kernel of the same algorithm does not have."""
SPILLS = 0.02
"""Share of a kernel's instructions that access local memory from which it spills: a few are small indexed arrays."""
NEAR = 1.3
"""A kernel that could gain no more than this runs near its bound."""


def cuda_engineering(observed: Observed) -> Mark:
    """The bound first, machine code and counters of the kernels that ran second; without own kernels at most 2."""
    signals, caps = [], []
    if (bound := _bound(observed)) is not None:
        signals.append(bound)
    else:
        caps.append(Cap(3, "how near the hardware's bound it runs is not known"))
    if (slower := _slower(observed)) is not None:
        caps.append(slower)
    code, spills = _code(observed)
    signals += code
    caps += spills
    signals += _counters(observed)
    own, done = observed.own, observed.done
    if own is None or done is None:
        caps.append(Cap(3, "what ran was not seen"))
    elif min(own, done) < SHOW:
        host = observed.host_work
        caps.append(Cap(2 if host else 1, host or "there is no kernel of its own that counts"))
    elif done < PART:
        caps.append(Cap(2, f"its kernels do {done:.0%} of the work: the speed is that of stock kernels"))
    elif done < MOST:
        caps.append(Cap(4, f"its kernels do {done:.0%} of the work: most of the speed is that of stock kernels"))
    if not signals:
        signals.append(Signal(3, "it works"))
    return combine(signals, caps)


def headroom(best: float, program: float, bound: float) -> float:
    """Share of what could be gained over the best stock option that was gained, on a logarithmic scale, 0 to 1.

    ``log(best / program) / log(best / bound)``, all in seconds: the same for tasks that have much to gain and little.
    """
    if not 0 < bound < best or program <= 0:
        return 0.0
    return min(max(math.log(best / program) / math.log(best / bound), 0.0), 1.0)


def _bound(observed: Observed) -> Signal | None:
    """The better of speed of light and headroom: small tasks never come near the first, tuned ones to the second."""
    evaluation = observed.evaluation
    sol, program = evaluation.sol, evaluation.timings.get("program")
    if sol is None or program is None or sol.binds == "unknown":
        return None
    found = level(sol.fraction, SOL_BOUNDS)
    reason = f"{sol.fraction:.0%} of speed of light ({sol.binds})"
    over = evaluation.speedup.get("over_best", 0.0)
    if math.isfinite(over) and over > 0:
        gained = headroom(over * program.median, program.median, sol.bound_seconds)
        found = max(found, level(gained, HEADROOM_BOUNDS))
        reason += f", {gained:.0%} of the headroom over the best stock option gained"
    return Signal(found, reason, weight=3)


def _slower(observed: Observed) -> Cap | None:
    """A stock option is faster, by more than was measured as noise."""
    evaluation = observed.evaluation
    over, program = evaluation.speedup.get("over_best"), evaluation.timings.get("program")
    if over is None or program is None or not over < 1:
        return None
    name = min(
        (n for n in evaluation.speedup if n != "over_best" and n in evaluation.timings),
        key=lambda n: abs(evaluation.speedup[n] - over),
        default="",
    )
    if not name or overlap(program, evaluation.timings[name]):
        return None
    return Cap(3, f"slower than stock: {over:.2f}x {name}")


def ran(observed: Observed) -> list[KernelSass]:
    """Machine code of the Program's kernels that its Profile shows at work; of all of them without a Profile."""
    if observed.profile is None:
        return list(observed.sass)
    names = {function_name(kernel.name) for kernel in observed.profile.kernels if kernel.origin == "own"}
    names |= {short(kernel.name) for kernel in observed.profile.kernels if kernel.origin == "own"}
    return [kernel for kernel in observed.sass if kernel.function in names]


def _code(observed: Observed) -> tuple[list[Signal], list[Cap]]:
    kernels = ran(observed)
    if not kernels:
        return [], []
    shown: list[str] = [technique for technique in TECHNIQUES if any(kernel.shows(technique) for kernel in kernels)]
    if any(kernel.shared_bytes or any(s.startswith("shared") for s in kernel.accesses) for kernel in kernels):
        shown.append("shared_memory")
    words = ", ".join(shown).replace("_", " ") or "none of the usual techniques"
    signal = Signal(min(2 + len(shown), 5), f"machine code of the kernels that ran: {words}")
    spilling = [kernel for kernel in kernels if kernel.local_accesses > SPILLS * kernel.instructions]
    caps = [Cap(3, f"{k.function[:60]} has {k.local_accesses} accesses to local memory") for k in spilling[:3]]
    return [signal], caps


def _counters(observed: Observed) -> list[Signal]:
    if observed.profile is None:
        return []
    own = {spelling(kernel.name) for kernel in observed.profile.kernels if kernel.origin == "own"}
    found = []
    for diagnosis in observed.profile.diagnoses:
        if spelling(diagnosis.kernel) not in own:
            continue
        if diagnosis.cause in FAULTS:
            value = 2
        else:
            value = 5 if diagnosis.kernel_gain <= NEAR else 4 if diagnosis.kernel_gain <= 2 * NEAR else 3
        found.append(Signal(value, f"{diagnosis.kernel[:60]}: {diagnosis.cause} ({diagnosis.evidence})"))
    return found[:3]
