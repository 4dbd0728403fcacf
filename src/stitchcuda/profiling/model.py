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

Cause = Literal[
    "dram_bandwidth",
    "l2_bandwidth",
    "l1_bandwidth",
    "uncoalesced",
    "bank_conflicts",
    "spilling",
    "atomics",
    "fma_pipe",
    "no_tensor_cores",
    "tensor_pipe",
    "fp64_pipe",
    "sfu_pipe",
    "integer_pipe",
    "divergence",
    "occupancy_registers",
    "occupancy_shared_memory",
    "occupancy_block_size",
    "global_latency",
    "shared_latency",
    "dependency",
    "barrier",
    "few_blocks",
    "tail",
    "imbalance",
    "launch_overhead",
    "host_sync",
    "pageable_copies",
    "host_copies",
    "allocation",
    "host_work",
    "none",
]
"""Why a kernel or a call takes its time; each belongs to one Bottleneck (``profiling.rules.BOTTLENECK_OF``)."""
Idle = Literal["launch", "synchronise", "copy", "allocation", "host"]
"""What the host does while the device idles: launch kernels, wait for the device, copy, allocate, compute."""


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
    idle_seconds: dict[Idle, float] = Field(
        default_factory=dict,
        description="the device's idle time by what the host did meanwhile; empty where the source does not tell",
    )
    pageable_seconds: float = Field(default=0.0, description="of copy_seconds, those from or to pageable host memory")
    synchronisations: int = Field(default=0, description="calls that wait for the device, the last one of a call apart")
    allocations: int = Field(default=0, description="calls that allocate or free device memory")
    device_seconds: float = Field(
        default=0.0,
        description="sum over all device operations, more than busy_seconds where they overlap; 0: not told",
    )
    event_seconds: float = Field(default=0.0, description="span by CUDA events, without a profiler; 0: not measured")
    graph_launches: int = Field(default=0, description="CUDA graphs launched")
    streams: int = Field(default=0, description="streams that work ran on; 0: not told")
    peak_bytes: int = Field(default=0, description="largest device memory in use by torch in a call; 0: not told")


class OperatorTime(BaseModel):
    """Device time of all kernels that one ATen operator (or range of a Program) launched, per call."""

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float
    share: float = Field(description="of the device's time, 0 to 1")
    kernels: int = Field(description="device operations per call")


class PathPart(BaseModel):
    """One thing on the critical path: a change elsewhere does not shorten the call."""

    model_config = ConfigDict(frozen=True)

    where: Literal["device", "host"]
    what: str = Field(description="a kernel, a copy, or what the host does")
    seconds: float = Field(description="per call")
    share: float = Field(description="of the call, 0 to 1")
    count: int


class KernelCounters(BaseModel):
    """Hardware counters of one launch of one kernel, as Nsight Compute names them."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="the kernel's name, demangled")
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, float] = Field(description="by Nsight Compute's name; s, byte, hz, % and counts, unscaled")
    missing: list[str] = Field(default_factory=list, description="metrics that were asked for and have no number")
    source: str = Field(default="ncu", description="the tool and its version")

    @property
    def seconds(self) -> float:
        """Duration of the launch; 0.0 where it was not measured."""
        return self.metrics.get("gpu__time_duration.sum", 0.0)


class KernelDiagnosis(BaseModel):
    """Why one kernel takes its time, and what to do first."""

    model_config = ConfigDict(frozen=True)

    kernel: str
    cause: Cause
    bottleneck: Bottleneck
    evidence: str = Field(description="one sentence with the counters behind the label")
    remedy: str = Field(description="the first suggestion's key, such as 'coalesce'")
    suggestion: str = Field(description="the first suggestion as a sentence")
    kernel_gain: float = Field(description="speedup of this kernel that the next bound allows, 1 or more")
    program_gain: float = Field(description="speedup of the whole call if the kernel gains so much (Amdahl)")
    counters: dict[str, float] = Field(description="the numbers that decided, by name")
    others: list[Cause] = Field(default_factory=list, description="further causes that hold, by falling gain")


class Processor(BaseModel):
    """What a CPU's counters say of one call, all its threads together."""

    model_config = ConfigDict(frozen=True)

    events: dict[str, float] = Field(description="by perf's name, per call")
    missing: list[str] = Field(default_factory=list, description="events that this machine does not count")
    wall_seconds: float = Field(description="of a call while it was counted")
    core_seconds: float = Field(description="summed over the cores that a call used")
    calls: int = Field(description="that were counted")
    bottleneck: Bottleneck
    evidence: str = Field(description="one sentence with the numbers behind the label")


BY_HAND = "vectors by hand"
"""The reason of a loop that the compiler left as it is because its elements are vectors already."""


class Loop(BaseModel):
    """One loop of a Program's sources as the compiler reports it."""

    model_config = ConfigDict(frozen=True)

    file: str
    line: int
    vector_bytes: int = Field(description="width of the widest version; 0: the compiler left it as it is")
    reason: str = Field(default="", description="why it was left, in the compiler's words, or BY_HAND")


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
    cause: Cause = Field(default="none", description="the finer label of the whole call, where it is known")
    diagnoses: list[KernelDiagnosis] = Field(
        default_factory=list, description="kernels whose counters were read, by falling gain of the whole call"
    )
    counters: list[KernelCounters] = Field(default_factory=list, description="what the diagnoses rest on")
    operators: list[OperatorTime] = Field(default_factory=list, description="by falling time, at most 20")
    critical_path: list[PathPart] = Field(default_factory=list, description="by falling time, at most 12")
    processor: Processor | None = Field(default=None, description="cpu: counters of the whole call, where perf counts")
    loops: list[Loop] = Field(default_factory=list, description="cpu: loops of the Program's C++ sources")
    version: str = Field(default="", description="of the source")
    device: str = Field(default="", description="its name; '': not told")
    remarks: list[str] = Field(default_factory=list, description="what could not be measured, and why")

    @property
    def slowed(self) -> float:
        """How many times longer the recorded call, whose critical path it is, took than the wall time; 0: not told.

        A profiler slows the host down and not the device: the more it does, the more of the path lies on the host.
        """
        part = max(self.critical_path, key=lambda part: part.share, default=None)
        if part is None or part.share <= 0 or self.timeline.wall_seconds <= 0:
            return 0.0
        return part.seconds / part.share / self.timeline.wall_seconds
