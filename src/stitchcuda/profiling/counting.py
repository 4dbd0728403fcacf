"""Counters of a subject's longest kernels: Nsight Compute around the same process that ``capture`` records, confined.

How the tool is asked, and what it says, is ``profiling.ncu``; what the counters mean is ``profiling.kernel_rules``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling import ncu
from stitchcuda.profiling.capture import REPORT, Subject, driver_command, failure_of, readable_for
from stitchcuda.profiling.confinement import WORK, Confined, run_confined
from stitchcuda.profiling.metrics import WANTED
from stitchcuda.profiling.model import KernelCounters
from stitchcuda.profiling.ncu_csv import parse
from stitchcuda.profiling.ncu_reports import read_report

LEVEL = "full"
"""The driver gives counters to root alone on most machines: the user id stays, the other walls too. CUDA as root does
not start on a /proc that is read-only, so that it needs one of its own."""
LAUNCHES_EACH = 2
"""Launches that are replayed of each kernel."""
RETRIES = 2
"""How often counters that the tool does not know are left out and it is started again; then it is asked for none by
name."""
LEAST_SECONDS = 30.0
"""Nothing is started again with less time left than this."""


@dataclass
class Counted:
    """Counters of the longest kernels, and the report they are from where it was asked for."""

    kernels: list[KernelCounters]
    remarks: list[str] = field(default_factory=list)
    report: bytes | None = None


def count(subject: Subject, kernels: Sequence[str], *, keep_report: bool = False, timeout_s: float = 150.0) -> Counted:
    """Counters of kernels by name, longest first, from calls that are replayed, within ``timeout_s`` in all.

    A kernel that is launched often may use up the bound on launches: the others are asked for once more. Raises
    ToolMissing without the tool, ProfilerError when it counted nothing.
    """
    tool = ncu.find_ncu()
    metrics, turns = _known_metrics(tool), 0
    until = time.monotonic() + timeout_s
    found: list[KernelCounters] = []
    left, report, done = list(dict.fromkeys(kernels)), None, Confined({})
    while left and (not turns or until - time.monotonic() > LEAST_SECONDS):
        done = _run(subject, tool, left, metrics, keep_report and report is None, until - time.monotonic())
        turns += 1
        refused = ncu.refused_metrics(_said(done), metrics)
        if refused:
            metrics = [name for name in metrics if name not in refused] if turns <= RETRIES else []
            continue
        report = report or done.files.get(f"{REPORT}.ncu-rep")
        new = _counters(tool, done)
        found += new
        seen = {ncu.function_name(kernel.name) for kernel in new}
        waiting = [name for name in left if ncu.function_name(name) not in seen]
        if not new or len(waiting) == len(left):
            break
        left = waiting
    if not found:
        raise ProfilerError(_why(done))
    left_out = [name for name in WANTED if name not in metrics]
    told = f"{', '.join(left_out[:3])}{f' and {len(left_out) - 3} more' if len(left_out) > 3 else ''}"
    remarks = [f"this version of ncu does not know {told}"] if left_out else []
    return Counted(ncu.longest(found, len(kernels)), remarks, report)


def _said(done: Confined) -> str:
    """What the tool wrote to its log, and what was printed."""
    return done.files.get("ncu.log", b"").decode("utf-8", "replace") + "\n" + done.printed


def _why(done: Confined) -> str:
    """Why nothing was counted: the driver's refusal first, then the subject's own error, then what ncu says."""
    story = ncu.explain(done.files.get("ncu.log", b"").decode("utf-8", "replace")) or ncu.explain(done.printed)
    if story is not None and not ncu.follows(story):
        return story
    said = [line for line in _said(done).splitlines() if line.startswith("==ERROR==")]
    printed = [line for line in done.printed.splitlines() if line.strip() and not line.startswith("==")]
    last = f" (it printed last: {printed[-1][:200]})" if printed else ""
    return failure_of(done, (story or (said or ["ncu measured no launch of these"])[0][:300]) + last)


def _run(
    subject: Subject, tool: Path, kernels: list[str], metrics: list[str], keep_report: bool, seconds: float
) -> Confined:
    words = ncu.command(
        tool,
        driver_command(),
        log=Path(f"{WORK}/ncu.log"),
        kernels=kernels,
        launches=LAUNCHES_EACH * len(kernels),
        metrics=metrics,
        report=Path(f"{WORK}/{REPORT}") if keep_report else None,
    )
    return run_confined(
        [words],
        subject.files("counters", ranges=False),
        ["ncu.log", f"{REPORT}.ncu-rep", "result.json"],
        level=LEVEL,
        timeout_s=max(seconds, 1.0),
        readable=[_home(tool), *readable_for(subject)],
        counters=True,
    )


@lru_cache(maxsize=4)
def _known_metrics(tool: Path) -> list[str]:
    """Asking takes seconds."""
    return ncu.known(tool, WANTED)


def _home(tool: Path) -> str:
    """The folder of Nsight Compute with its sections, wherever inside it the program lies."""
    real = tool.resolve()
    return str(next((p for p in reversed(real.parents) if p.name.startswith("nsight-compute")), real.parent))


def _counters(tool: Path, done: Confined) -> list[KernelCounters]:
    source = f"ncu {ncu.version_of(tool)}".strip()
    data = done.files.get(f"{REPORT}.ncu-rep")
    if data is None:
        return parse(done.files.get("ncu.log", b"").decode("utf-8", "replace"), source=source).kernels
    with tempfile.TemporaryDirectory(prefix="stitchcuda-ncu-") as folder:
        path = Path(folder) / f"{REPORT}.ncu-rep"
        path.write_bytes(data)
        return read_report(path, tool, source=source)
