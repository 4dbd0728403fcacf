"""The data of a Profile: where time goes. Making one is in ``profiling.profiler``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Bottleneck = Literal[
    "memory_bound",
    "compute_bound",
    "latency_bound",
    "launch_bound",
    "sync_bound",
    "copy_bound",
    "host_bound",
    "unknown",
]


class KernelTime(BaseModel):
    """One kernel (cuda) or operator (cpu), summed over the profiled call."""

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float = Field(description="self time per call")
    share: float = Field(description="of the busy time, 0 to 1")
    calls: int
    origin: Literal["own", "library", "framework", "copy"]
    operator: str = Field(default="", description="the ATen operator that launched it, where known")


class Timeline(BaseModel):
    """The whole program, seconds per call."""

    model_config = ConfigDict(frozen=True)

    wall_seconds: float
    busy_seconds: float = Field(description="device busy time (cuda) or operator self time (cpu)")
    gap_seconds: float = Field(description="wall less busy")
    copy_seconds: float
    launches: int


class Profile(BaseModel):
    """One profiled call of a reference or Program."""

    model_config = ConfigDict(frozen=True)

    subject: Literal["reference", "program"]
    source: str = Field(description="'kineto', 'nsys', ...: which tool measured")
    timeline: Timeline
    kernels: list[KernelTime] = Field(description="by falling time, at most 20")
    bottleneck: Bottleneck
    evidence: str = Field(description="one sentence with the numbers behind the label")
    suggestion: str = Field(default="", description="the one change with the largest predicted gain")
