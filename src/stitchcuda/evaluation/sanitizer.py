"""Looks for what a right answer does not show: accesses out of bounds, races, uninitialised reads. On cpu the native
sources are built once more with AddressSanitizer and UndefinedBehaviorSanitizer, on cuda the runner is started under
compute-sanitizer. In the publish tier only; never while a clock counts.

A finding ends the trial; a sanitizer that is not to be had, or does not come up, is said in the provenance.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stitchcuda.errors import InfrastructureError, ToolMissing
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.build_tools import find_cxx, find_nvcc
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.starting import side_by_side
from stitchcuda.evaluation.telemetry import own_names

if TYPE_CHECKING:
    from stitchcuda.evaluation.session import Session
    from stitchcuda.evaluation.trial import Trial

TOOLS = {"memcheck": 1.0, "racecheck": 1.0, "initcheck": 0.4}
"""Of compute-sanitizer, with the share of the time that each may take. The last one follows every write to the device's
memory, and seldom comes to an end where tensors are large."""

OPTIONS = (
    "detect_leaks=0:abort_on_error=1:handle_segv=1:alloc_dealloc_mismatch=0:detect_odr_violation=0:"
    "verify_asan_link_order=0:protect_shadow_gap=0"
)

_SEEN = re.compile(
    r"ERROR: AddressSanitizer: (?P<asan>[^\n]{0,200})|(?P<where>\S+:\d+:\d+): runtime error: (?P<ubsan>[^\n]{0,200})|"
    r"========= (?P<cuda>(?:Invalid|Error: |Race|Uninitialized|Potential)[^\n]{0,200})"
)
_PLACE = re.compile(r"#\d+ 0x[0-9a-f]+ in (\w+) (?:\S*/)?src/(\S+:\d+)")


def sanitize(trial: Trial) -> str:
    """Run the Program under the sanitizers of its target; in a word what came of it. Refuses the trial for what they
    see."""
    if not trial.settings.sanitizer:
        return "switched off"
    if trial.evaluator.kind == "cpu":
        return _on_cpu(trial)
    return _on_cuda(trial)


NEAR = 400
"""Characters of a compute-sanitizer report in which the kernel that it is about is named."""


def verdict(log: str, own: frozenset[str] = frozenset()) -> str:
    """The first thing that a sanitizer's report complains about, in a line; empty where there is nothing. With ``own``,
    reports about kernels of other names (the framework's, the vendor's) are not the Program's."""
    for seen in _SEEN.finditer(log):
        if seen["cuda"] and own and not own & set(re.findall(r"\w+", log[seen.start() : seen.start() + NEAR])):
            continue
        break
    else:
        return ""
    said = seen["asan"] or seen["ubsan"] or seen["cuda"]
    kind = re.sub(r"\s+(on|at pc|at) .*", "", said) if seen["asan"] else said
    place = _PLACE.search(log, seen.start())
    where = f" in {place[1]}, {place[2]}" if place else f" at {seen['where']}" if seen["where"] else ""
    return f"{kind.strip()}{where}"


def _on_cpu(trial: Trial) -> str:
    manifest = trial.program.manifest
    if manifest is None or not manifest.launchers:
        return "no native sources"
    preload = _runtime("libasan.so")
    if preload is None:
        return "the compiler has no libasan.so"
    evaluator = trial.evaluator
    task = evaluator.task
    timeout = trial.settings.sanitizer_seconds
    built = build(
        trial.program, task.target, cache=evaluator.cache, precision=task.precision, timeout_s=timeout, sanitize=True
    )
    if not built.ok or built.folder is None:
        return f"no build: {built.log.strip().splitlines()[-1][:200] if built.log.strip() else 'no reason given'}"
    environment = {"LD_PRELOAD": str(preload), "ASAN_OPTIONS": OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1"}
    subject = replace(evaluator.subject(), environment=environment)
    return _run(trial, evaluator.session(subject), built.folder, "AddressSanitizer", timeout)


def _on_cuda(trial: Trial) -> str:
    tool = _compute_sanitizer()
    if tool is None:
        return "compute-sanitizer is not on this machine"
    if trial.built is None or trial.built.folder is None:
        return "no build"
    own = own_names(trial.program, trial.built.kernels)
    if not own:
        return "no native kernels"
    folder, filters = trial.built.folder, only(tool, own)
    began = time.monotonic()

    said: dict[str, str] = {}
    most = trial.settings.sanitizer_seconds

    def look(name: str, session: Session) -> None:
        seconds = min(TOOLS[name] * most, began + most - time.monotonic())
        said[name] = _run(trial, session, folder, name, seconds, own) if seconds > 0 else "not reached in time"

    jobs = []
    for name in TOOLS:
        prefix = (str(tool), "--tool", name, "--target-processes", "all", "--error-exitcode", "86", *filters)
        session = trial.evaluator.session(replace(trial.evaluator.subject(), prefix=prefix))
        jobs.append((session, partial(look, name, session)))
    # Most of it is starting Python under the tool. The tools want memory of their own.
    count = len(TOOLS)
    side_by_side(jobs, count if trial.evaluator.room(2 * count, count) else 1)
    return "; ".join(f"{name} {said[name]}" for name in TOOLS)


def only(tool: Path, own: frozenset[str]) -> list[str]:
    """Options that leave the kernels of others alone, which are many and slow to watch; in the words that this version
    of the tool knows."""
    option = next((name for name in ("--kernel-name", "--filter") if name in _options(tool)), None)
    return [word for kernel in sorted(own) for word in (option, f"kns={kernel}")] if option is not None else []


@functools.cache
def _options(tool: Path) -> frozenset[str]:
    try:
        done = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"--[a-z][-a-z]*", done.stdout + done.stderr))


def _run(
    trial: Trial, session: Session, folder: Path, name: str, seconds: float, own: frozenset[str] = frozenset()
) -> str:
    """One session under a sanitizer, one call of each case; no step of it takes longer than ``seconds``."""
    evaluator = trial.evaluator
    # The defences would hide what a sanitizer looks for: it has zones and fillings of its own.
    session.settings = trial.settings.model_copy(update={"defences": False, "load_timeout_s": seconds})
    if session.subject.prefix:
        # The tool talks to what it watches over files and sockets that namespaces would take away.
        session.level = "session"
    trial.opened.append(session)
    problem = ""
    try:
        session.open()
        session.load(folder)
        for case in evaluator.plan["cases"]:
            evaluator.calls.play([session], f"sanitizer-{name}-{case}", case, patience=seconds)
        log = session.live.drain.text()
    except Failure as failure:
        problem, log = failure.message, failure.log
    except InfrastructureError as error:
        return f"did not come up: {str(error)[:200]}"
    finally:
        evaluator.close_all([session])
    found = verdict(log, own)
    if found:
        message = f"{name} finds {found}"
        trial.refuse(Failure("crashed", message, log[-4000:], rule="sanitizer", layer="memory"))
        return "finds something"
    return f"did not finish: {problem[:200]}" if problem else "clean"


def _runtime(name: str) -> Path | None:
    try:
        done = subprocess.run(
            [find_cxx(), f"-print-file-name={name}"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, ToolMissing, subprocess.TimeoutExpired):
        return None
    path = Path(done.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def _compute_sanitizer() -> Path | None:
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return Path(found)
    try:
        beside = Path(find_nvcc()).resolve().parent / "compute-sanitizer"
    except ToolMissing:
        return None
    return beside if beside.exists() else None
