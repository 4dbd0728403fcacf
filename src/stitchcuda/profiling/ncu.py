"""Nsight Compute: where it is, how it is asked for counters, and what its refusals mean.

Clocks are left alone (``--clock-control none``) and only the kernels that were asked for are replayed. Running it is
``profiling.counting``; what the numbers mean is ``profiling.kernel_rules``.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stitchcuda.errors import ToolMissing
from stitchcuda.profiling.metrics import SECTIONS, WANTED
from stitchcuda.profiling.model import KernelCounters

FOLDERS = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda-*/bin",
    "/usr/local/NVIDIA-Nsight-Compute*",
)
"""Where installers put it, for machines that do not have it on PATH."""
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


def known(ncu: Path, metrics: Sequence[str]) -> list[str]:
    """Those of ``metrics`` that this version can count on this machine's GPU.

    All of them where the tool gives no answer: it then says itself what it does not know.
    """
    bases = ",".join(sorted({name.split(".", 1)[0] for name in metrics}))
    words = [str(ncu), "--query-metrics-mode", "suffix", "--metrics", bases, "--query-metrics"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return list(metrics)
    names = set(_CHIP_LINE.findall(done.stdout))
    kept = [name for name in metrics if name in names]
    return kept or list(metrics)


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
    metrics: Sequence[str] = WANTED,
    report: Path | None = None,
) -> list[str]:
    """The command line that profiles ``program`` from its cudaProfilerStart on, with what a kernel's caches hold there.

    ``kernels`` are names as a timeline shows them; none means all. ``launches`` bounds the replayed ones. What is
    asked for is always the same: every rule needs its counters before it is known which of them will decide.
    """
    words = [str(ncu), "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    words += ["--target-processes", "all", "--log-file", str(log)]
    if kernels:
        names = "|".join(sorted({re.escape(function_name(name)) for name in kernels}))
        words += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    if launches is not None:
        words += ["--launch-count", str(launches)]
    for section in SECTIONS:
        words += ["--section", section]
    if metrics:
        words += ["--metrics", ",".join(metrics)]
    words += (
        ["--force-overwrite", "--export", str(report)]
        if report
        else ["--csv", "--page", "raw", "--print-units", "base"]
    )
    return [*words, *program]


def refused_metrics(said: str, asked: Sequence[str]) -> set[str]:
    """Those of the counters that were ``asked`` for that the tool says it does not know, and for which it gave up."""
    return {name for name in _UNKNOWN_METRIC.findall(said) if name in asked}


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


def follows(story: str) -> bool:
    """Whether a story of ``explain`` follows from another reason: nothing was profiled, or the program failed."""
    return story.startswith((_NO_KERNEL, _FAILED))
