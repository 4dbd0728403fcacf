"""The data of an Evaluation: what running a Program showed. Making one is in ``evaluation.evaluator``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.task.model import Precision

Status = Literal[
    "correct",
    "wrong_output",
    "build_failed",
    "crashed",
    "timed_out",
    "out_of_memory",
    "dishonest",
    "impossible",
    "infrastructure_error",
]
Tier = Literal["screen", "publish"]
Baseline = Literal["eager", "cuda_graph", "compile", "compile_reduce_overhead", "compile_max_autotune", "channels_last"]

Layer = Literal[
    "static", "build", "numerics", "state", "memory", "clocks", "census", "bounds", "confinement", "protocol"
]
"""The defences that see different things: two findings of different layers are independent evidence."""


class Finding(BaseModel):
    """One integrity finding."""

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Literal["reject", "flag"]
    evidence: str
    layer: Layer | None = Field(default=None, description="which defence saw it")


class OutputError(BaseModel):
    """How far one output is from the fp64 reference, beside eager's own distance (same precision class)."""

    model_config = ConfigDict(frozen=True)

    output: str = Field(description="path in the output structure, e.g. '0', 'logits', 'state:bn.running_mean'")
    case: str = Field(description="input case and family it was worst on")
    relative_norm: float = Field(description="||out - fp64|| / ||fp64||")
    eager_relative_norm: float
    max_abs: float
    eager_max_abs: float
    budget: float = Field(description="the relative norm that was allowed")
    ok: bool
    detail: str = Field(default="", description="first mismatch: index, got, expected, pattern")


class Correctness(BaseModel):
    """All outputs of all checked calls."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    calls_checked: int
    outputs: list[OutputError]
    families: dict[str, str] = Field(
        default_factory=dict,
        description="families of inputs beside the task's own distribution: 'checked', or why the task has none",
    )
    message: str = Field(default="", description="one sentence for people: the first thing that is wrong")


class Timing(BaseModel):
    """Seconds per call; every call synchronised with the whole device."""

    model_config = ConfigDict(frozen=True)

    median: float
    p10: float
    p90: float
    n: int
    device_median: float | None = Field(default=None, description="seconds by device events, cuda only")
    low: float | None = Field(default=None, description="95 % bootstrap interval of the median, seconds: lower end")
    high: float | None = Field(default=None, description="its upper end")
    note: str = Field(default="", description="why it is missing or odd, e.g. 'not capturable: ...'")


class Census(BaseModel):
    """Where device (or CPU operator) time went, by origin."""

    model_config = ConfigDict(frozen=True)

    own: float = Field(description="share of device time in the Program's own kernels, 0 to 1")
    library: float = Field(description="share in vendor libraries: cuBLAS, cuDNN, MKL, oneDNN")
    framework: float = Field(description="share in the framework's kernels and copies")
    label: Literal["pure", "hybrid", "library", "host_only"]
    source: str = Field(description="'kineto', 'launcher timers', ...")


class SpeedOfLight(BaseModel):
    """How near the hardware's bound the Program runs."""

    model_config = ConfigDict(frozen=True)

    fraction: float = Field(description="bound / measured median, 0 to about 1")
    bound_seconds: float
    binds: Literal["memory", "compute", "unknown"]


class Evaluation(BaseModel):
    """One object per Program and tier; printed by ``stitchcuda evaluate --json``."""

    model_config = ConfigDict(frozen=True)

    status: Status
    message: str = Field(description="one sentence: what happened and, if bad, where to look")
    tier: Tier
    precision: Precision
    findings: list[Finding] = Field(default_factory=list)
    correctness: Correctness | None = None
    timings: dict[str, Timing] = Field(default_factory=dict, description="'program' and baselines by name")
    speedup: dict[str, float] = Field(default_factory=dict, description="over each baseline, and 'over_best'")
    census: Census | None = None
    sol: SpeedOfLight | None = None
    labels: list[str] = Field(
        default_factory=list, description="'stochastic', 'ill_conditioned', 'seeded_weights', 'non_discriminating'"
    )
    log: str = Field(default="", description="digest of compiler or runtime messages, at most 4,000 characters")
    seconds: dict[str, float] = Field(
        default_factory=dict,
        description="wall seconds per stage: open (only where the oracle had yet to load the task), build, check, ...; "
        "waited: for the device",
    )
    memory: dict[str, int] = Field(
        default_factory=dict,
        description="bytes. Peaks of the Program's processes: host (resident, as the system counts), device (allocated "
        "by torch); of the trusted process beside them: oracle_host; reference_device (one call of the reference); "
        "device_free when the task was loaded (cuda), host_free at the end (cpu)",
    )
    provenance: dict[str, str | float | int | bool | None] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True for a correct Program without a rejecting finding."""
        return self.status == "correct"
