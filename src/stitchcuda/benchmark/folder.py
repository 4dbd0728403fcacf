"""The folder of a sweep: what lies where, and what it says about its items. Doing them is in ``benchmark.sweep``.

``sweep.toml`` (settings), ``journal.jsonl`` (what was begun and what came of it), ``items/ID/`` with a run folder each,
``results.json``, ``table.md``, ``report.html``.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.benchmark.log import NAME, Entry, read_log
from stitchcuda.benchmark.model import Item, Record, SweepConfig
from stitchcuda.compute.folders import data_folder
from stitchcuda.errors import RunError
from stitchcuda.workflow.result import finite
from stitchcuda.workflow.storage import write_whole

SETTINGS = "sweep.toml"
RESULTS = "results.json"
TABLE = "table.md"
REPORT = "report.html"


class Sweep(BaseModel):
    """A sweep as its journal tells it: what ``results.json`` holds."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = 1
    config: SweepConfig
    items: list[Item]
    records: list[Record] = Field(default_factory=list, description="of the items that are done, in the items' order")
    open: dict[str, str] = Field(default_factory=dict, description="items without a record: why")
    absent: list[str] = Field(default_factory=list, description="tasks asked for that have no program")
    complete: bool = False
    begun: str = Field(default="", description="UTC, ISO 8601")
    ended: str = Field(default="", description="of the newest line")
    machine: dict[str, str] = Field(default_factory=dict, description="of whoever began the sweep")
    resumed: list[dict[str, str]] = Field(default_factory=list, description="the same of each who went on with it")

    @property
    def todo(self) -> list[Item]:
        """Open items, and those whose reference did not run: for that a busy machine may be to blame."""
        failed = {record.item for record in self.records if not record.scored}
        return [item for item in self.items if item.id in self.open or item.id in failed]

    @property
    def mind(self) -> str:
        """Who wrote the programs."""
        if self.config.suite == "score":
            return "programs as given"
        arm = self.config.arm.name
        return self.config.model if arm == "full" else f"{self.config.model} ({arm})"

    @property
    def about(self) -> str:
        """What was run, in words."""
        config = self.config
        if config.suite == "folder" or (config.suite == "score" and config.folder):
            return f"folder {Path(config.folder or '.').name}"
        levels = ", ".join(map(str, config.levels)) or ("1, 2, 3" if config.split == "test" else "")
        parts = [f"KernelBench level {levels}".strip()] if levels else ["KernelBench"]
        parts += [f"{config.split} split"] if config.split != "all" else []
        parts += [f"ids {config.ids}"] if config.ids else []
        return ", ".join(parts)


def to_toml(config: SweepConfig) -> str:
    """The settings that are set, one a line, each with its description above it."""
    lines = ["# Settings of this sweep, as it began. Changing them here has no effect on a sweep that has begun."]
    for name, field in SweepConfig.model_fields.items():
        value = getattr(config, name)
        if value is None or value == []:
            continue
        told = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if not isinstance(value, bool) else ""
        lines += [f"# {field.description}", f"{name} = {told or str(value).lower()}"]
    return "\n".join(lines) + "\n"


