"""Where time goes: one Profile, whatever tool measured it."""

from stitchcuda.profiling.model import (
    Bottleneck,
    Cause,
    KernelCounters,
    KernelDiagnosis,
    KernelTime,
    Profile,
    Timeline,
)

__all__ = ["Bottleneck", "Cause", "KernelCounters", "KernelDiagnosis", "KernelTime", "Profile", "Timeline"]
