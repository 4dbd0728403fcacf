"""Counters of the longest kernels by Nsight Compute: found, started within a time limit, its refusals explained.

Clocks are left alone (``--clock-control none``) and only the kernels that were asked for are replayed. The program to
profile is a command; confining it, and choosing kernels from a timeline, is for the caller. What the numbers mean is
``profiling.kernel_rules``. Never used while a clock counts.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.profiling.metrics import SECTIONS, WANTED, Question
from stitchcuda.profiling.model import KernelCounters
from stitchcuda.profiling.ncu_csv import Parsed, parse
from stitchcuda.profiling.ncu_reports import read_report

FOLDERS = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda-*/bin",
    "/usr/local/NVIDIA-Nsight-Compute*",
)
"""Where installers put it, for machines that do not have it on PATH."""
KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "LANG",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
)
KEPT_PREFIXES = ("CUDA_VISIBLE_", "CUDA_DEVICE_", "NVIDIA_")
"""All of the environment that the tool and the program under it see: a report records it whole."""
RETRIES = 3
"""How often counters that this version or chip does not know are left out and the tool is started again."""
LAUNCHES_PER_KERNEL = 4
"""Launches that are replayed of a kernel, unless told otherwise."""

PERMISSION = (
    "the driver refuses GPU performance counters to this user (ERR_NVGPUCTRPERM). Run as root, or in a container"
    " with --cap-add=SYS_ADMIN; or let every user read them: put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0'"
    " into /etc/modprobe.d/nvidia-profiling.conf, rebuild the initramfs and reboot"
)
BUSY = (
    "another profiler holds the GPU's counters (nsys, DCGM or a second ncu); stop it, or pause DCGM with"
    " 'dcgmi profstats --pause' in older and 'dcgmi profile --pause' in newer versions"
)
_NO_KERNEL = "ncu saw no kernel that it was asked for"
_FAILED = "the profiled program failed"
_CHIP_LINE = re.compile(r"^([a-z0-9_]+__[\w.]+)\s", re.MULTILINE)
_UNKNOWN_METRIC = re.compile(r"(?:Failed to find metric|[Uu]nknown metric|Could not find metric)[^A-Za-z]*([\w.:]+)")
_VERSION = re.compile(r"Version (\d[\d.]*)")


@dataclass
class Collected:
    """What one run of the tool gave. ``left_out``: counters that this version or chip does not know."""

    kernels: list[KernelCounters]
    version: str
    seconds: float
    warnings: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    report: Path | None = None


def find_ncu() -> Path:
    """Path of ncu: $STITCHCUDA_NCU, PATH, the CUDA toolkit or Nsight Compute's own folders. Raises ToolMissing."""
    given = os.environ.get("STITCHCUDA_NCU", "")
    if given:
        if os.access(given, os.X_OK):
            return Path(given)
        raise ToolMissing(f"STITCHCUDA_NCU is {given}, which is no program; give the path of Nsight Compute's ncu")
    if found := shutil.which("ncu"):
        return Path(found)
    for folder in FOLDERS:
        for place in sorted(glob.glob(folder), reverse=True):
            if os.access(f"{place}/ncu", os.X_OK):
                return Path(place) / "ncu"
    raise ToolMissing(
        "Nsight Compute (ncu) is not on this machine (looked on PATH, in /usr/local/cuda and /opt/nvidia); install it"
        " with the CUDA toolkit, or set STITCHCUDA_NCU to its path"
    )


