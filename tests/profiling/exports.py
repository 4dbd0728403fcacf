"""Exports of Nsight Systems as its versions write them, made here for what the real one in ``data`` does not hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REAL = Path(__file__).with_name("data") / "nsys-softmax.sqlite"
"""Nsight Systems 2025.3.2 on an H200: three rounds of a 4096^2 fp32 matmul and softmax under NVTX ranges."""
PROCESS = 587 << 24
THREAD = PROCESS | 587

KERNEL = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
    " globalPid INTEGER, demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER, gridX INTEGER,"
    " gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER,"
    " dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, graphNodeId INTEGER"
)
RUNTIME = "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER"
MEMCPY = (
    "start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,"
    " copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER"
)
NVTX = "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER"
TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_RUNTIME": RUNTIME,
    "CUPTI_ACTIVITY_KIND_MEMCPY": MEMCPY,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,"
    " globalPid INTEGER, graphId INTEGER",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER, bytes INTEGER, memoryOperationType INTEGER, memKind INTEGER",
    "NVTX_EVENTS": NVTX,
}


class Export:
    """A database under construction. Times are nanoseconds."""

    def __init__(self, path: Path, tables: Iterable[str] = ("StringIds", "META_DATA_EXPORT")) -> None:
        self.path, self.file = path, sqlite3.connect(path)
        self.names: dict[str, int] = {}
        self.made: set[str] = set()
        for table in tables:
            self.table(table)
        self.launched = 0

    def table(self, name: str) -> None:
        if name not in self.made:
            self.file.execute(f"CREATE TABLE {name} ({TABLES[name]})")
            self.made.add(name)

    def add(self, table: str, **values: Any) -> None:
        self.table(table)
        places = ", ".join("?" * len(values))
        self.file.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.add("StringIds", id=self.names[text], value=text)
        return self.names[text]

    def call(self, api: str, start: int, end: int, correlation: int | None = None) -> int:
        """An API call; returns its correlation number."""
        if correlation is None:
            self.launched += 1
            correlation = self.launched
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=THREAD,
            correlationId=correlation,
            nameId=self.name(api),
        )
        return correlation

    def kernel(
        self, name: str, start: int, end: int, correlation: int, stream: int = 7, node: int | None = None
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            streamId=stream,
            correlationId=correlation,
            globalPid=PROCESS,
            demangledName=self.name(name),
            graphNodeId=node,
        )

    def copy(self, start: int, end: int, correlation: int, size: int, kind: int = 1, host: int = 0) -> None:
        places = {"srcKind": host, "dstKind": 2} if kind == 1 else {"srcKind": 2, "dstKind": host}
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            streamId=7,
            correlationId=correlation,
            globalPid=PROCESS,
            bytes=size,
            copyKind=kind,
            **places,
        )

    def range(self, text: str, start: int, end: int) -> None:
        self.add("NVTX_EVENTS", start=start, end=end, eventType=59, text=text, globalTid=THREAD)

    def done(self) -> Path:
        self.file.commit()
        self.file.close()
        return self.path
