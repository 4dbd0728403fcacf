"""The Profile that agents decide by: made of the trace that an evaluation takes anyway, or, where counters are wanted,
of a recording of its own by Nsight Systems with counters by Nsight Compute.
"""

from __future__ import annotations

from pathlib import Path

from stitchcuda.errors import InfrastructureError, ProfilerError, ToolMissing
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.profiling.capture import Subject
from stitchcuda.profiling.measure import measure
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.profiler import profile
from stitchcuda.program.model import Program


def look(evaluator: Evaluator, program: Program | None, *, cache: Path, counters: int = 0) -> Profile:
    """The Profile of ``program``, or of the task's reference where that is None.

    ``counters``: of so many of the longest kernels counters are read (cpu: any number but 0 has perf count); 0 makes
    the Profile of torch.profiler's trace. Where the tools cannot record, the trace does, and a remark says why. The
    device is held meanwhile: no clock counts, here or in another process. Raises InfrastructureError when the subject
    does not run.
    """
    if not counters:
        return _traced(evaluator, program)
    try:
        return _recorded(evaluator, program, cache, counters)
    except (ToolMissing, ProfilerError) as error:
        found = _traced(evaluator, program)
        return found.model_copy(update={"remarks": [*found.remarks, f"a trace only: {error}"]})


def _traced(evaluator: Evaluator, program: Program | None) -> Profile:
    return profile(
        evaluator.trace(program),
        subject="reference" if program is None else "program",
        device=evaluator.device,
        facts=evaluator.facts,
        precision=evaluator.task.precision,
        flops=evaluator.plan["work"]["flops"],
    )


def _recorded(evaluator: Evaluator, program: Program | None, cache: Path, counters: int) -> Profile:
    task, folder, kernels = evaluator.task, None, tuple[str, ...]()
    if program is not None:
        built = build(program, task.target, cache=cache, precision=task.precision)
        if not built.ok or built.folder is None:
            raise InfrastructureError(f"the program does not build: {built.log[:500]}")
        folder, kernels = built.folder, built.kernels
    flops = evaluator.plan["work"]["flops"]
    with evaluator.gate.hold("clock"):
        taken = measure(
            Subject(task, evaluator.facts, folder),
            evaluator.device,
            program=program,
            kernels=kernels,
            counters=counters,
            flops=flops,
        )
    return taken.profile
