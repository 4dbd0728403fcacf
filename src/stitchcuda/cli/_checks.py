"""What ``stitchcuda doctor`` looks at: each check says what is there, whether that is enough, and the fix if not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "optional"]

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
DISK_BYTES = 2 * 2**30
"""Below this a run with several builds may not fit."""


@dataclass(frozen=True)
class Check:
    """One line of the table. ``missing`` stops the work; ``optional`` costs a feature, which ``fix`` names."""

    name: str
    state: State
    found: str
    fix: str = ""


def run_checks() -> list[Check]:
    """Every check, in the order in which a user would repair things. Takes a few seconds at most; changes nothing."""
    gpu = _gpu()
    return [
        _python(),
        _torch(),
        _cpu(),
        gpu,
        _cxx(),
        _nvcc(needed=gpu.state == "ok"),
        _tool("nsys", "Nsight Systems", "timelines of whole programs", gpu.state == "ok"),
        _tool("ncu", "Nsight Compute", "hardware counters of kernels", gpu.state == "ok"),
        _tool("compute-sanitizer", "compute-sanitizer", "memory checks in the publish tier", gpu.state == "ok"),
        _counters(),
        _namespaces(),
        _confinement(),
        _language_models(),
        _cache(),
    ]


def cache_folder() -> Path:
    """The data folder: $STITCHCUDA_CACHE, else ``stitchcuda`` in the user's cache folder."""
    if own := os.environ.get("STITCHCUDA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stitchcuda"


def _python() -> Check:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("python", "ok", f"{version} ({sys.executable})")
    return Check("python", "missing", version, "use Python 3.11, 3.12 or 3.13")


def _torch() -> Check:
    from stitchcuda.hardware.detect import torch_version

    version, cuda = torch_version()
    if not version:
        return Check("torch", "missing", "not installed", "pip install 'torch>=2.6'")
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if number < (2, 6):
        return Check("torch", "missing", version, "pip install --upgrade 'torch>=2.6'")
    return Check("torch", "ok", f"{version}, {f'CUDA {cuda}' if cuda else 'CPU build'}")


def _cpu() -> Check:
    from stitchcuda.hardware.detect import detect

    device = detect("cpu")
    wide = next((f for f in ("avx512f", "avx2", "sve", "asimd") if f in device.features), "no SIMD flag")
    memory = device.memory_bytes / 2**30
    return Check("cpu", "ok", f"{device.name}, {device.multiprocessors} cores, {memory:.0f} GiB, {wide}")


def _gpu() -> Check:
    from stitchcuda.errors import DeviceError
    from stitchcuda.hardware.detect import detect

    try:
        device = detect("cuda")
    except DeviceError as error:
        return Check("gpu", "optional", str(error), "without one, programs are made for the CPU")
    memory = device.memory_bytes / 2**30
    return Check("gpu", "ok", f"{device.name}, {device.target.arch}, {memory:.0f} GiB, driver {device.driver}")


def _cxx() -> Check:
    return _compiler("g++", "find_cxx", True, "apt install g++; needed for programs on the CPU")


def _nvcc(*, needed: bool) -> Check:
    return _compiler(
        "nvcc", "find_nvcc", needed, "install the CUDA toolkit and set CUDA_HOME; needed for --target cuda"
    )


def _compiler(name: str, finder: str, needed: bool, fix: str) -> Check:
    from stitchcuda.errors import ToolMissing
    from stitchcuda.evaluation import build_tools

    find: Callable[[], str] = getattr(build_tools, finder)
    try:
        path = find()
        lines = build_tools.version_of(path).splitlines()
    except ToolMissing:
        return Check(name, "missing" if needed else "optional", "not found", fix)
    said = next((line for line in lines if "release" in line), lines[0] if lines else "")
    return Check(name, "ok", f"{said.strip()} ({path})")


def _tool(command: str, name: str, use: str, gpu: bool) -> Check:
    found = _find_tool(command)
    if found:
        return Check(command, "ok", found)
    return Check(
        command, "optional", "not found", f"install {name} for {use}" if gpu else f"{use}: on a GPU machine only"
    )


def _find_tool(command: str) -> str | None:
    """Where the rooms that use a tool find it, Nsight Compute's own copy of nsys included."""
    from stitchcuda.errors import ToolMissing
    from stitchcuda.profiling.ncu import find_ncu
    from stitchcuda.profiling.nsys import find_nsys

    with contextlib.suppress(ToolMissing):
        if command == "nsys":
            return str(find_nsys().path)
        if command == "ncu":
            return str(find_ncu())
    return shutil.which(command) or next(
        (str(p) for p in sorted(Path("/usr/local/cuda/bin").glob(command)) if os.access(p, os.X_OK)), None
    )


def _counters() -> Check:
    """Whether ncu may read counters without root: a driver setting of the machine."""
    try:
        text = Path("/proc/driver/nvidia/params").read_text(encoding="utf-8")
    except OSError:
        return Check("gpu counters", "optional", "no NVIDIA driver", "profiles then hold times, no counters")
    if "RmProfilingAdminOnly: 1" in text and os.geteuid() != 0:
        fix = "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or run as root"
        return Check("gpu counters", "optional", "for administrators only", fix)
    return Check("gpu counters", "ok", "readable")


def _namespaces() -> Check:
    """Whether a runner can be cut off from the network and the file system."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return Check("namespaces", "optional", "unshare not found", "install util-linux; programs run less confined")
    try:
        command = [unshare, "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("namespaces", "optional", str(error), "programs run less confined")
    if done.returncode == 0:
        return Check("namespaces", "ok", "user, network, mount and process namespaces work")
    said = (done.stderr.strip().splitlines() or ["refused"])[-1]
    fix = "allow user namespaces (kernel.unprivileged_userns_clone=1); until then programs run less confined"
    return Check("namespaces", "optional", said, fix)


REMEDIES = {
    "own user id": "run as root, or under a user manager, so that programs get a user id of their own",
    "user namespace": "allow user namespaces (kernel.unprivileged_userns_clone=1)",
    "network namespace": "allow user namespaces, or run as root with CAP_SYS_ADMIN",
    "mount namespace": "allow user namespaces, or run as root with CAP_SYS_ADMIN",
    "IPC namespace": "allow user namespaces, or run as root with CAP_SYS_ADMIN",
    "PID namespace": "allow user namespaces, or run as root with CAP_SYS_ADMIN",
    "read-only file system": "Linux 5.12 or newer is needed for recursive read-only mounts",
    "system call filter": "a kernel with CONFIG_SECCOMP_FILTER on x86-64 or aarch64 is needed",
}
"""What to do about each measure of the confinement that a machine refuses."""


def _confinement() -> Check:
    """What of a runner's confinement this machine allows, by starting one."""
    from stitchcuda.evaluation import sandbox

    try:
        missing = sandbox.probe()
    except (OSError, subprocess.SubprocessError) as error:
        missing = [f"confinement ({error})"]
    if not missing:
        return Check("confinement", "ok", "full: programs are kept from network, files, processes and system calls")
    fixes = dict.fromkeys(fix for name in missing for key, fix in REMEDIES.items() if name.startswith(key))
    return Check(
        "confinement",
        "optional",
        f"without {', '.join(missing)}",
        "; ".join(fixes) or "see docs/integrity.md; until then programs run less confined",
    )


def _language_models() -> Check:
    keys = [key for key in KEYS if os.environ.get(key)]
    client = importlib.util.find_spec("pydantic_ai") is not None
    if not client:
        return Check(
            "language models", "optional", "client not installed", "pip install 'stitchcuda[llm]', or use recipes"
        )
    if not keys:
        return Check("language models", "optional", "no key is set", f"set {KEYS[0]} or the like, or use recipes")
    return Check("language models", "ok", f"set: {', '.join(keys)}")


def _cache() -> Check:
    folder = cache_folder()
    present = folder
    while not present.exists():
        present = present.parent
    if not os.access(present, os.W_OK):
        return Check(
            "cache folder", "missing", f"{folder} cannot be written", "set STITCHCUDA_CACHE to a folder of yours"
        )
    free = 0
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(present).free
    if free < DISK_BYTES:
        return Check("cache folder", "missing", f"{folder}, {free / 2**30:.1f} GiB free", "free at least 2 GiB of disk")
    return Check("cache folder", "ok", f"{folder}, {free / 2**30:.0f} GiB free")
