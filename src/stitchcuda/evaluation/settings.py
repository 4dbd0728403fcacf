"""How an evaluation is run: every limit, count and tolerance in one typed place. What was run is in ``model``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.task.model import Precision


class Tolerance(BaseModel):
    """The error budget of one precision class; relative norms are against the fp64 reference."""

    model_config = ConfigDict(frozen=True)

    floor: float = Field(description="relative norm that is always allowed")
    factor: float = Field(description="allowed multiple of eager's own error, and of the conditioning")
    noise: float = Field(description="relative noise put on inputs and weights to measure the conditioning")
    element_floor: float = Field(description="element-wise: allowed share of the largest reference magnitude")
    element_factor: float = Field(description="element-wise: allowed multiple of eager's largest error")


TOLERANCES: dict[str, Tolerance] = {
    "fp32": Tolerance(floor=2e-6, factor=8, noise=2**-22, element_floor=8e-6, element_factor=16),
    "tf32": Tolerance(floor=5e-4, factor=4, noise=2**-11, element_floor=2e-3, element_factor=8),
    "fp16": Tolerance(floor=1e-3, factor=4, noise=2**-11, element_floor=4e-3, element_factor=8),
    "bf16": Tolerance(floor=8e-3, factor=4, noise=2**-8, element_floor=3e-2, element_factor=8),
}
"""TF32 errs by about 2e-4 in relative norm on matrix products, a hundred times the fp32 class's floor."""


class EvaluationSettings(BaseModel):
    """Limits and counts of one evaluation; the defaults suit the inner loop of a search."""

    model_config = ConfigDict(frozen=True)

    correctness_seeds: int = Field(
        default=3,
        ge=1,
        description="inputs checked against the fp64 reference, per case: the first of the task's own distribution, "
        "the others of families that it does not cover",
    )
    family_seconds: float = Field(
        default=1.0,
        ge=0,
        description="screen: families of inputs beyond those that the seeds cover are checked for so long, per case, "
        "seconds; where a call is short on cpu all of them, unless this is 0, as publish does",
    )
    warmup_calls: int = Field(default=3, ge=1, description="untimed calls with fresh inputs before the clock counts")
    held_outputs: int = Field(
        default=3, ge=0, description="outputs kept by the runner and read again at the end, calls"
    )
    screen_calls: int = Field(
        default=20,
        ge=3,
        description="timed calls of a screen, unless screen_seconds is up first; on cuda with defences three of them "
        "come after a pause and do not count",
    )
    screen_min_calls: int = Field(default=8, ge=3, description="timed calls of a screen however long they take")
    screen_seconds: float = Field(default=3.0, gt=0, description="wall time for the timed calls of a screen, seconds")
    publish_calls: int = Field(default=51, ge=5, description="timed calls of a publish, over all its processes")
    publish_processes: int = Field(default=3, ge=1, description="fresh processes that a publish measures in")
    publish_seconds: float = Field(
        default=24.0,
        gt=0,
        description="wall time for the timed calls of a publish, seconds; "
        "each process makes screen_min_calls however long they take",
    )
    flush_bytes: int = Field(
        default=256 << 20, ge=0, description="written between timed calls on cuda to empty L2, bytes"
    )
    load_timeout_s: float = Field(
        default=180.0, gt=0, description="import, construction and state of a Program, seconds"
    )
    prepare_timeout_s: float = Field(default=60.0, gt=0, description="``ModelNew.prepare()``, seconds")
    call_timeout_s: float = Field(default=30.0, gt=0, description="first call of a Program (it may compile), seconds")
    call_timeout_factor: float = Field(
        default=100.0, gt=1, description="later calls: this many times eager, at least 5 s"
    )
    build_timeout_s: float = Field(
        default=300.0, gt=0, description="compilation of a Program's native sources, seconds"
    )
    compile_timeout_s: float = Field(
        default=180.0, gt=0, description="load and warm-up of a torch.compile baseline, seconds"
    )
    oracle_timeout_s: float = Field(default=600.0, gt=0, description="one request to the oracle, seconds")
    max_autotune: bool = Field(default=False, description="also measure torch.compile(mode='max-autotune')")
    channels_last: bool = Field(
        default=False, description="also measure eager in the channels-last layout, of tasks with images"
    )
    interleave: bool | None = Field(
        default=None,
        description="screen: keep the stock options running and time them beside every Program, call by call; "
        "False: compare with cached timings; None: on cpu, where other load moves all times together",
    )
    baselines: bool = Field(default=True, description="measure or look up the stock options too")
    memory_bytes: int | None = Field(
        default=None,
        description="address space of a cpu runner, bytes; None: three quarters of what is free, plus 4 GiB",
    )
    disk_bytes: int = Field(default=512 << 20, description="private folder of a runner, bytes")
    processes: int = Field(default=2048, description="processes and threads of a runner")
    log_bytes: int = Field(default=64 << 10, description="kept of what a runner prints: half head, half tail, bytes")
    exhaustive: bool = Field(
        default=False,
        description="let every layer look and collect its findings instead of stopping at the first rejection; "
        "for the matrix of exploits, much slower",
    )
    sanitizer: bool = Field(default=True, description="publish: run the Program under its target's sanitizers too")
    sanitizer_seconds: float = Field(
        default=30.0, gt=0, description="each step of that (a build, loading, a call), on cuda of all tools; seconds"
    )
    static_rules: bool = Field(default=True, description="read the sources, too; off to see what the other layers see")
    defences: bool = Field(
        default=True,
        description="poisoning, changing addresses, late looks, gates of the supervisor's clock; off only to measure "
        "what they cost",
    )
    control_calls: int = Field(
        default=3, ge=1, description="exchanges without a Program, before it is loaded, that its clock is gated by"
    )
    late_share: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of the timed calls whose outputs are read a second time; of others twice that",
    )
    late_seconds: float = Field(default=0.005, ge=0, description="wait before that, seconds")
    reused_share: float = Field(
        default=0.7, ge=0, le=1, description="share of the calls that get new inputs at the same addresses"
    )
    trace_calls: int = Field(default=3, ge=1, description="calls recorded by torch.profiler in a pass of its own")
    trace_program: bool = Field(default=True, description="take the census of kernels after the timed calls")

    def tolerance(self, precision: Precision) -> Tolerance:
        """The error budget of a precision class."""
        return TOLERANCES[precision]
