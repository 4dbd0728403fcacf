"""Reads a corpus of cheating and honest programs: a folder with ``catalogue*.toml``, ``tasks/`` and programs.

Running one is in ``integrity.matrix``; which programs there are is the corpus's own business.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import StitchError


class Specimen(BaseModel):
    """One program of the corpus, as its catalogue declares it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9_]+$", description="unique in the corpus, e.g. 'a05_subclass_of_reference'")
    items: list[int] = Field(description="numbers of the mechanisms it uses or, if honest, looks like")
    title: str = Field(description="what it does, in a few words")
    file: str = Field(description="a .py file or a native folder, relative to the corpus")
    task: str = Field(description="name of a file in tasks/, without .py")
    target: Literal["cpu", "cuda", "both"]
    kind: Literal["exploit", "honest"]
    naive: Literal["reference_first", "candidate_first", "no"] = Field(
        default="reference_first",
        description="the order in which a naive harness that it fools runs reference and candidate; "
        "no: it fools none of that kind, and the note says why it belongs here",
    )
    tier: Literal["screen", "publish"] = Field(
        default="screen", description="the cheapest tier that turns it down; publish: only the sanitizers see it"
    )
    note: str = Field(default="", description="what a reader should know")

    def runs_on(self, target: Literal["cpu", "cuda"]) -> bool:
        """Whether the program is meant for ``target``."""
        return self.target in (target, "both")


class Excuse(BaseModel):
    """A mechanism, or a form of one, that has no program of its own, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: int
    reason: str = Field(min_length=10)


class Corpus(BaseModel):
    """All programs of a folder."""

    model_config = ConfigDict(frozen=True)

    root: Path
    specimens: list[Specimen]
    excused: list[Excuse]

    def select(self, target: Literal["cpu", "cuda"]) -> list[Specimen]:
        """Those that run on ``target``, in the order of the catalogue."""
        return [one for one in self.specimens if one.runs_on(target)]

    def program_path(self, specimen: Specimen) -> Path:
        """The program's file or folder."""
        return self.root / specimen.file

    def task_path(self, specimen: Specimen) -> Path:
        """The file of the task that the program is for."""
        return self.root / "tasks" / f"{specimen.task}.py"


class _Catalogue(BaseModel):
    model_config = ConfigDict(extra="forbid")

    program: list[Specimen] = []
    excused: list[Excuse] = []


def load_corpus(root: Path) -> Corpus:
    """Read every ``catalogue*.toml`` of ``root``.

    Raises StitchError for a folder without one, a wrong field, a duplicate id, or a file that is not there.
    """
    paths = sorted(root.glob("catalogue*.toml"))
    if not paths:
        raise StitchError(f"{root} holds no catalogue*.toml; give the folder of a corpus, e.g. tests/exploits")
    specimens: list[Specimen] = []
    excused: list[Excuse] = []
    for path in paths:
        try:
            catalogue = _Catalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except tomllib.TOMLDecodeError as error:
            raise StitchError(f"{path} is not valid TOML: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise StitchError(f"{path}: {place}: {first['msg']}") from None
        specimens += catalogue.program
        excused += catalogue.excused
    corpus = Corpus(root=root, specimens=specimens, excused=excused)
    seen: set[str] = set()
    for one in specimens:
        if one.id in seen:
            raise StitchError(f"two programs of {root} are called {one.id!r}; ids must be unique")
        seen.add(one.id)
        for needed in (corpus.program_path(one), corpus.task_path(one)):
            if not needed.exists():
                raise StitchError(f"{one.id} names {needed}, which is not there")
    return corpus
