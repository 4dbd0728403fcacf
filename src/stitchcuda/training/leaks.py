"""Is anything of the test set in the training data? Compared by name, by source, and by graph.

A leak refuses a data set: the same benchmark task by name, the same source reworded, or the same computation. A near
leak is reported: the same model at other sizes, or an equal name of unknown origin. Reading data sets is in
``leaks_samples``; what a source's and a graph's marks survive, in ``leaks_source`` and ``leaks_graph``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.benchmark.split import plain
from stitchcuda.training.leaks_graph import GraphMarks, marks_of
from stitchcuda.training.leaks_samples import Sample, TestTask
from stitchcuda.training.leaks_source import SourceMarks, source_marks

Way = Literal["name", "source", "graph", "sizes", "graph_sizes", "same_name"]
REFUSED: frozenset[Way] = frozenset({"name", "source", "graph"})

WORDS: dict[Way, str] = {
    "name": "the same task by its name",
    "source": "the same source but for wording and order",
    "graph": "the same computation",
    "sizes": "the same model at other sizes",
    "graph_sizes": "the same computation at other sizes",
    "same_name": "a task of the same name, from elsewhere",
}

_SHOWN = 5
"""Of rows that a report names."""


class Leak(BaseModel):
    """One test task found in one row."""

    model_config = ConfigDict(frozen=True)

    test: str
    where: str = Field(description="file and row")
    skill: str = ""
    way: Way

    @property
    def refused(self) -> bool:
        """Whether the row must go."""
        return self.way in REFUSED


class LeakReport(BaseModel):
    """The answer of a check."""

    model_config = ConfigDict(frozen=True)

    rows: int
    sources: int = Field(description="different task sources in the rows")
    unreadable: int = Field(description="rows without a task's source: compared by name alone")
    unread: list[str] = Field(
        default_factory=list, description="rows in which a model is written that could not be read"
    )
    test_tasks: int
    graphs: int = Field(description="sources of which a graph was compared")
    without_graph: dict[str, str] = Field(default_factory=dict, description="where, and why there is no graph")
    notes: list[str] = Field(default_factory=list)
    leaks: list[Leak] = Field(default_factory=list, description="one for each row, by its strongest evidence")

    @property
    def refused(self) -> bool:
        """The data must not be trained on."""
        return any(leak.refused for leak in self.leaks)

    @property
    def clean(self) -> bool:
        """Nothing of the test set was found, and nothing was left unread."""
        return not self.refused and not self.unread

    def page(self) -> str:
        """As Markdown."""
        bad = [leak for leak in self.leaks if leak.refused]
        near = [leak for leak in self.leaks if not leak.refused]
        word = "Refused" if bad else "Clean" if self.clean else "Undecided"
        lines = [
            f"{self.rows:,} rows with {self.sources:,} task sources against {self.test_tasks} test tasks; "
            f"{self.graphs:,} graphs compared; {self.unreadable:,} rows without a task's source.",
            "",
            f"**{word}**: {len(bad)} rows hold {len({leak.test for leak in bad})} test tasks; {len(near)} near leaks.",
        ]
        if self.unread:
            shown = ", ".join(self.unread[:_SHOWN]) + (", ..." if len(self.unread) > _SHOWN else "")
            lines += [
                "",
                f"In {len(self.unread):,} rows a model is written that could not be read as Python, so nothing can be "
                f"said of it ({shown}). Give it whole, as a value of its own or in a fenced block, or leave the row "
                "out.",
            ]
        for title, group in (("Leaks", bad), ("Near leaks", near)):
            if group:
                lines += ["", f"| {title.lower()}: test task | rows | skills | how |", "|---|---|---|---|"]
                lines += _table(group)
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        if self.without_graph:
            lines += ["", f"No graph could be read of {len(self.without_graph)} sources; their text was compared."]
        return "\n".join(lines) + "\n"


def _table(group: list[Leak]) -> list[str]:
    by_test: defaultdict[str, list[Leak]] = defaultdict(list)
    for leak in group:
        by_test[leak.test].append(leak)
    lines = []
    for test, leaks in sorted(by_test.items()):
        ways = Counter(WORDS[leak.way] for leak in leaks)
        skills = ", ".join(sorted({leak.skill for leak in leaks if leak.skill}))
        lines.append(f"| {test} | {len(leaks)} | {skills} | {'; '.join(f'{way} ({n})' for way, n in ways.items())} |")
    return lines


def check(samples: Iterable[Sample], tests: list[TestTask], *, graphs: bool = True, lanes: int = 2) -> LeakReport:
    """Compare every row with every test task.

    ``graphs``: also the computations of sources whose text matches none; ``lanes`` worker processes read them.
    """
    rows = list(samples)
    sources = list(dict.fromkeys(source for row in rows for source in row.sources))
    marks = {source: found for source in sources if (found := _marks(source)) is not None}
    by_whole: dict[str, TestTask] = {}
    by_shapeless: dict[str, TestTask] = {}
    for test in tests:
        for version in test.marks:
            by_whole.setdefault(version.whole, test)
            by_shapeless.setdefault(version.shapeless, test)
    told: dict[str, tuple[TestTask, Way]] = {}
    for source, mark in marks.items():
        if mark.whole in by_whole:
            told[source] = (by_whole[mark.whole], "source")
        elif mark.shapeless in by_shapeless:
            told[source] = (by_shapeless[mark.shapeless], "sizes")
    read: dict[str, GraphMarks] = {}
    notes = []
    with_source = [test for test in tests if test.source]
    if graphs and with_source:
        open_ = [source for source in sources if told.get(source, (None, ""))[1] != "source"]
        read = marks_of([*open_, *(test.source for test in with_source)], lanes=lanes)
        _by_graph(told, open_, with_source, read)
    elif graphs:
        notes.append("Graphs were not compared: the test tasks' sources are not at hand (give --root).")
    leaks = [leak for row in rows if (leak := _leak(row, tests, told)) is not None]
    return LeakReport(
        rows=len(rows),
        sources=len(sources),
        unreadable=sum(not row.sources for row in rows),
        unread=[row.where for row in rows if row.unread or any(source not in marks for source in row.sources)],
        test_tasks=len(tests),
        graphs=sum(not read[source].problem for source in sources if source in read),
        without_graph={
            next(row.where for row in rows if source in row.sources): read[source].problem
            for source in sources
            if source in read and read[source].problem
        },
        notes=notes,
        leaks=leaks,
    )


def _marks(source: str) -> SourceMarks | None:
    try:
        return source_marks(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _by_graph(
    told: dict[str, tuple[TestTask, Way]], sources: list[str], tests: list[TestTask], read: dict[str, GraphMarks]
) -> None:
    """Add what the graphs say; it is stronger than equal text at other sizes."""
    whole = {read[test.source].whole: test for test in reversed(tests) if not read[test.source].problem}
    shapeless = {read[test.source].shapeless: test for test in reversed(tests) if not read[test.source].problem}
    for source in sources:
        mark = read[source]
        if mark.problem:
            continue
        if mark.whole in whole:
            told[source] = (whole[mark.whole], "graph")
        elif source not in told and mark.shapeless in shapeless:
            told[source] = (shapeless[mark.shapeless], "graph_sizes")


def _leak(row: Sample, tests: list[TestTask], told: dict[str, tuple[TestTask, Way]]) -> Leak | None:
    """The strongest evidence against a row."""
    found: list[tuple[TestTask, Way]] = [told[source] for source in row.sources if source in told]
    if row.name:
        for test in tests:
            if plain(row.name) == plain(test.name):
                same = row.level is not None and row.level == test.level
                found.append((test, "name" if same else "same_name"))
    if not found:
        return None
    order: list[Way] = ["source", "name", "graph", "sizes", "graph_sizes", "same_name"]
    test, way = min(found, key=lambda pair: order.index(pair[1]))
    return Leak(test=test.title, where=row.where, skill=row.skill, way=way)
