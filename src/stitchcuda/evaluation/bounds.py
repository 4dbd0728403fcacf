"""Speed of light: the time below which a task cannot be done on a device, from work and measured ceilings."""

from __future__ import annotations

from typing import Literal

from stitchcuda.evaluation.model import Finding, SpeedOfLight
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Precision

MARGIN = 0.95
"""Measured below this share of a hard bound is impossible."""


def speed_of_light(work: dict[str, float], device: Device, precision: Precision, median: float) -> SpeedOfLight | None:
    """The roofline bound: bytes that must move over the copy rate, FLOP over the precision class's rate; the larger.

    The rate is that of the fastest arithmetic that can meet the class, tensor cores for fp32 included (see
    ``Ceilings.rate``). None without measured ceilings. The fraction can pass 1 when a Program needs less work than the
    reference does.
    """
    if device.ceilings is None or median <= 0:
        return None
    memory = (work["read_bytes"] + work["written_bytes"]) / device.ceilings.copy_bytes_per_second
    rate = device.ceilings.rate(precision)
    compute = work["flops"] / rate if rate > 0 else 0.0
    bound = max(memory, compute)
    binds: Literal["memory", "compute", "unknown"] = "memory" if memory >= compute else "compute"
    if bound <= 0:
        binds = "unknown"
    return SpeedOfLight(fraction=bound / median, bound_seconds=bound, binds=binds)


def bound_findings(work: dict[str, float], device: Device, median: float) -> list[Finding]:
    """Times that hardware does not allow.

    Bytes are a hard bound (``impossible``): what the last-level cache can hold is left out, since it may never reach
    memory, and on cpu also reading it may not. FLOP are not, because algebra may remove them honestly: below
    the device's fastest rate of any precision is a flag.
    """
    if device.ceilings is None:
        return []
    findings = []
    rate = device.ceilings.copy_bytes_per_second
    if device.target.kind == "cuda":
        must_move = work["read_bytes"] + max(0.0, work["written_bytes"] - device.cache_bytes)
    else:
        must_move = max(0.0, work["read_bytes"] + work["written_bytes"] - 2 * device.cache_bytes)
        rate *= 2
    floor = must_move / rate
    if median < MARGIN * floor:
        findings.append(
            Finding(
                rule="impossible",
                severity="reject",
                layer="bounds",
                evidence=f"{median * 1e3:.4f} ms a call, but moving {must_move / 1e6:.1f} MB alone "
                f"takes {floor * 1e3:.4f} ms",
            )
        )
    fastest = max(device.ceilings.flops_per_second.values(), default=0.0)
    if fastest > 0 and median < MARGIN * work["flops"] / fastest:
        findings.append(
            Finding(
                rule="less_work",
                severity="flag",
                layer="bounds",
                evidence=f"{work['flops'] / 1e9:.3g} GFLOP of the reference cannot be done in "
                f"{median * 1e3:.4f} ms on this device; "
                "the Program does less work (algebra) or does not do it",
            )
        )
    return findings
