"""What a leak check compares: rows of training data in any of several forms, and the tasks of a test split.

Training data may be ours (``dataset build``, ``dataset tasks``), anybody's Parquet or JSON lines whose rows hold task
sources somewhere, or a folder of task files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from stitchcuda.benchmark.split import TEST, plain
from stitchcuda.errors import StitchError, TaskError, ToolMissing
from stitchcuda.training.leaks_source import SourceMarks, source_marks
from stitchcuda.training.leaks_text import found_in

KNOWN = "test_split.json"
"""Marks of the test split's sources in every version of the benchmark, so that a check needs no copy of it;
``benchmarks/split_marks.py`` writes them."""
RECORDED = "evaluations.jsonl"
"""Beside a data set: what was measured. It holds no task and no prompt."""
_LEVEL_IN_NAME = re.compile(r"^kb(\d+)_\d+_")


@dataclass(frozen=True)
class Sample:
    """One row of training data, as far as a leak check looks at it."""

    where: str
    sources: tuple[str, ...]
    name: str = ""
    level: int | None = None
    """KernelBench's; None where the row does not say that it is a task of it."""
    skill: str = ""
    unread: int = 0
    """Models that are written in the row and could not be read."""


@dataclass(frozen=True)
class TestTask:
    """One task that must not be trained on."""

    __test__ = False  # no test class

    name: str
    level: int | None = None
    source: str = ""
    marks: tuple[SourceMarks, ...] = ()
    """Of every version of it that is known."""

    @property
    def title(self) -> str:
        """As reports name it."""
        return f"level {self.level} {self.name}" if self.level is not None else self.name


def training_samples(path: Path, part: str = "all") -> Iterator[Sample]:
    """Every row below ``path``: Parquet and JSON lines by rows, ``.py`` files as one each.

    ``part``: of data sets and tasks that were made here, ``train`` or ``held_out`` alone. Raises StitchError when there
    is nothing to read or a file cannot be read.
    """
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in _READERS and p.is_file())
    other = {"train": "held_out", "held_out": "train"}.get(part)
    files = [file for file in files if file.name != RECORDED and other not in (file.stem, file.parent.name)]
    if not files:
        raise StitchError(f"{path} holds no training data: no {', '.join(_READERS)} file")
    for file in files:
        yield from _READERS[file.suffix](file)


def _parquet(path: Path) -> Iterator[Sample]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ToolMissing("reading Parquet needs pyarrow; install stitchcuda[train]") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:
        raise StitchError(f"{path} cannot be read as Parquet: {error}") from None
    for number, row in enumerate(rows):
        yield _sample(f"{path.name}:{number}", row)


def _lines(path: Path) -> Iterator[Sample]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StitchError(f"{path} line {number + 1} is no JSON: {error}") from None
        if isinstance(row, dict) and "body" in row and "sizes" in row:
            continue  # the index of generated tasks, which lie beside it as files
        yield _sample(f"{path.name}:{number}", row)


def _file(path: Path) -> Iterator[Sample]:
    source = path.read_text(encoding="utf-8", errors="replace")
    level = re.fullmatch(r"level(\d+)", path.parent.name)
    if "class Model" in source:
        yield Sample(f"{path.parent.name}/{path.name}", (source,), path.stem, int(level[1]) if level else None)


_READERS = {".parquet": _parquet, ".jsonl": _lines, ".py": _file}


def _sample(where: str, row: Any) -> Sample:
    """A row of any data set. Values that are JSON themselves are looked into."""
    opened = _opened(row)
    named = _find(opened, ("task_name", "problem_name", "name"))
    level = _find(opened, ("level",))
    told = _LEVEL_IN_NAME.match(str(named or ""))
    skill = _find(opened, ("skill", "data_source", "ability"))
    found = found_in(opened)
    return Sample(
        where,
        found.sources,
        str(named or ""),
        int(level) if isinstance(level, int | float) else int(told[1]) if told else None,
        str(skill or ""),
        found.unread,
    )


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _opened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_opened(part) for part in value]
    if isinstance(value, str) and value[:1] in "{[" and value[-1:] in "}]":
        try:
            return _opened(json.loads(value))
        except ValueError:
            return value
    return value


def _find(row: Any, names: tuple[str, ...]) -> Any:
    """The first value by one of these names, outer ones first, in the order of the names."""
    for name in names:
        level = [row]
        while level:
            for part in level:
                if isinstance(part, dict) and part.get(name) not in (None, ""):
                    return part[name]
            level = [inner for part in level if isinstance(part, dict) for inner in part.values()]
    return None


def held_back(which: str, root: Path | None = None) -> list[TestTask]:
    """The tasks that must not be trained on: ``kernelbench`` (20, 20 and 10 of levels 1, 2 and 3), or those that a file
    or folder names.

    A file holds one task a line: a path to a ``.py`` file, or ``kernelbench:LEVEL/ID``. Raises StitchError.
    """
    if which == "kernelbench":
        return _kernelbench(root)
    path = Path(which)
    if path.is_dir() or path.suffix in _READERS:
        samples = list(training_samples(path))
        return [_test(s.name or s.where, s.level, source) for s in samples for source in s.sources]
    if not path.is_file():
        raise StitchError(f"no test split '{which}': name kernelbench, or a file or folder of tasks")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [_named(line, path.parent, root) for line in lines if line and not line.startswith("#")]


def _test(name: str, level: int | None, source: str, known: tuple[SourceMarks, ...] = ()) -> TestTask:
    try:
        marks = source_marks(source)
    except SyntaxError as error:
        raise TaskError(f"the test task {name} is no Python: {error.msg}") from None
    return TestTask(name, level, source, tuple(dict.fromkeys((marks, *known))))


def _named(line: str, folder: Path, root: Path | None) -> TestTask:
    if line.startswith("kernelbench:"):
        from stitchcuda.task.kernelbench import read_kernelbench

        reference = line.removeprefix("kernelbench:")
        name, source = read_kernelbench(reference, root)
        return _test(name, int(reference.partition("/")[0]), source)
    path = folder / line
    try:
        return _test(path.stem, None, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"the test task {line} cannot be read: {error.strerror}") from None


def _kernelbench(root: Path | None) -> list[TestTask]:
    known = json.loads(resources.files("stitchcuda.training").joinpath(KNOWN).read_text(encoding="utf-8"))["tasks"]
    try:
        sources = kernelbench_sources(root)
    except StitchError:
        if root is not None:
            raise
        sources = {}
    tests = []
    for level, names in TEST.items():
        for name in names:
            marks = tuple(SourceMarks(**mark) for mark in known[f"{level}/{plain(name)}"])
            source = sources.get((level, plain(name)), "")
            tests.append(_test(name, level, source, marks) if source else TestTask(name, level, marks=marks))
    return tests


def kernelbench_sources(root: Path | None) -> dict[tuple[int, str], str]:
    """Sources of the test split's tasks by level and plain name. Raises TaskError without the benchmark."""
    from stitchcuda.task.kernelbench import ids, read_kernelbench

    found = {}
    for level, names in TEST.items():
        wanted = {plain(name) for name in names}
        for number in ids(level, root):
            name, source = read_kernelbench(f"{level}/{number}", root)
            if plain(name) in wanted:
                found[level, plain(name)] = source
    return found
