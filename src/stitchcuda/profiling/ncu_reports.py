"""Counters out of a kept report (.ncu-rep): by the ``ncu_report`` module where there is one, else by the tool itself.

Making a report is ``profiling.ncu``.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.model import KernelCounters
from stitchcuda.profiling.ncu_csv import base, parse


def read_report(path: Path, ncu: Path, *, source: str = "ncu") -> list[KernelCounters]:
    """Counters from a .ncu-rep: by the ``ncu_report`` module (PyPI or the tool's own), else by ``ncu --import --csv``.

    Raises ProfilerError when neither can read it.
    """
    if not path.is_file():
        raise ProfilerError(f"{path} is not there; ncu wrote no report")
    module = _report_module(ncu)
    if module is not None:
        try:
            return _from_module(module, path, source)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            pass  # a report newer than the module: the tool that wrote it can read it
    words = [str(ncu), "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfilerError(f"{path} could not be read by {ncu}: {error}") from None
    parsed = parse(done.stdout, source=source)
    if not parsed.kernels:
        raise ProfilerError(f"{ncu} reads no kernel from {path}: {(parsed.errors or [done.stderr.strip()[-200:]])[0]}")
    return parsed.kernels


def _report_module(ncu: Path) -> Any:
    """The ``ncu_report`` module, installed or beside the tool; None where there is none that loads."""
    root = Path(os.path.realpath(ncu)).parent
    folders = [str(place / "extras" / "python") for place in (root, *root.parents[:3])]
    for place in [*(f for f in folders if os.path.isdir(f)), None]:
        try:
            if place is not None:
                sys.path.insert(0, place)
            return importlib.import_module("ncu_report")
        except (ImportError, OSError):
            continue
        finally:
            if place is not None:
                sys.path.remove(place)
    return None


def _from_module(module: Any, path: Path, source: str) -> list[KernelCounters]:
    kernels = []
    context = module.load_report(str(path))
    for number in range(context.num_ranges()):
        part = context.range_by_idx(number)
        for place in range(part.num_actions()):
            action = part.action_by_idx(place)
            metrics, missing = {}, []
            for name in action.metric_names():
                metric = action.metric_by_name(name)
                value = metric.value() if metric is not None else None
                if isinstance(value, int | float) and value == value and abs(value) != float("inf"):
                    metrics[name] = base(float(value), metric.unit() or "")
                elif value is None or isinstance(value, float):
                    missing.append(name)
            kernels.append(
                KernelCounters(
                    name=_demangled(module, action),
                    grid=_dimensions(metrics, "grid"),
                    block=_dimensions(metrics, "block"),
                    metrics=metrics,
                    missing=missing,
                    source=source,
                )
            )
    return kernels


def _demangled(module: Any, action: Any) -> str:
    kind = getattr(action, "NameBase_DEMANGLED", None) or getattr(module.IAction, "NameBase_DEMANGLED", None)
    return str(action.name(kind)) if kind is not None else str(action.name())


def _dimensions(metrics: Mapping[str, float], what: str) -> tuple[int, int, int]:
    x, y, z = (int(metrics.get(f"launch__{what}_dim_{axis}", 1)) for axis in "xyz")
    return x, y, z
