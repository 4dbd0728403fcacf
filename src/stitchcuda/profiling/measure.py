"""One profile from start to end: record, count the longest kernels, label, and keep what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.errors import ProfilerError, StitchError, ToolMissing
from stitchcuda.evaluation.telemetry import own_names
from stitchcuda.hardware.model import Device
from stitchcuda.profiling import cpu, loops, sass
from stitchcuda.profiling.capture import TIMEOUT_S, Source, Subject, record
from stitchcuda.profiling.counting import Counted, count
from stitchcuda.profiling.leaks import leaks
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.profiler import from_recording, least_bytes
from stitchcuda.profiling.recording import Recording
from stitchcuda.profiling.rules import Work
from stitchcuda.profiling.sass import KernelSass
from stitchcuda.program.model import Program

COUNTED_SHARE = 0.02
"""Kernels with less of the device's time are not worth replaying."""


@dataclass
class Profiled:
    """A Profile with what it was made from. ``files`` are those that the tools wrote, by name."""

    profile: Profile
    recording: Recording
    work: Work
    files: dict[str, bytes] = field(default_factory=dict)


def measure(
    subject: Subject,
    device: Device,
    *,
    program: Program | None = None,
    kernels: Sequence[str] = (),
    source: Source = "auto",
    counters: int = 0,
    flops: float = 0.0,
    keep: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Profiled:
    """Profile a reference, or ``program`` in its built form, whose library has ``kernels`` (their symbols).

    ``counters``: so many of the longest kernels are also replayed under Nsight Compute. On a cpu target any number but
    0 has perf count whole calls, and the compiler report the loops of ``program``. Where that cannot be, a remark says
    why. ``flops`` of a call, where they are known. ``timeout_s`` bounds each recording. Raises ToolMissing or
    ProfilerError as ``capture.record``.
    """
    taken = record(subject, source, timeout_s=timeout_s)
    own = own_names(program, kernels) if program is not None else frozenset[str]()
    facts, precision = subject.facts or taken.facts, subject.task.precision
    which = "program" if program is not None else "reference"
    counted, code = Counted([]), list[KernelSass]()
    files = dict(taken.kept) if keep else {}

    def summary(counted: Counted) -> Profile:
        return from_recording(
            taken,
            subject="program" if which == "program" else "reference",
            device=device,
            facts=facts,
            precision=precision,
            flops=flops,
            own=own,
            counters=counted.kernels,
            sass=code,
        )

    profile = summary(counted)
    if counters and device.target.kind == "cuda":
        wanted = [k.name for k in profile.kernels if k.origin != "copy" and k.share >= COUNTED_SHARE]
        try:
            if wanted:
                counted = count(subject, list(dict.fromkeys(wanted))[:counters], keep_report=keep)
                taken.remarks += counted.remarks
                code = _machine_code(subject.folder, taken.remarks)
                if counted.report is not None:
                    files["rep.ncu-rep"] = counted.report
            else:
                taken.remarks.append(f"without counters: no kernel takes {COUNTED_SHARE:.0%} of the device's time")
        except (ToolMissing, ProfilerError) as error:
            taken.remarks.append(f"without counters: {error}")
        profile = summary(counted)
    elif counters:
        profile = of_the_processor(profile, subject, device, program, timeout_s=timeout_s)
    if taken.confinement != "full":
        taken.remarks.append(f"confined {taken.confinement}")
        profile = profile.model_copy(update={"remarks": [*profile.remarks, taken.remarks[-1]]})
    least = least_bytes(facts, precision) if facts is not None else 0.0
    work = Work(least, flops or taken.flops, precision)
    return Profiled(profile, taken.recording, work, files)


def of_the_processor(
    profile: Profile, subject: Subject, device: Device, program: Program | None, *, timeout_s: float = TIMEOUT_S
) -> Profile:
    """The Profile with perf's counters and the compiler's report on loops; why one is not there is a remark.

    A label by counters stands for the call only where its operators tell none.
    """
    found: dict[str, object] = {}
    remarks = list(profile.remarks)
    try:
        processor = cpu.count(subject, device, timeout_s=timeout_s)
        found["processor"] = processor
        if profile.bottleneck == "unknown" != processor.bottleneck:
            found |= {"bottleneck": processor.bottleneck, "evidence": processor.evidence}
    except (ToolMissing, ProfilerError) as error:
        remarks.append(f"without counters: {error}")
    if program is not None:
        try:
            found["loops"] = loops.report(program, subject.task.target)
        except (ToolMissing, ProfilerError) as error:
            remarks.append(f"without the compiler's report: {error}")
    return profile.model_copy(update=found | {"remarks": remarks})


def _machine_code(folder: Path | None, remarks: list[str]) -> list[KernelSass]:
    """The machine code of a built Program's own libraries; what cannot be read is remarked."""
    found: list[KernelSass] = []
    for library in sorted(folder.glob("*.so")) if folder is not None else ():
        try:
            found += sass.read(library)
        except (ToolMissing, ProfilerError) as error:
            remarks.append(f"machine code not read: {error}")
    return found


def keep_files(files: dict[str, bytes], folder: Path) -> list[Path]:
    """Write what a profile gave, by name, unless a secret of this environment is in it.

    Returns the paths. Raises StitchError naming the secret (never its value); nothing is written then.
    """
    for name, data in files.items():
        if found := leaks(data):
            raise StitchError(
                f"{name} holds {', '.join(found)} and was not kept; take that out of the task or program (its source"
                " or a file that it reads) and profile again"
            )
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, data in files.items():
        path = folder / name
        path.write_bytes(data)
        paths.append(path)
    return paths
