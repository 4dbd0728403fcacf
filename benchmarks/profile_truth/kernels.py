"""Counters of the cases' kernels: the driver under Nsight Compute, with no key in its environment."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import printed

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.profiling import ncu
from stitchcuda.profiling.metrics import WANTED
from stitchcuda.profiling.model import KernelCounters
from stitchcuda.profiling.ncu_csv import Parsed, parse

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


@dataclass
class Collected:
    """What one run of the tool gave. ``left_out``: counters that this version or chip does not know."""

    kernels: list[KernelCounters]
    version: str
    left_out: list[str] = field(default_factory=list)


def clean_environment(scratch: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment under a tool: search paths and CUDA settings, no keys; home and scratch in ``scratch``.

    The scratch folder also holds ncu's lock, which is otherwise one file that the first user of a machine owns.
    """
    environment = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)}
    environment.setdefault("LANG", "C.UTF-8")
    # Numbers in another locale have their points and commas the other way round.
    environment |= {"HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8"}
    return environment | dict(extra or {})


def collect(program: Sequence[str], *, timeout_s: float) -> Collected:
    """Run ``program`` under ncu from its cudaProfilerStart on and read the counters of all its kernels.

    Raises ToolMissing without ncu, ProfilerError when the driver refuses, the program fails, no kernel was seen or
    time was up.
    """
    tool = ncu.find_ncu()
    version = ncu.version_of(tool)
    until, metrics = time.monotonic() + timeout_s, ncu.known(tool, WANTED)
    with tempfile.TemporaryDirectory(prefix="ncu-") as folder:
        log = Path(folder) / "ncu.log"
        words = ncu.command(tool, program, log=log, metrics=metrics)
        said = _run(words, clean_environment(Path(folder)), until - time.monotonic())
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    parsed = parse(text, source=f"ncu {version}".strip())
    _refuse(parsed, said)
    return Collected(parsed.kernels, version, [name for name in WANTED if name not in metrics])


def _run(words: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    """The last of what was printed."""
    try:
        return printed(words, environment, max(timeout_s, 1.0))[-4000:]
    except OSError as error:
        raise ToolMissing(f"{words[0]} cannot be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise ProfilerError(f"ncu was stopped after {timeout_s:.0f} s") from None


def _refuse(parsed: Parsed, said: str) -> None:
    """Raise with the reason when nothing was measured."""
    if parsed.kernels:
        return
    messages = [*parsed.errors, *parsed.warnings, *said.splitlines()[-3:]]
    stories = [story for text in messages if (story := ncu.explain(text))]
    if stories:
        # That nothing was profiled, or that the program failed, is what follows from the other reasons.
        raise ProfilerError(min(stories, key=ncu.follows))
    raise ProfilerError(f"ncu measured no launch: {(messages or ['it printed nothing'])[0][:300]}")
