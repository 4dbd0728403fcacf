"""Exports of Nsight Systems are read whatever version wrote them, and what is damaged is named."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.nsys_db import read
from stitchcuda.profiling.recording import CALL
from stitchcuda.profiling.timeline import analyse
from tests.profiling.exports import REAL, TABLES, Export


def test_a_real_export_gives_kernels_calls_and_ranges() -> None:
    found = read(REAL)
    assert (found.source, found.version, found.device) == ("nsys", "2025.3.2.0", "NVIDIA H200")
    assert len(found.ops) == 7
    assert sum("gemm" in op.name for op in found.ops) == 3
    assert sum(op.end - op.start for op in found.ops if "SoftMax" in op.name) == 276_320
    gemm = next(op for op in found.ops if "gemm" in op.name)
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ((16, 32, 1), (256, 1, 1), 254, 67584)
    assert [span.name for span in found.ranges] == ["it"] * 3
    assert {"cudaLaunchKernel", "cudaDeviceSynchronize", "cudaMalloc"} <= {call.name for call in found.api}
    assert found.remarks == []


def test_a_real_export_is_made_sense_of() -> None:
    found = analyse(read(REAL))
    assert found.calls == 1
    assert found.timeline.device_seconds == pytest.approx(8.338e-3, rel=1e-3)
    assert found.timeline.busy_seconds == pytest.approx(found.timeline.device_seconds)
    assert found.timeline.launches == 7
    assert any("marks no calls" in remark for remark in found.remarks)
    assert found.kernels[0].calls == 3
    assert "gemm" in found.kernels[0].name


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_database_is_named_so(tmp_path: Path, share: float) -> None:
    data = REAL.read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ProfilerError, match=r"cut\.sqlite"):
        read(path)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_database_is_read_or_named_so(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(REAL.read_bytes())
    for _ in range(500):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(data)
    with contextlib.suppress(ProfilerError):
        analyse(read(path))


@pytest.mark.parametrize("content", [b"not a database at all", b"\0" * 4096])
def test_what_is_no_export_is_named_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.sqlite"
    path.write_bytes(content)
    with pytest.raises(ProfilerError, match="nsys export"):
        read(path)
    sqlite3.connect(tmp_path / "empty.sqlite").execute("CREATE TABLE other (id INTEGER)").connection.commit()
    with pytest.raises(ProfilerError, match="none of Nsight Systems' tables"):
        read(tmp_path / "empty.sqlite")


def test_an_empty_trace_is_no_error(tmp_path: Path) -> None:
    found = read(Export(tmp_path / "e.sqlite").done())
    assert found.ops == []
    assert "no kernel" in found.remarks[0]
    assert analyse(found).timeline.wall_seconds == 0


@pytest.mark.parametrize("missing", sorted(TABLES))
def test_each_table_of_a_newer_version_may_be_missing(tmp_path: Path, missing: str) -> None:
    export = Export(tmp_path / "e.sqlite", TABLES)
    export.kernel("k", 100, 200, export.call("cudaLaunchKernel_v7000", 10, 20))
    export.range(CALL, 0, 300)
    export.file.execute(f"DROP TABLE {missing}")
    analyse(read(export.done()))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "graphNodeId"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "streamId"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
        ("NVTX_EVENTS", "textId"),
    ],
)
def test_columns_of_a_newer_version_may_be_missing(tmp_path: Path, table: str, column: str) -> None:
    export = Export(tmp_path / "e.sqlite", TABLES)
    export.kernel("k", 100, 200, export.call("cudaLaunchKernel_v7000", 10, 20))
    export.range(CALL, 0, 300)
    export.file.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    found = analyse(read(export.done()))
    assert found.timeline.launches == (0 if column == "start" else 1)


def test_an_activity_without_an_end_is_left_out(tmp_path: Path) -> None:
    export = Export(tmp_path / "e.sqlite")
    export.kernel("whole", 100, 200, export.call("cudaLaunchKernel", 10, 20))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=300, end=None, demangledName=export.name("cut"))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start=300, end=200, demangledName=export.name("backwards"))
    assert [op.name for op in read(export.done()).ops] == ["whole"]


def test_copies_tell_direction_size_and_kind_of_memory(tmp_path: Path) -> None:
    export = Export(tmp_path / "e.sqlite")
    export.copy(0, 10, export.call("cudaMemcpyAsync", 0, 5), 4096, kind=1, host=0)
    export.copy(20, 30, export.call("cudaMemcpyAsync", 15, 18), 512, kind=2, host=1)
    up, down = read(export.done()).ops
    assert (up.direction, up.pageable, up.bytes, up.host_copy) == ("HtoD", True, 4096, True)
    assert (down.direction, down.pageable, down.bytes) == ("DtoH", False, 512)


def test_names_of_ten_thousand_characters_are_cut(tmp_path: Path) -> None:
    export = Export(tmp_path / "e.sqlite")
    name = "void kernel<" + "std::tuple<float, " * 555 + "int" + ">" * 555 + ">(float*)"
    assert len(name) > 10_000
    export.kernel(name, 100, 200, export.call("cudaLaunchKernel", 10, 20))
    (op,) = read(export.done()).ops
    assert op.name.startswith("void kernel<std::tuple<float")
    assert len(op.name) <= 2000


def test_a_hundred_thousand_kernels_are_read_and_made_sense_of_in_seconds(tmp_path: Path) -> None:
    export = Export(tmp_path / "e.sqlite", TABLES)
    names = [export.name(f"kernel_{n}") for n in range(50)]
    api = export.name("cudaLaunchKernel_v7000")
    count, thread = 100_000, (587 << 24) | 587
    export.file.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, globalPid, demangledName)"
        " VALUES (?, ?, 7, ?, ?, ?)",
        ((n * 5000 + 3000, n * 5000 + 6000, n, 587 << 24, names[n % 50]) for n in range(count)),
    )
    export.file.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES (?, ?, ?, ?, ?)",
        ((n * 5000, n * 5000 + 2000, thread, n, api) for n in range(count)),
    )
    export.file.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, 59, ?, ?)",
        ((n * 5000, n * 5000 + 2500, f"aten::op{n % 7}, op_id = {n}", thread) for n in range(count)),
    )
    export.range(CALL, 0, count * 5000 + 10_000)
    path = export.done()
    began = time.process_time()
    found = analyse(read(path))
    assert time.process_time() - began < 5
    assert found.timeline.launches == count
    assert len(found.kernels) == 350
    assert found.operators[0].kernels == pytest.approx(count / 7, abs=1)
