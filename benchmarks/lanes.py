"""Lanes of the measurement runner: a GPU and a share of the cores each, so that items do not disturb each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provenance import ROOT


@dataclass(frozen=True)
class Lane:
    """Where one item at a time runs."""

    gpu: int | None
    """CUDA's device number; None: as the environment says."""
    cores: tuple[int, ...]
    """Cores that its processes are bound to; empty: all."""

    def environment(self) -> dict[str, str]:
        """The child's environment: the checkout's sources first, and only this lane's GPU."""
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpu)
        return environment

    def pinned(self, command: Sequence[str]) -> list[str]:
        """``command`` bound to the lane's cores (by taskset, where it is installed)."""
        if not self.cores or shutil.which("taskset") is None:
            return list(command)
        return ["taskset", "--cpu-list", ",".join(map(str, self.cores)), *command]


def gpu_count() -> int:
    """GPUs that the driver lists."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def lanes_of(count: int, *, exclusive: bool) -> list[Lane]:
    """``count`` lanes over the GPUs and cores of the machine; one lane has all of it.

    ``exclusive`` lanes measure time: more of them than GPUs raises SystemExit.
    """
    if count <= 1:
        return [Lane(None, ())]
    gpus = gpu_count()
    if exclusive and count > gpus:
        raise SystemExit(f"{count} lanes want {count} GPUs and this machine has {gpus}: times would disturb each other")
    shares = shares_of_cores(count) if exclusive else [()] * count
    return [Lane(index % gpus if gpus > 1 else None, cores) for index, cores in enumerate(shares)]


def shares_of_cores(count: int) -> list[tuple[int, ...]]:
    """This process's cores in ``count`` equal shares, of one core at least, which several then have."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(len(cores) // count, 1)
    return [tuple(cores[at * share % len(cores) :][:share]) for at in range(count)]


def _cache() -> Path:
    """Where ``stitchcuda`` keeps things between calls."""
    given = os.environ.get("STITCHCUDA_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stitchcuda"


def timings_cached() -> dict[Path, bytes]:
    """What was timed and is cached now: the stock options of tasks, and the device's ceilings."""
    found = [path for folder in ("baselines", "ceilings") for path in (_cache() / folder).glob("*.json")]
    return {path: path.read_bytes() for path in found}


def forget_timings(before: Mapping[Path, bytes]) -> None:
    """Put the cached timings back to ``before``: what was timed on a crowded machine must not be compared with."""
    for path, content in timings_cached().items():
        if path not in before:
            path.unlink()
        elif content != before[path]:
            path.write_bytes(before[path])
