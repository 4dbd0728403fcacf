"""From the runner's trace to a Profile. A pure function of data: the trace is taken by ``evaluation``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import KernelTime, Profile, Timeline
from stitchcuda.profiling.remedies import suggestion
from stitchcuda.profiling.rules import Work, judge
from stitchcuda.task.model import Precision, TaskFacts, TensorFacts

if TYPE_CHECKING:
    from stitchcuda.evaluation.telemetry import Trace, TraceRow

SHOWN = 20
"""Kernels kept in a Profile, longest first."""
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
    timeline = Timeline(
        wall_seconds=wall,
        busy_seconds=busy,
        gap_seconds=max(wall - busy, 0.0),
        copy_seconds=sum(_seconds(row.seconds) for row in trace.rows if _is_copy(row, on_cpu)) * scale,
        launches=max(round(_seconds(trace.launches)), 0),
    )
    work = None if facts is None else Work(least_bytes(facts, precision), flops, precision)
    verdict = judge(timeline, kernels, device, work)
    return Profile(
        subject=subject,
        source=trace.source,
        timeline=timeline,
        kernels=kernels[:SHOWN],
        bottleneck=verdict.bottleneck,
        evidence=verdict.evidence,
        suggestion=suggestion(timeline, kernels, device, work),
    )


def least_bytes(facts: TaskFacts, precision: Precision) -> float:
    """Bytes that a call must move whatever the program: inputs, outputs and parameters, once each."""
    parameter = 2 if precision in ("fp16", "bf16") else 4
    tensors = [tensor for tensor in (*facts.inputs, *facts.outputs) if isinstance(tensor, TensorFacts)]
    moved = sum(math.prod(tensor.shape) * ITEM_BYTES.get(tensor.dtype, 4) for tensor in tensors)
    return float(moved + facts.parameters * parameter)


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
