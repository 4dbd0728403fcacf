"""Where time goes: one Profile, whatever tool measured it."""

from stitchcuda.profiling.model import Bottleneck, KernelTime, Profile, Timeline

__all__ = ["Bottleneck", "KernelTime", "Profile", "Timeline"]
