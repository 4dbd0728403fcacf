"""From what was recorded to a Profile, whichever tool recorded it. Pure functions of data.

``profile`` takes the trace that an evaluation's runner reports, ``from_recording`` what ``profiling.capture`` took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stitchcuda.evaluation.telemetry import Kind, Origin, Trace, TraceRow, origin_of
from stitchcuda.hardware.model import Device
from stitchcuda.profiling import host_timeline, timeline
from stitchcuda.profiling.diagnosis import rank, suggestions
from stitchcuda.profiling.model import (
    Bottleneck,
    Cause,
    Idle,
    KernelCounters,
    KernelDiagnosis,
    KernelTime,
    Profile,
    Timeline,
)
from stitchcuda.profiling.remedies import FIRST, suggestion
from stitchcuda.profiling.rules import BOTTLENECK_OF, Work, call_cause, judge, milliseconds
from stitchcuda.profiling.sass import KernelSass
from stitchcuda.task.model import Precision, TaskFacts, TensorFacts

if TYPE_CHECKING:
    from stitchcuda.profiling.capture import Taken

SHOWN = 20
"""Kernels kept in a Profile, longest first."""
SHORTEST = 1e-6
"""Seconds; no call that does anything on a device is shorter."""
SENSIBLE = 1e9
"""No count or number of seconds per call is as large."""
ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element by dtype; 4 where it is not listed."""


def profile(
    trace: Trace,
    *,
    subject: Literal["reference", "program"],
    device: Device,
    facts: TaskFacts | None = None,
    precision: Precision = "fp32",
    flops: float = 0.0,
) -> Profile:
    """Summarise one traced call and label its bottleneck.

    The device's ceilings, ``facts`` and ``flops`` (FLOP of a call) sharpen the label where they are known. Seconds
    are per call. Busy time is the sum over kernels (cpu: operators' self time). It can exceed the wall time, which
    is measured without the profiler: on cuda where kernels overlap (the gap is then 0); on cpu, where operators run
    one after the other, only by the profiler's own cost, which is scaled away.
    """
    on_cpu = trace.target == "cpu"
    wall = _seconds(trace.wall_seconds)
    recorded = _seconds(sum(_seconds(row.seconds) for row in trace.rows))
    scale = wall / recorded if on_cpu and recorded > wall > 0 else 1.0
    busy = recorded * scale
    rows = sorted(trace.rows, key=lambda row: -_seconds(row.seconds))
    kernels = [_kernel(row, scale, recorded) for row in rows]
    line = Timeline(
        wall_seconds=wall,
        busy_seconds=busy,
        gap_seconds=max(wall - busy, 0.0),
        copy_seconds=sum(_seconds(row.seconds) for row in trace.rows if _is_copy(row, on_cpu)) * scale,
        launches=max(round(_seconds(trace.launches)), 0),
    )
    work = None if facts is None else Work(least_bytes(facts, precision), flops, precision)
    verdict = judge(line, kernels, device, work)
    return Profile(
        subject=subject,
        source=trace.source,
        device=device.name,
        timeline=line,
        kernels=kernels[:SHOWN],
        bottleneck=verdict.bottleneck,
        evidence=verdict.evidence,
        suggestion=suggestion(line, kernels, device, work),
    )


def from_recording(
    taken: Taken,
    *,
    subject: Literal["reference", "program"],
    device: Device,
    facts: TaskFacts | None = None,
    precision: Precision = "fp32",
    flops: float = 0.0,
    own: frozenset[str] = frozenset(),
    counters: Sequence[KernelCounters] = (),
    sass: Sequence[KernelSass] = (),
) -> Profile:
    """A Profile of the calls in a recording, seconds per call; ``own`` are the names of the Program's own kernels, and
    ``sass`` their machine code, which adds to the evidence of kernels with ``counters``.

    The wall time is the one measured without the profiler. Idle time and its causes are what the recording shows,
    scaled to the gap that is left of that wall time, since a profiler makes the host slower and not the device. On cpu
    it makes operators slower, too: they keep their shares of the wall time.
    """
    recording = taken.recording
    on_cpu = device.target.kind == "cpu"
    found = host_timeline.analyse(recording) if on_cpu else timeline.analyse(recording)
    traced = found.timeline
    wall = taken.wall_seconds or traced.wall_seconds
    scale = wall / traced.wall_seconds if on_cpu and traced.wall_seconds > 0 else 1.0
    busy = traced.busy_seconds * scale
    gap = max(wall - busy, 0.0)
    idle = sum(traced.idle_seconds.values())
    shrink = min(gap / idle, 1.0) if idle > 0 else 0.0
    kinds: dict[Idle, float] = {kind: seconds * shrink for kind, seconds in traced.idle_seconds.items()}
    line = traced.model_copy(
        update={
            "wall_seconds": wall,
            "busy_seconds": busy,
            "gap_seconds": gap,
            "copy_seconds": traced.copy_seconds * scale,
            "idle_seconds": kinds,
            "event_seconds": taken.event_seconds,
            "peak_bytes": max(taken.peak_bytes, traced.peak_bytes),
        }
    )
    total = sum(kernel.seconds for kernel in found.kernels) or 1.0
    kernels = [
        KernelTime(
            name=kernel.name.removeprefix("own::"),
            seconds=kernel.seconds * scale,
            share=min(kernel.seconds / total, 1.0),
            calls=max(round(kernel.calls), 1),
            origin=_origin(kernel, own, "cpu" if on_cpu else "cuda"),
            operator=kernel.operator.removeprefix("own::"),
        )
        for kernel in found.kernels
    ]
    work = None if facts is None else Work(least_bytes(facts, precision), flops or taken.flops, precision)
    verdict = judge(line, kernels, device, work)
    cause, evidence = call_cause(line, device)
    diagnoses = rank(counters, kernels, wall, device=device, sass=sass)
    return Profile(
        subject=subject,
        source=recording.source,
        version=recording.version,
        device=device.name,
        timeline=line,
        kernels=kernels[:SHOWN],
        bottleneck=BOTTLENECK_OF[cause] if cause != "none" else verdict.bottleneck,
        evidence=evidence if cause != "none" else verdict.evidence,
        suggestion=first_suggestion(line, kernels, diagnoses, device=device, work=work),
        cause=cause if cause != "none" else cause_by_kernels(verdict.bottleneck, diagnoses),
        diagnoses=diagnoses,
        counters=list(counters),
        operators=found.operators,
        critical_path=found.path,
        remarks=[*found.remarks, *taken.remarks],
    )


