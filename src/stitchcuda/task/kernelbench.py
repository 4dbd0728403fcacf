"""KernelBench's tasks: from a checkout of the benchmark or from its Parquet data set."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from stitchcuda.errors import TaskError, ToolMissing

ROOT_VARIABLE = "KERNELBENCH_ROOT"


def read_kernelbench(reference: str, root: Path | None = None) -> tuple[str, str]:
    """Name (``kb3_019_MobileNetV1``) and source of the task ``LEVEL/ID``.

    ``root`` is a checkout (levels in ``KernelBench/levelN`` or ``levelN``), or a Parquet file or a folder of
    them with the columns code, level, name and problem_id.

    Raises TaskError when the reference or root is wrong, ToolMissing when Parquet needs pyarrow.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", reference)
    if match is None:
        raise TaskError(f"kernelbench:{reference} is not kernelbench:LEVEL/ID, such as kernelbench:3/19")
    level, number = int(match[1]), int(match[2])
    folder = find_root(root)
    levels = _level_folder(folder, level)
    if levels is not None:
        for path in sorted(levels.glob(f"{number}_*.py")):
            return kernelbench_name(level, number, path.stem), path.read_text(encoding="utf-8")
        have = ids(level, root)
        raise TaskError(f"level {level} has no task {number} in {levels}; it has {_ranges(have)}")
    for row in _parquet_rows(folder, level):
        if int(row["level"]) == level and int(row["problem_id"]) == number:
            return kernelbench_name(level, number, str(row["name"])), str(row["code"])
    raise TaskError(f"no task {level}/{number} in {folder}: no level{level} folder and no Parquet row for it")


def ids(level: int, root: Path | None = None) -> list[int]:
    """Task numbers of a level, ascending; empty when the level is not there."""
    folder = find_root(root)
    levels = _level_folder(folder, level)
    if levels is not None:
        found = (re.match(r"(\d+)_", path.name) for path in levels.glob("*.py"))
        return sorted(int(match[1]) for match in found if match)
    return sorted(int(row["problem_id"]) for row in _parquet_rows(folder, level) if int(row["level"]) == level)


def find_root(root: Path | None = None) -> Path:
    """``root``, else the folder that KERNELBENCH_ROOT names. Raises TaskError when neither exists."""
    text = str(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    if not text:
        raise TaskError(
            "where KernelBench lies is not known: give --root (a checkout, or its Parquet files) or set "
            f"{ROOT_VARIABLE}"
        )
    path = Path(text).expanduser()
    if not path.exists():
        raise TaskError(f"there is no KernelBench at {path}; give --root or set {ROOT_VARIABLE}")
    return path


def kernelbench_name(level: int, number: int, name: str) -> str:
    """``kb3_019_MobileNetV1`` for level 3, number 19, ``19_MobileNetV1`` or ``19_MobileNetV1.py``."""
    plain = re.sub(r"\.py$", "", name)
    plain = re.sub(r"^\d+_", "", plain)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", plain).strip("_")
    return f"kb{level}_{number:03d}_{plain}"


def _level_folder(root: Path, level: int) -> Path | None:
    for folder in (root / "KernelBench" / f"level{level}", root / f"level{level}"):
        if folder.is_dir():
            return folder
    return None


def _parquet_rows(root: Path, level: int) -> list[dict[str, Any]]:
    paths = [root] if root.suffix == ".parquet" else sorted(root.rglob("*.parquet"))
    if not paths:
        return []
    named = [path for path in paths if f"level_{level}" in path.name]
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ToolMissing("reading KernelBench's Parquet data set needs pyarrow; install stitchcuda[parquet]") from None
    rows: list[dict[str, Any]] = []
    for path in named or paths:
        try:
            rows += parquet.read_table(path, columns=["code", "level", "name", "problem_id"]).to_pylist()
        except Exception as error:
            raise TaskError(f"{path} is not KernelBench's data set: {error}") from None
    return rows


def _ranges(numbers: list[int]) -> str:
    """``[1, 2, 3, 7]`` as ``1-3, 7``."""
    parts: list[str] = []
    start = previous = None
    for number in [*numbers, None]:
        if previous is not None and number == previous + 1:
            previous = number
            continue
        if previous is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ", ".join(parts) or "none"
