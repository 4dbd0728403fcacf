"""StitchCUDA's Coder skills for verifiers: rows of a data set as tasks, one reply each, scored by a reward server."""

from stitchcuda_verifiers.harness import CoderHarness
from stitchcuda_verifiers.taskset import CoderTaskset

__all__ = ["CoderHarness", "CoderTaskset"]
