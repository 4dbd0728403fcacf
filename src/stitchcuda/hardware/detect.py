"""What the target is: facts of the GPU or CPU, found without importing torch and without a CUDA context here."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stitchcuda.errors import DeviceError
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Target

Kind = Literal["auto", "cuda", "cpu"]

X86_FEATURES = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni")
FEATURES = (*X86_FEATURES, "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile", "amx_int8", "asimd", "sve", "bf16")
"""CPU flags worth telling to whoever writes code; the rest is noise."""


def detect(kind: Kind, environment: Mapping[str, str] | None = None) -> Device:
    """The device that ``kind`` asks for; ``auto`` is the first usable GPU, else the CPU.

    A GPU is usable when the driver answers and the installed torch is a CUDA build. ``environment`` is what the driver
    finds besides this process's variables, such as which GPUs are visible. Raises DeviceError, for ``cuda`` only, with
    what is missing.
    """
    if kind == "cpu":
        return _cpu()
    try:
        return _cuda(environment or {})
    except DeviceError:
        if kind == "cuda":
            raise
        return _cpu()


def torch_version() -> tuple[str, str]:
    """Version of the installed torch and the CUDA version it was built for ('' for a CPU build), unimported.

    Both are '' when torch is not installed.
    """
    specification = importlib.util.find_spec("torch")
    if specification is None or specification.origin is None:
        return "", ""
    try:
        text = Path(specification.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "", ""
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]+)? = '([^']+)'", text, re.MULTILINE)
    return version[1] if version else "", cuda[1] if cuda else ""


def usable_cores() -> int:
    """CPU cores this process may run on, as affinity and the cgroup's quota allow."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def _cuda(environment: Mapping[str, str]) -> Device:
    version, cuda = torch_version()
    if version and not cuda:
        raise DeviceError(f"torch {version} is a CPU build; install a CUDA build of torch, or use --target cpu")
    facts = query_driver(environment)
    return Device(
        target=Target(kind="cuda", arch=f"sm_{facts['major']}{facts['minor']}"),
        name=facts["name"],
        multiprocessors=facts["multiprocessors"],
        memory_bytes=facts["memory"],
        cache_bytes=facts["l2"],
        shared_memory_per_block=facts["shared"],
        driver=_driver_version(),
        runtime=cuda,
    )


def query_driver(environment: Mapping[str, str]) -> dict[str, Any]:
    """Facts of the first visible GPU from the CUDA driver, asked in a process of its own with these variables besides.

    A process that has initialised the driver cannot fork safely, and a wedged driver would hang it.
    """
    command = [sys.executable, "-m", "stitchcuda.hardware.query_driver"]
    try:
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeviceError("the CUDA driver does not answer within 60 s; look at nvidia-smi") from None
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"asking the CUDA driver failed: {last}") from None
    if "error" in facts:
        raise DeviceError(f"{facts['error']}; use --target cpu on a machine without a GPU")
    return facts


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        if match := re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text):
            return match[1]
    except OSError:
        pass
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _cpu() -> Device:
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
        fields = {name.strip(): value.strip() for name, value in pairs}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Device(
        target=Target(kind="cpu", arch="native"),
        name=fields.get("model name") or os.uname().machine,
        multiprocessors=usable_cores(),
        memory_bytes=_memory(),
        cache_bytes=_last_level_cache(),
        features=[feature for feature in FEATURES if feature in flags],
    )


def _memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0; 0 where the kernel does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text().strip()
            factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KMG")) * factor)
    return max(sizes)
