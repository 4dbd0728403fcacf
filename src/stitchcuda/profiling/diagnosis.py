"""From a kernel's counters to its diagnosis, and from many to an order of work: the largest gain of the call first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.kernel_rules import causes
from stitchcuda.profiling.metrics import Facts
from stitchcuda.profiling.model import Cause, KernelCounters, KernelDiagnosis, KernelTime, Timeline
from stitchcuda.profiling.ncu import function_name
from stitchcuda.profiling.remedies import FIRST, WORTH_NAMING, remedies
from stitchcuda.profiling.roofline import amdahl
from stitchcuda.profiling.rules import BOTTLENECK_OF, Work, call_cause
from stitchcuda.profiling.sass import KernelSass

DIGITS = 4
"""Significant digits of the numbers that are kept as evidence."""


def diagnose(
    counters: KernelCounters,
    *,
    device: Device | None = None,
    share: float = 1.0,
    operator: str = "",
    sass: KernelSass | None = None,
) -> KernelDiagnosis:
    """Label one kernel. ``share`` is its part of the whole call's time, 0 to 1; ``operator`` what launched it.

    ``sass`` adds what the machine code says to the evidence; it never decides.
    """
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
        evidence=first.evidence + _proof(first.cause, sass),
        remedy=remedy,
        suggestion=suggestion,
        kernel_gain=gain,
        program_gain=amdahl(share, gain),
        counters={name: float(f"{value:.{DIGITS}g}") for name, value in first.numbers.items()},
        others=[c.cause for c in sorted(found[1:], key=lambda c: -c.gain)],
    )


def _proof(cause: Cause, sass: KernelSass | None) -> str:
    """What the machine code adds to a cause; '' where it has nothing to say."""
    if sass is None:
        return ""
    if cause == "spilling":
        return f"; the code has {sass.local_accesses} local accesses and {sass.stack_bytes} bytes of stack a thread"
    if cause in ("no_tensor_cores", "fma_pipe"):
        return f"; the code has {sum(sass.matrix.values()) or 'no'} tensor instructions and {sass.ffma} FFMA"
    if cause == "tensor_pipe":
        return f"; the code has {', '.join(sass.matrix_opcodes) or 'no tensor instructions'}"
    if cause in ("dram_bandwidth", "uncoalesced", "global_latency"):
        copies = ", ".join(sass.async_copies) or "no async copies"
        return f"; the widest global load is {sass.widest('global load')} bits, {copies}"
    if cause in ("occupancy_registers", "barrier"):
        return f"; the code uses {sass.registers} registers and {sass.barriers} barriers"
    return ""


def rank(
    counters: Sequence[KernelCounters],
    kernels: Iterable[KernelTime],
    wall_seconds: float,
    *,
    device: Device | None = None,
    sass: Sequence[KernelSass] = (),
) -> list[KernelDiagnosis]:
    """Diagnoses of kernels of one call, by falling gain of the whole call (Amdahl).

    ``kernels`` are those of the call's timeline, which say how much of ``wall_seconds`` each takes. A kernel that the
    timeline does not know counts with its own one launch. ``sass`` holds kernels of the program's own libraries, whose
    machine code adds to the evidence.
    """
    rows: dict[str, list[KernelTime]] = {}
    for kernel in kernels:
        rows.setdefault(spelling(kernel.name), []).append(kernel)
    found = []
    for one in counters:
        known = rows.get(spelling(one.name), [])
        seconds = sum(kernel.seconds for kernel in known) or one.seconds
        share = min(seconds / wall_seconds, 1.0) if wall_seconds > 0 else 0.0
        operator = max(known, key=lambda kernel: kernel.seconds).operator if known else ""
        code = next((kernel for kernel in sass if kernel.function == function_name(one.name)), None)
        found.append(diagnose(one, device=device, share=share, operator=operator, sass=code))
    return sorted(found, key=lambda diagnosis: -diagnosis.program_gain)


@dataclass(frozen=True)
class Suggestion:
    """One change to the program. ``gain`` is the predicted speedup of the whole call, more than 1."""

    change: str
    gain: float
    evidence: str
    kernel: str = ""


def suggestions(
    timeline: Timeline,
    kernels: Sequence[KernelTime],
    diagnoses: Sequence[KernelDiagnosis],
    *,
    device: Device | None = None,
    work: Work | None = None,
    limit: int = 5,
) -> list[Suggestion]:
    """Changes to the whole call and to single kernels in one order: the largest predicted gain of the call first.

    Kernels' gains are what their next limit allows; the call's are those of ``profiling.remedies``. Gains do not add
    up: after the first change, profile again. What gains less than 2 % is left out.
    """
    wall = timeline.wall_seconds
    cause, evidence = call_cause(timeline, device)
    found = [
        Suggestion(remedy.change, remedy.gain(wall), evidence if cause != "none" else "")
        for remedy in remedies(timeline, kernels, device, work)
    ]
    found += [
        Suggestion(f"{function_name(one.kernel)[:80]}: {one.suggestion}", one.program_gain, one.evidence, one.kernel)
        for one in diagnoses
        if one.cause != "none"
    ]
    worth = [one for one in found if one.gain >= WORTH_NAMING]
    return sorted(worth, key=lambda one: -one.gain)[:limit]


_CAST = re.compile(r"\([\w: ]+\)(?=-?\d)")
_QUALIFIER = re.compile(r"(?:\b\w+|<unnamed>)::")
_LAMBDA = re.compile(r"\{lambda(\([^{}]*\))#(\d+)\}")


def spelling(name: str) -> str:
    """A key that the tools agree on, not for people: no namespaces, parameters, spaces and types of template values.

    Nsight Systems writes ``at::native::f<(int)4, (bool)1>(int)``, Nsight Compute ``void at::f<4, 1>(int)``, Kineto
    ``void at::native::f<4, true>(int)``.
    """
    text = name.replace("(anonymous namespace)", "<unnamed>").removesuffix(" const").rstrip()
    if text.endswith(")"):
        depth = 0
        for place in range(len(text) - 1, -1, -1):
            depth += (text[place] == ")") - (text[place] == "(")
            if depth == 0:
                text = text[:place] or text
                break
    text = _QUALIFIER.sub("", _CAST.sub("", text))
    text = re.sub(r"\bvoid ", "", text)
    text = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", text)).replace(" ", "")
    return _LAMBDA.sub(r"[lambda\1(instance\2)]", text)


def short(name: str) -> str:
    """A name for people, in which spaces and the spelling of the anonymous namespace do not differ between tools."""
    text = name.replace("(anonymous namespace)", "<unnamed>").removeprefix("void ").replace(" ", "")
    return text.split("(", 1)[0] if text.endswith(")") else text