def version_of(ncu: Path) -> str:
    """Version of the tool, such as '2025.3.1.0'; '' where it does not say."""
    try:
        done = subprocess.run([str(ncu), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(done.stdout)
    return match[1] if match else ""


def known(ncu: Path, metrics: Sequence[str], *, chip: str = "") -> list[str]:
    """Those of ``metrics`` that this version can count on this machine's GPU, or on ``chip`` (such as 'gh100').

    All of them where the tool gives no answer: it then says itself what it does not know.
    """
    bases = ",".join(sorted({name.split(".", 1)[0] for name in metrics}))
    words = [str(ncu), "--query-metrics-mode", "suffix", "--metrics", bases, "--query-metrics"]
    try:
        done = subprocess.run(
            [*words, "--chips", chip] if chip else words, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return list(metrics)
    names = set(_CHIP_LINE.findall(done.stdout))
    kept = [name for name in metrics if name in names]
    return kept or list(metrics)


def clean_environment(scratch: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment under the tool: search paths and CUDA settings, no keys; home and scratch in ``scratch``.

    The scratch folder also holds ncu's lock, which is otherwise one file that the first user of a machine owns.
    """
    environment = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)}
    environment.setdefault("LANG", "C.UTF-8")
    # Numbers in another locale have their points and commas the other way round.
    environment |= {"HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8"}
    return environment | dict(extra or {})


def function_name(kernel: str) -> str:
    """The bare function of a demangled name, by which ncu filters: no type, namespace, template or parameters."""
    text = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    depth, kept = 0, []
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">" and depth:
            depth -= 1
        elif character == "(" and not depth:
            break
        elif not depth:
            kept.append(character)
    words = "".join(kept).strip().split()
    return words[-1].rsplit("::", 1)[-1] if words else kernel


def command(
    ncu: Path,
    program: Sequence[str],
    *,
    log: Path,
    kernels: Sequence[str] = (),
    launches: int | None = None,
    questions: Sequence[Question] = (),
    metrics: Sequence[str] = WANTED,
    from_start: bool = True,
    report: Path | None = None,
    warm_caches: bool = True,
) -> list[str]:
    """The command line that profiles ``program``.

    ``kernels`` are names as a timeline shows them; none means all. ``launches`` bounds the replayed ones.
    ``from_start=False`` waits for cudaProfilerStart. ``warm_caches`` leaves the caches as the launch before left them,
    which is what a kernel meets in its program; else they are emptied before each pass.
    """
    words = [str(ncu), "--clock-control", "none", "--cache-control", "none" if warm_caches else "all"]
    words += ["--target-processes", "all", "--log-file", str(log)]
    if not from_start:
        words += ["--profile-from-start", "off"]
    if kernels:
        names = "|".join(sorted({re.escape(function_name(name)) for name in kernels}))
        words += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    if launches is not None:
        words += ["--launch-count", str(launches)]
    for question in dict.fromkeys(("limits", *questions)):
        for section in SECTIONS[question]:
            words += ["--section", section]
    if metrics:
        words += ["--metrics", ",".join(metrics)]
    words += (
        ["--force-overwrite", "--export", str(report)]
        if report
        else ["--csv", "--page", "raw", "--print-units", "base"]
    )
    return [*words, *program]


def collect(
    program: Sequence[str],
    *,
    kernels: Sequence[str] = (),
    launches: int | None = None,
    timeout_s: float = 120.0,
    questions: Sequence[Question] = (),
    metrics: Sequence[str] = WANTED,
    from_start: bool = True,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    report: Path | None = None,
    ncu: Path | None = None,
    warm_caches: bool = True,
) -> Collected:
    """Run ``program`` under ncu and read its counters, within ``timeout_s`` seconds in all.

    Counters that this version or chip does not know are left out, and said so. With ``report`` the .ncu-rep stays
    there. Raises ToolMissing without ncu, ProfilerError when the driver refuses, the program fails, no kernel
    matched or time was up.
    """
    tool = ncu or find_ncu()
    if launches is None and kernels:
        launches = LAUNCHES_PER_KERNEL * len(set(kernels))
    start, version = time.monotonic(), version_of(tool)
    wanted = known(tool, metrics) if metrics else []
    with tempfile.TemporaryDirectory(prefix="ncu-") as folder:
        scratch = Path(folder)
        env = dict(environment) if environment is not None else clean_environment(scratch)
        for turn in range(RETRIES):
            log = scratch / "ncu.log"
            log.unlink(missing_ok=True)
            words = command(
                tool,
                program,
                log=log,
                kernels=kernels,
                launches=launches,
                questions=questions if wanted else tuple(SECTIONS),
                metrics=wanted,
                from_start=from_start,
                report=report,
                warm_caches=warm_caches,
            )
            said = _run(words, cwd, env, timeout_s - (time.monotonic() - start))
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            unknown = {name for name in _UNKNOWN_METRIC.findall(text + said) if name in wanted}
            if not unknown:
                break
            # The last turn asks for the tool's own sections alone, which it knows by definition.
            wanted = [name for name in wanted if name not in unknown] if turn < RETRIES - 2 else []
        source = f"ncu {version}".strip()
        parsed = parse(text, source=source)
        if report is not None and not parsed.errors:
            parsed.kernels = read_report(_with_suffix(report), tool, source=source)
    _refuse(parsed, said, kernels)
    found = _with_suffix(report) if report is not None else None
    left_out = [name for name in metrics if name not in wanted]
    return Collected(parsed.kernels, version, time.monotonic() - start, parsed.warnings, left_out, found)


def top(
    program: Sequence[str],
    kernels: Sequence[str],
    *,
    timeout_s: float = 180.0,
    launches_each: int = 2,
    **options: Any,
) -> Collected:
    """The longest launch of each of ``kernels`` (names of a timeline, longest first), within ``timeout_s`` in all.

    All are asked for at once. One that is launched often may use up the bound on launches: those that were not seen
    are asked for again one by one while time is left. ``options`` are those of ``collect``.
    """
    start, later = time.monotonic(), {key: value for key, value in options.items() if key != "report"}
    names = list(dict.fromkeys(function_name(name) for name in kernels))
    got = collect(program, kernels=names, launches=launches_each * len(names), timeout_s=timeout_s, **options)
    for name in names:
        left = timeout_s - (time.monotonic() - start)
        if any(function_name(kernel.name) == name for kernel in got.kernels) or left < got.seconds:
            continue
        try:
            again = collect(program, kernels=[name], launches=launches_each, timeout_s=left, **later)
        except ProfilerError as error:
            got.warnings.append(f"{name}: {error}")
            continue
        got.kernels += again.kernels
    got.kernels = longest(got.kernels, len(names))
    got.seconds = time.monotonic() - start
    return got


def explain(text: str) -> str | None:
    """What a message of ncu means and what to do about it; None where it tells no known story."""
    if "ERR_NVGPUCTRPERM" in text:
        return PERMISSION
    if "driver resource was unavailable" in text or "resources are currently in use" in text.lower():
        return BUSY
    if "connect to the CUDA driver" in text:
        return "ncu cannot reach the CUDA driver: this machine has no usable GPU, or a stub libcuda.so comes first"
    if "No kernels were profiled" in text:
        return f"{_NO_KERNEL}: the program launched none, or only under other names"
    if "returned an error code" in text or "application exited" in text.lower():
        return f"{_FAILED}; run it without the profiler first"
    return None


def longest(kernels: Sequence[KernelCounters], limit: int) -> list[KernelCounters]:
    """The longest launch of each kernel, the longest kernels first, at most ``limit``."""
    best: dict[str, KernelCounters] = {}
    for kernel in kernels:
        if kernel.name not in best or kernel.seconds > best[kernel.name].seconds:
            best[kernel.name] = kernel
    return sorted(best.values(), key=lambda kernel: -kernel.seconds)[:limit]


def _with_suffix(report: Path) -> Path:
    return report if report.suffix == ".ncu-rep" else report.with_name(report.name + ".ncu-rep")


def _run(words: Sequence[str], cwd: Path | None, environment: Mapping[str, str], timeout_s: float) -> str:
    """Run in a process group of its own, killed whole at the limit; the last of what was printed."""
    if timeout_s <= 0:
        raise ProfilerError("no time was left to start ncu again; allow more seconds or fewer kernels")
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolMissing(f"{words[0]} cannot be started: {error}") from None
    try:
        said, _ = process.communicate(timeout=timeout_s)
        return said[-4000:]
    except subprocess.TimeoutExpired:
        raise ProfilerError(
            f"ncu was stopped after {timeout_s:.0f} s; ask for fewer kernels or launches, or allow more time"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _refuse(parsed: Parsed, said: str, kernels: Sequence[str]) -> None:
    """Raise with the reason when nothing was measured."""
    if parsed.kernels:
        return
    messages = [*parsed.errors, *parsed.warnings, *said.splitlines()[-3:]]
    stories = [story for text in messages if (story := explain(text))]
    if stories:
        # That nothing was profiled, or that the program failed, is what follows from the other reasons.
        raise ProfilerError(min(stories, key=follows))
    asked = f" of {', '.join(function_name(name) for name in kernels[:3])}" if kernels else ""
    raise ProfilerError(f"ncu measured no launch{asked}: {(messages or ['it printed nothing'])[0][:300]}")


def follows(story: str) -> bool:
    """Whether a story of ``explain`` follows from another reason: nothing was profiled, or the program failed."""
    return story.startswith((_NO_KERNEL, _FAILED))
