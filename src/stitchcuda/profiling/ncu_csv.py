"""What ``ncu --csv`` prints, as counters: both pages, their units, versions' differences, values that are no numbers.

Pure functions of text. Starting the tool is ``profiling.ncu``.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.model import KernelCounters

DETAILS: dict[tuple[str, str], str] = {
    ("GPU Speed Of Light Throughput", "Duration"): "gpu__time_duration.sum",
    ("GPU Speed Of Light Throughput", "Elapsed Cycles"): "sm__cycles_elapsed.max",
    ("GPU Speed Of Light Throughput", "SM Active Cycles"): "sm__cycles_active.avg",
    ("GPU Speed Of Light Throughput", "Memory Throughput"): (
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    ),
    ("GPU Speed Of Light Throughput", "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput"): (
        "l1tex__throughput.avg.pct_of_peak_sustained_active"
    ),
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Launch Statistics", "Block Size"): "launch__block_size",
    ("Launch Statistics", "Grid Size"): "launch__grid_size",
    ("Launch Statistics", "Registers Per Thread"): "launch__registers_per_thread",
    ("Launch Statistics", "Dynamic Shared Memory Per Block"): "launch__shared_mem_per_block_dynamic",
    ("Launch Statistics", "Static Shared Memory Per Block"): "launch__shared_mem_per_block_static",
    ("Launch Statistics", "# SMs"): "launch__sm_count",
    ("Launch Statistics", "Waves Per SM"): "launch__waves_per_multiprocessor",
    ("Occupancy", "Block Limit Registers"): "launch__occupancy_limit_registers",
    ("Occupancy", "Block Limit Shared Mem"): "launch__occupancy_limit_shared_mem",
    ("Occupancy", "Block Limit Warps"): "launch__occupancy_limit_warps",
    ("Occupancy", "Block Limit SM"): "launch__occupancy_limit_blocks",
    ("Occupancy", "Theoretical Occupancy"): "sm__maximum_warps_per_active_cycle_pct",
    ("Occupancy", "Achieved Occupancy"): "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""The details page names its numbers for people: (section, name) to the counter that the raw page calls it."""

PREFIX = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {
    "nsecond": 1e-9,
    "usecond": 1e-6,
    "msecond": 1e-3,
    "second": 1.0,
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
}
_SCALED = re.compile(r"^(?P<prefix>[KMGT])(?P<base>byte|hz|inst|cycle|sector|request)\b", re.IGNORECASE)
_MESSAGE = re.compile(r"^==(?P<kind>ERROR|WARNING|PROF)== (?P<text>.*)$")
_TUPLE = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
_RANGES = "Domain:"
"""In the names of the columns that list a launch's NVTX ranges."""
_NOT_METRICS = frozenset(
    (
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"),
        *("Grid Size", "Device", "CC", "Kernel Time"),
    )
)


NEEDED = ("Kernel Name", "Grid Size", "Block Size")
NEEDED_DETAILS = ("Section Name", "Metric Unit", "Metric Value")
"""Columns of every version: of both pages, and of the details page."""


@dataclass
class Parsed:
    """Launches in the order of the output, and what the tool said besides."""

    kernels: list[KernelCounters] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def parse(text: str, *, source: str = "ncu") -> Parsed:
    """Counters of each launch from the output of ``ncu --csv``, with ``--page raw`` or the details page.

    Lines of the profiled program and of the tool itself may stand between. Raises ProfilerError where rows end
    within a record or a header lacks what every version prints.
    """
    parsed = Parsed()
    lines: list[str] = []
    for line in text.splitlines():
        if message := _MESSAGE.match(line.strip()):
            kept = {"ERROR": parsed.errors, "WARNING": parsed.warnings}.get(message["kind"])
            if kept is not None:
                kept.append(message["text"].strip())
        elif lines or line.startswith('"ID",'):
            lines.append(line)
    if not lines:
        return parsed
    rows = _rows(lines)
    header = rows[0]
    details = "Metric Name" in header
    lacking = [name for name in (*NEEDED, *(NEEDED_DETAILS if details else ())) if name not in header]
    if lacking:
        raise ProfilerError(
            f"ncu printed a table without a column '{lacking[0]}' ({', '.join(header[:6])}); expected its --csv output"
        )
    body = [row for row in rows[1:] if len(row) == len(header) or (row and row[0].isdigit())]
    read = _details if details else _raw
    parsed.kernels = read(header, body, source)
    return parsed