def first_suggestion(
    line: Timeline,
    kernels: Sequence[KernelTime],
    diagnoses: Sequence[KernelDiagnosis],
    *,
    device: Device | None,
    work: Work | None,
) -> str:
    """The one change to try first: for the host or the copies where these bind the call, else the one of the largest
    predicted gain."""
    cause, _ = call_cause(line, device)
    if cause != "none":
        return _of_the_call(cause, line)
    best = suggestions(line, kernels, diagnoses, device=device, work=work, limit=1)
    if best and best[0].kernel:
        return f"{best[0].change} ({best[0].gain:.2f}x of the whole call at most)"
    return suggestion(line, kernels, device, work)


def cause_by_kernels(bottleneck: Bottleneck, diagnoses: Sequence[KernelDiagnosis]) -> Cause:
    """The finer label of a call that its timeline does not tell: of the kernel with the largest gain that says the same
    as the call's coarse one; 'none' where no kernel does."""
    same = (d for d in diagnoses if BOTTLENECK_OF[d.cause] == bottleneck and d.program_gain > 1)
    return next((d.cause for d in same), "none")


def _of_the_call(cause: Cause, line: Timeline) -> str:
    """The first suggestion for a call whose host or copies bind it, with what it saves at most."""
    idle = line.idle_seconds
    saved = {
        "host_sync": idle.get("synchronise", 0.0) + idle.get("launch", 0.0),
        "pageable_copies": line.copy_seconds + idle.get("copy", 0.0),
        "host_copies": line.copy_seconds + idle.get("copy", 0.0),
        "allocation": idle.get("allocation", 0.0) + idle.get("synchronise", 0.0),
        "host_work": idle.get("host", 0.0),
    }.get(cause, 0.0)
    saved = min(saved or line.gap_seconds, line.wall_seconds - line.busy_seconds + line.copy_seconds)
    left = max(line.wall_seconds - saved, SHORTEST)
    gain = f"predicted {line.wall_seconds / left:.2f}x at most"
    return f"{FIRST[cause][1]} ({gain}: saves {milliseconds(saved)} of {milliseconds(line.wall_seconds)})"


def _origin(kernel: timeline.KernelSum, own: frozenset[str], target: str) -> Origin:
    kinds: dict[str, Kind] = {"copy": "copy", "memset": "memset", "op": "op"}
    return origin_of(kernel.name, kinds.get(kernel.kind, "kernel"), own, target, kernel.operator)


def least_bytes(facts: TaskFacts, precision: Precision) -> float:
    """Bytes that a call must move whatever the program: inputs, outputs and parameters, once each."""
    parameter = 2 if precision in ("fp16", "bf16") else 4
    tensors = [tensor for tensor in (*facts.inputs, *facts.outputs) if isinstance(tensor, TensorFacts)]
    moved = sum(math.prod(tensor.shape) * ITEM_BYTES.get(tensor.dtype, 4) for tensor in tensors)
    return float(min(moved + facts.parameters * parameter, 1 << 62))


def _seconds(value: float) -> float:
    """``value`` where it can be one, else 0: a trace is told by a process that is not trusted."""
    return value if 0 < value < SENSIBLE else 0.0


def _is_copy(row: TraceRow, on_cpu: bool) -> bool:
    """Between host and device on cuda; any copying operator on cpu."""
    return row.kind == "copy" and (on_cpu or "DtoD" not in row.name)


def _kernel(row: TraceRow, scale: float, recorded: float) -> KernelTime:
    seconds = _seconds(row.seconds)
    return KernelTime(
        name=row.name.removeprefix("own::"),
        seconds=seconds * scale,
        share=min(seconds / recorded, 1.0) if recorded > 0 else 0.0,
        calls=max(round(_seconds(row.calls)), 1),
        origin=row.origin,
        operator=row.operator.removeprefix("own::"),
    )