def read_settings(folder: Path) -> SweepConfig:
    """``sweep.toml``. Raises RunError when it is missing or not valid."""
    path = folder / SETTINGS
    try:
        return SweepConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a sweep: it has no {SETTINGS}.") from None
    except (ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is not valid: {str(error).splitlines()[0]}") from None


def read_sweep(folder: Path) -> Sweep:
    """A sweep, going on or ended. Raises RunError when there is none, or it is damaged."""
    entries, _ = read_log(folder / NAME)
    return told(entries, folder)


def told(entries: Sequence[Entry], folder: Path) -> Sweep:
    """What the lines of a journal say."""
    begun = next((entry for entry in entries if entry.kind == "begun"), None)
    if begun is None:
        raise RunError(f"{folder} does not say what it is about; start the sweep anew in another folder.")
    try:
        config = SweepConfig.model_validate(begun.data["config"])
        items = [Item.model_validate(item) for item in begun.data["items"]]
        records = {e.data["item"]: Record.model_validate(e.data) for e in entries if e.kind == "record"}
    except (KeyError, ValidationError) as error:
        raise RunError(f"{folder / NAME} was written by another version of stitchcuda: {error}") from None
    for entry in entries:
        if entry.kind == "resumed":
            config = config.model_copy(update=entry.data.get("changed", {}))
        elif entry.kind == "device":
            config = config.model_copy(update={"device": entry.data["name"], "target": entry.data["target"]})
    if config.device is None:  # a journal of a version that did not keep it
        known = next((r.provenance["device"] for r in records.values() if r.provenance.get("device")), None)
        config = config.model_copy(update={"device": known})
    reasons = {entry.data["item"]: str(entry.data["reason"]) for entry in entries if entry.kind == "failed"}
    return Sweep(
        config=config,
        items=items,
        records=[records[item.id] for item in items if item.id in records],
        open={item.id: reasons.get(item.id, "not run yet") for item in items if item.id not in records},
        absent=list(begun.data.get("absent", [])),
        complete=all(item.id in records for item in items),
        begun=begun.at,
        ended=entries[-1].at,
        machine=dict(begun.data.get("machine", {})),
        resumed=[e.data["machine"] for e in entries if e.kind == "resumed" and "machine" in e.data],
    )


def write_results(sweep: Sweep, folder: Path, *, table: str, report: str) -> None:
    """``results.json``, ``table.md`` and ``report.html``: each whole or absent."""
    data: Any = finite(public(sweep, folder).model_dump(mode="json"))
    write_whole(folder / RESULTS, (json.dumps(data, indent=1) + "\n").encode())
    write_whole(folder / TABLE, table.encode())
    write_whole(folder / REPORT, report.encode())


def public(sweep: Sweep, folder: Path) -> Sweep:
    """The sweep in ``folder`` without this machine's paths, as it can be handed on; the journal keeps them."""
    config = sweep.config
    plain = _without_roots(sweep, folder)

    def last(path: str | None) -> str | None:
        return Path(path).name if path else path

    def named(task: str) -> str:
        if task.startswith("kernelbench:"):
            return task
        below = Path(task)
        return (
            str(below.relative_to(config.folder))
            if config.folder and below.is_relative_to(config.folder)
            else below.name
        )

    items = [i.model_copy(update={"task": named(i.task), "program": last(i.program)}) for i in sweep.items]
    records = [
        r.model_copy(update={"origin": named(r.origin), "message": plain(r.message), "stopped": plain(r.stopped)})
        for r in sweep.records
    ]
    kept = {name: last(getattr(config, name)) for name in ("root", "folder", "programs")}
    if config.compute.startswith("spool:"):
        kept["compute"] = "spool"
    return sweep.model_copy(
        update={
            "config": config.model_copy(update=kept),
            "items": items,
            "records": records,
            "open": {item: plain(reason) for item, reason in sweep.open.items()},
        }
    )


def _without_roots(sweep: Sweep, folder: Path) -> Callable[[str], str]:
    """Shortens the paths in a sentence: of a folder that the sweep knows its name stays, of the user's ``~``."""
    config = sweep.config
    given = [config.root, config.folder, config.programs, config.compute.removeprefix("spool:")]
    given += [str(Path(item.task).parent) for item in sweep.items if Path(item.task).is_absolute()]
    roots = [folder, data_folder(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parents[1]]
    roots += [Path(text) for text in given if text and Path(text).is_absolute()]
    names = {str(path): root.name for root in roots for path in (root.absolute(), root.resolve())}
    names.setdefault(str(Path.home()), "~")
    names.pop("/", None)
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w-])")
    return lambda text: pattern.sub(lambda found: names[found[1]], text)


def load_results(path: Path) -> Sweep:
    """A sweep from its folder, or from its results file alone. Raises RunError."""
    if path.is_dir() and (path / NAME).is_file():
        return read_sweep(path)
    file = path / RESULTS if path.is_dir() else path
    try:
        return Sweep.model_validate_json(file.read_bytes())
    except OSError:
        raise RunError(f"{path} is neither a sweep's folder nor a results.json.") from None
    except ValidationError as error:
        raise RunError(f"{file} is no sweep's results: {error.errors()[0]['msg']}") from None


def unique(values: Iterable[str]) -> list[str]:
    """In order of appearance, without repeats and empty ones."""
    return list(dict.fromkeys(value for value in values if value))