def number(text: str) -> float | None:
    """A value as ncu prints it ('1,234.5', '12', '1.5e+3'); None for 'n/a', 'nan', '(!) nan', '' and words."""
    try:
        value = float(text.replace(",", "").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def base(value: float, unit: str) -> float:
    """``value`` in s, byte, hz or plain counts, from the unit that ncu chose to print."""
    unit = unit.strip()
    if unit in SECONDS:
        return value * SECONDS[unit]
    if match := _SCALED.match(unit):
        return value * PREFIX[match["prefix"].upper()]
    return value


def _rows(lines: Sequence[str]) -> list[list[str]]:
    """The table, without lines that are no records (what the program printed meanwhile)."""
    try:
        table = list(csv.reader(io.StringIO("\n".join(lines)), strict=False))
    except csv.Error as error:
        raise ProfilerError(f"ncu's output cannot be read as CSV ({error}); was it cut off?") from None
    return [row for row in table if len(row) > 4]


def _shape(text: str, column: str) -> tuple[int, int, int]:
    match = _TUPLE.search(text)
    if match is None:
        raise ProfilerError(f"ncu printed {text!r} as {column}; expected three numbers such as (256, 1, 1)")
    return int(match[1]), int(match[2]), int(match[3])


def _raw(header: Sequence[str], rows: Iterable[Sequence[str]], source: str) -> list[KernelCounters]:
    """One row a launch, one column a metric, the first row their units."""
    place = {name: number for number, name in enumerate(header)}
    columns = [(number, name) for name, number in place.items() if name not in _NOT_METRICS and _RANGES not in name]
    units: Sequence[str] = [""] * len(header)
    kernels = []
    for row in rows:
        if not row[0].strip():
            units = row
            continue
        if len(row) != len(header):
            raise ProfilerError(
                f"a row of ncu's output has {len(row)} fields of {len(header)}; was the tool stopped while it wrote?"
            )
        metrics, missing = {}, []
        for index, name in columns:
            value = number(row[index])
            if value is not None:
                metrics[name] = base(value, units[index])
            elif row[index].strip().lower().lstrip("(!) ") in ("", "nan", "n/a", "-nan", "inf"):
                missing.append(name)
        kernels.append(
            KernelCounters(
                name=row[place["Kernel Name"]],
                grid=_shape(row[place["Grid Size"]], "Grid Size"),
                block=_shape(row[place["Block Size"]], "Block Size"),
                metrics=metrics,
                missing=missing,
                source=source,
            )
        )
    return kernels


def _details(header: Sequence[str], rows: Iterable[Sequence[str]], source: str) -> list[KernelCounters]:
    """One row a number, named for people; rows of the tool's own rules are not read."""
    place = {name: number for number, name in enumerate(header)}
    found: dict[str, tuple[Sequence[str], dict[str, float], list[str]]] = {}
    for row in rows:
        if len(row) <= place["Metric Value"]:
            raise ProfilerError("the last row of ncu's output is cut short; was the tool stopped while it wrote?")
        _, metrics, missing = found.setdefault(row[0], (row, {}, []))
        name = DETAILS.get((row[place["Section Name"]], row[place["Metric Name"]]), row[place["Metric Name"]])
        if not name:
            continue
        value = number(row[place["Metric Value"]])
        if value is not None:
            metrics[name] = base(value, row[place["Metric Unit"]])
        elif row[place["Metric Value"]].strip().lower().lstrip("(!) ") in ("", "nan", "n/a", "-nan", "inf"):
            missing.append(name)
    return [
        KernelCounters(
            name=row[place["Kernel Name"]],
            grid=_shape(row[place["Grid Size"]], "Grid Size"),
            block=_shape(row[place["Block Size"]], "Block Size"),
            metrics=metrics,
            missing=missing,
            source=source,
        )
        for row, metrics, missing in found.values()
    ]
