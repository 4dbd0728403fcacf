"""From a kernel's counters to its diagnosis, and from many to an order of work: the largest gain of the call first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.kernel_rules import causes
from stitchcuda.profiling.metrics import Facts
from stitchcuda.profiling.model import KernelCounters, KernelDiagnosis, KernelTime
from stitchcuda.profiling.remedies import FIRST
from stitchcuda.profiling.roofline import amdahl
from stitchcuda.profiling.rules import BOTTLENECK_OF

DIGITS = 4
"""Significant digits of the numbers that are kept as evidence."""


def diagnose(
    counters: KernelCounters, *, device: Device | None = None, share: float = 1.0, operator: str = ""
) -> KernelDiagnosis:
    """Label one kernel. ``share`` is its part of the whole call's time, 0 to 1; ``operator`` what launched it."""
    ceilings = device.ceilings if device is not None else None
    found = causes(Facts(counters), ceilings=ceilings, operator=operator)
    if not found:
        told = "no unit is near its limit and no wait stands out" if counters.metrics else "no counters were read"
        if counters.missing:
            told += f"; {len(counters.missing)} counters have no value ({', '.join(counters.missing[:2])})"
        return KernelDiagnosis(
            kernel=counters.name,
            cause="none",
            bottleneck="unknown",
            evidence=told,
            remedy=FIRST["none"][0],
            suggestion=FIRST["none"][1],
            kernel_gain=1.0,
            program_gain=1.0,
            counters={},
        )
    first = found[0]
    gain = max(first.gain, 1.0)
    remedy, suggestion = FIRST[first.cause]
    return KernelDiagnosis(
        kernel=counters.name,
        cause=first.cause,
        bottleneck=BOTTLENECK_OF[first.cause],
        evidence=first.evidence,
        remedy=remedy,
        suggestion=suggestion,
        kernel_gain=gain,
        program_gain=amdahl(share, gain),
        counters={name: float(f"{value:.{DIGITS}g}") for name, value in first.numbers.items()},
        others=[c.cause for c in sorted(found[1:], key=lambda c: -c.gain)],
    )


def rank(
    counters: Sequence[KernelCounters],
    kernels: Iterable[KernelTime],
    wall_seconds: float,
    *,
    device: Device | None = None,
) -> list[KernelDiagnosis]:
    """Diagnoses of kernels of one call, by falling gain of the whole call (Amdahl).

    ``kernels`` are those of the call's timeline, which say how much of ``wall_seconds`` each takes. A kernel that the
    timeline does not know counts with its own one launch.
    """
    times = {short(kernel.name): kernel for kernel in kernels}
    found = []
    for one in counters:
        known = times.get(short(one.name))
        seconds = known.seconds if known is not None else one.seconds
        share = min(seconds / wall_seconds, 1.0) if wall_seconds > 0 else 0.0
        found.append(diagnose(one, device=device, share=share, operator=known.operator if known is not None else ""))
    return sorted(found, key=lambda diagnosis: -diagnosis.program_gain)


def short(name: str) -> str:
    """A name that two tools agree on: spaces and the spelling of the anonymous namespace differ between them."""
    text = name.replace("(anonymous namespace)", "<unnamed>").removeprefix("void ").replace(" ", "")
    return text.split("(", 1)[0] if text.endswith(")") else text
