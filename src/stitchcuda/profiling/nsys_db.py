"""Nsight Systems' SQLite export as a Recording. Reads only; running the tool is ``profiling.nsys``.

The schema grows with each version: every table and column but the kernels' times may be missing, and what is missing
is said in the recording's remarks. The file may come from a process that is not trusted: it is opened read-only,
nothing in it is executed, and its names are cut to a bearable length.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.recording import ApiCall, DeviceOp, MemoryEvent, Range, Recording, api_name, clipped

MOST_ROWS = 4_000_000
"""Rows read of one table; a longer recording is cut, and says so."""

DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH"}
"""CUPTI's kinds of copy; arrays count as device memory, managed memory (11 to 13) by where it moves."""
DIRECTIONS |= {10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
PAGEABLE = 0
"""CUPTI's number for pageable host memory."""
PUSH_POP = (59, 60, 70, 71)
"""NVTX event types that are ranges with a start and an end."""
MOST_MESSAGES = 3
"""Warnings and errors of the tool that are passed on."""
OPERATOR = re.compile(r"(\w+::[\w.:]+)(?:, (?:seq|op_id) = .*)?$")
"""torch's ranges of operators: 'aten::mm, seq = 12, op_id = 34'."""
PROCESS_MASK = 0xFFFFFF
"""The low bits of a global thread id that name the thread; the rest is the process."""

Row = dict[str, Any]


class _Export:
    """The open database: which tables and columns there are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
            self.file.execute("PRAGMA trusted_schema=OFF")
            self.file.text_factory = lambda data: data.decode("utf-8", "replace")
            names = self.file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self.tables = {str(name) for (name,) in names}
        except (sqlite3.Error, UnicodeError) as error:  # sqlite3 decodes messages that quote a damaged schema
            raise self.damaged(error) from None

    def damaged(self, error: object) -> ProfilerError:
        """The error of a file that is no whole database."""
        return ProfilerError(
            f"{self.path.name} is no readable Nsight Systems export ({error}); the export was cut off or is another"
            " file: write it again with 'nsys export --type sqlite'"
        )

    def rows(self, table: str, columns: tuple[str, ...]) -> Iterator[Row]:
        """Rows of a table, with None for columns that this version lacks; none without the table."""
        if table not in self.tables:
            return
        try:
            there = {str(row[1]) for row in self.file.execute(f'PRAGMA table_info("{table}")')}
            if "start" in columns and "start" not in there:
                return
            words = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
            for row in self.file.execute(f'SELECT {words} FROM "{table}" LIMIT {MOST_ROWS}'):
                yield dict(zip(columns, row, strict=True))
        except (sqlite3.Error, UnicodeError) as error:
            raise self.damaged(error) from None


def read(path: Path) -> Recording:
    """The whole export. Raises ProfilerError for a file that is missing, cut off, or no database."""
    if not path.is_file() or path.stat().st_size == 0:
        raise ProfilerError(f"{path} is not there or empty; nsys exported nothing")
    export = _Export(path)
    try:
        return _read(export)
    finally:
        export.file.close()


def _read(export: _Export) -> Recording:
    names = {int(r["id"]): clipped(str(r["value"])) for r in export.rows("StringIds", ("id", "value"))}
    meta = {str(r["name"]): str(r["value"]) for r in export.rows("META_DATA_EXPORT", ("name", "value"))}
    if not export.tables & {"StringIds", "META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"}:
        raise export.damaged("it has none of Nsight Systems' tables")
    found = Recording("nsys", meta.get("EXPORT_PRODUCT_VERSION", ""))
    found.device = next((str(r["name"]) for r in export.rows("TARGET_INFO_GPU", ("name",))), "")
    found.ops = [*_kernels(export, names), *_copies(export), *_memsets(export), *_graphs(export)]
    found.api = list(_api(export, names))
    found.ranges = list(_ranges(export, names))
    found.memory = list(_memory(export))
    found.remarks = _remarks(export, found)
    return found.sort()


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _name(row: Row, names: dict[int, str], *columns: str) -> str:
    """The first of the columns that leads to a string, by number or as a text of its own."""
    for column in columns:
        value = row[column]
        if isinstance(value, str) and value:
            return clipped(value)
        if isinstance(value, int) and value in names:
            return names[value]
    return "(unnamed)"


def _whole(row: Row) -> bool:
    """Whether start and end are a span: an activity that was cut off has no end."""
    start, end = row["start"], row["end"]
    return isinstance(start, int) and isinstance(end, int) and end >= start >= 0


def _key(row: Row) -> int:
    """Correlation numbers count within a process: made one with the process, whose number is large."""
    process = _number(row.get("globalPid")) or (_number(row.get("globalTid")) & ~PROCESS_MASK)
    return (process << 32) | (_number(row["correlationId"]) & 0xFFFFFFFF)


def _kernels(export: _Export, names: dict[int, str]) -> Iterator[DeviceOp]:
    columns = ("start", "end", "streamId", "correlationId", "globalPid", "demangledName", "shortName", "mangledName")
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    more = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "graphNodeId")
    for row in export.rows("CUPTI_ACTIVITY_KIND_KERNEL", columns + sizes + more):
        if not _whole(row):
            continue
        x, y, z, i, j, k = (_number(row[size]) for size in sizes)
        yield DeviceOp(
            row["start"],
            row["end"],
            _name(row, names, "demangledName", "shortName", "mangledName"),
            "kernel",
            _number(row["streamId"]),
            _key(row),
            graph=row["graphNodeId"] is not None,
            grid=(x, y, z) if x else None,
            block=(i, j, k) if i else None,
            registers=_number(row["registersPerThread"]),
            shared_bytes=_number(row["staticSharedMemory"]) + _number(row["dynamicSharedMemory"]),
            local_bytes=_number(row["localMemoryPerThread"]),
        )


def _copies(export: _Export) -> Iterator[DeviceOp]:
    columns = ("start", "end", "streamId", "correlationId", "globalPid", "bytes", "copyKind", "graphNodeId")
    for row in export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", (*columns, "srcKind", "dstKind")):
        if not _whole(row):
            continue
        direction = DIRECTIONS.get(_number(row["copyKind"]), "")
        host = row["dstKind"] if direction == "DtoH" else row["srcKind"] if direction == "HtoD" else None
        pageable = host == PAGEABLE
        place = "" if host is None else " (pageable)" if pageable else " (pinned)"
        yield DeviceOp(
            row["start"],
            row["end"],
            f"Memcpy {direction or 'of unknown kind'}{place}",
            "copy",
            _number(row["streamId"]),
            _key(row),
            _number(row["bytes"]),
            direction,
            pageable,
            row["graphNodeId"] is not None,
        )


def _memsets(export: _Export) -> Iterator[DeviceOp]:
    columns = ("start", "end", "streamId", "correlationId", "globalPid", "bytes", "graphNodeId")
    for row in export.rows("CUPTI_ACTIVITY_KIND_MEMSET", columns):
        if _whole(row):
            yield DeviceOp(
                row["start"],
                row["end"],
                "Memset",
                "memset",
                _number(row["streamId"]),
                _key(row),
                _number(row["bytes"]),
                graph=row["graphNodeId"] is not None,
            )


def _graphs(export: _Export) -> Iterator[DeviceOp]:
    """Whole graphs, from a trace without ``--cuda-graph-trace=node``."""
    columns = ("start", "end", "streamId", "correlationId", "globalPid", "graphId")
    for row in export.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns):
        if _whole(row):
            name = f"CUDA graph {_number(row['graphId'])}"
            yield DeviceOp(row["start"], row["end"], name, "graph", _number(row["streamId"]), _key(row), graph=True)


def _api(export: _Export, names: dict[int, str]) -> Iterator[ApiCall]:
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    short: dict[int, str] = {}
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for row in export.rows(table, columns):
            if not _whole(row):
                continue
            number = _number(row["nameId"])
            if number not in short:
                short[number] = api_name(names.get(number, "(unnamed)"))
            yield ApiCall(row["start"], row["end"], short[number], _number(row["globalTid"]), _key(row))


def _ranges(export: _Export, names: dict[int, str]) -> Iterator[Range]:
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for row in export.rows("NVTX_EVENTS", columns):
        if _number(row["eventType"]) in PUSH_POP and _whole(row):
            name = _name(row, names, "text", "textId")
            match = OPERATOR.match(name)
            thread = _number(row["globalTid"])
            yield Range(row["start"], row["end"], match[1] if match else name, thread, match is not None)


def _memory(export: _Export) -> Iterator[MemoryEvent]:
    """Allocations of device memory, where the trace was asked for them."""
    columns = ("start", "bytes", "memoryOperationType", "memKind")
    for row in export.rows("CUDA_GPU_MEMORY_USAGE_EVENTS", columns):
        if isinstance(row["start"], int) and row["memKind"] in (2, 5, None):
            size = _number(row["bytes"])
            yield MemoryEvent(row["start"], -size if row["memoryOperationType"] == 1 else size)


def _remarks(export: _Export, found: Recording) -> list[str]:
    remarks = []
    if not found.ops:
        remarks.append("the trace holds no kernel and no copy")
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in export.tables:
        remarks.append("the trace holds no API calls: why the device idles cannot be told")
    if any(op.kind == "graph" for op in found.ops):
        remarks.append("CUDA graphs were traced as a whole: ask for --cuda-graph-trace=node to see their kernels")
    for name, rows in (("kernels and copies", len(found.ops)), ("API calls", len(found.api))):
        if rows >= MOST_ROWS:
            remarks.append(f"only the first {MOST_ROWS} {name} were read")
    told = [
        str(r["text"]) for r in export.rows("DIAGNOSTIC_EVENT", ("severity", "text")) if _number(r["severity"]) >= 2
    ]
    return [*remarks, *(f"nsys says: {text[:200]}" for text in told[:MOST_MESSAGES])]
