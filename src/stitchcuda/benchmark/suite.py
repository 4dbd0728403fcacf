"""From what a sweep was asked to the list of its items: levels, numbers, splits, folders of tasks and of programs."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from stitchcuda.benchmark.model import Item, SweepConfig
from stitchcuda.benchmark.split import TEST, in_test_split, plain
from stitchcuda.errors import ProgramError, StitchError, TaskError
from stitchcuda.knowledge.fingerprint import fingerprint_of
from stitchcuda.program.files import load_program
from stitchcuda.task.huggingface import offline
from stitchcuda.task.kernelbench import ids as known_ids
from stitchcuda.task.kernelbench import read_kernelbench
from stitchcuda.task.loader import check_source, safe_name

GENERATED = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
"""What KernelBench's own generation scripts call a program."""


def items_of(config: SweepConfig) -> list[Item]:
    """The items of a sweep, in the order in which they are begun. Raises StitchError where there are none."""
    match config.suite:
        case "kernelbench":
            tasks = _kernelbench(config)
        case "folder":
            tasks = _folder(Path(config.folder or "."))
        case "score":
            return _scored(config)
    # Repetitions go last, so that a sweep that is stopped early has seen every task.
    return [task.model_copy(update={"seed": seed}) for seed in range(config.seeds) for task in tasks]


def absent_of(config: SweepConfig, items: list[Item]) -> list[str]:
    """Tasks that were asked for and have no program among those that others made: a table must not hide them."""
    if config.suite != "score" or not (config.folder or config.levels or config.split == "test"):
        return []
    tasks = _folder(Path(config.folder)) if config.folder else _kernelbench(config)
    have = {item.task for item in items}
    return [task.name for task in tasks if task.task not in have]


def answers_to(items: list[Item]) -> tuple[str, ...]:
    """What names the tasks of a sweep to the knowledge base, so that it shows no program that won on one of them."""
    return tuple(dict.fromkeys(mark for item in items for mark in (item.fingerprint, item.digest) if mark))


def numbers(text: str) -> list[int]:
    """``2,18,20-22`` as [2, 18, 20, 21, 22]. Raises StitchError for anything else."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise StitchError(f"'{part}' in --ids is neither a number nor a range; give them as 2,18,20-25")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


def _kernelbench(config: SweepConfig) -> list[Item]:
    root = Path(config.root) if config.root else None
    levels = config.levels or ([1, 2, 3] if config.split == "test" else [])
    if not levels:
        raise StitchError("which level of KernelBench? Give --level 3, several times for several levels.")
    if config.ids and len(levels) != 1:
        raise StitchError("--ids are numbers within one level; give one --level with them.")
    items = [item for level in dict.fromkeys(levels) for item in _level(level, config, root)]
    if not items:
        raise StitchError("there is no such task; the level has none of the numbers in --ids.")
    return items


def _level(level: int, config: SweepConfig, root: Path | None) -> list[Item]:
    known = known_ids(level, root)
    if not known:
        raise TaskError(f"there is no level {level} in KernelBench's folder; give another --root or --level")
    wanted = numbers(config.ids) if config.ids else known
    if unknown := sorted(set(wanted) - set(known)):
        raise TaskError(f"level {level} has no task {', '.join(map(str, unknown[:5]))}")
    items = [_item(f"{level}/{number}", level, root) for number in wanted]
    if config.split == "all":
        return items
    names = in_test_split(level)
    if not names:
        raise StitchError(f"level {level} has no test split; levels with one: {', '.join(map(str, TEST))}")
    chosen = [item for item in items if plain(item.name) in names]
    missing = names - {plain(item.name) for item in chosen}
    if missing and not config.ids:
        raise TaskError(
            f"level {level} lacks {len(missing)} of its {len(names)} test tasks ({', '.join(sorted(missing)[:3])}); "
            "name a whole KernelBench with --root, or its tasks with --ids"
        )
    return chosen


def _item(number: str, level: int, root: Path | None) -> Item:
    name, source = read_kernelbench(number, root)
    return Item(
        task=f"kernelbench:{number}",
        name=name,
        group=f"level {level}",
        digest=_sha(source),
        fingerprint=fingerprint_of(_as_run(source, f"kernelbench:{number}")),
    )


def _as_run(source: str, where: str) -> str:
    """The source as its runs have it; as it is where it cannot be had so."""
    try:
        return offline(source, where)
    except StitchError:
        return source


def _folder(folder: Path) -> list[Item]:
    if not folder.is_dir():
        raise TaskError(f"there is no folder {folder}; give one with KernelBench-format task files")
    items: list[Item] = []
    names: set[str] = set()
    for path in sorted(folder.rglob("*.py"), key=_natural):
        if any(part.startswith((".", "_")) for part in path.relative_to(folder).parts) or not path.is_file():
            continue
        source = _task_source(path)
        below = path.relative_to(folder).with_suffix("")
        name = safe_name("_".join(below.parts))
        if name in names:
            raise TaskError(f"two tasks of {folder} are called {name}; rename one")
        names.add(name)
        group = below.parts[0] if len(below.parts) > 1 else ""
        items.append(
            Item(
                task=str(path.resolve()),
                name=name,
                group=group,
                digest=_sha(source),
                fingerprint=fingerprint_of(source),
            )
        )
    if not items:
        raise TaskError(f"{folder} has no task files (*.py that define Model, get_inputs and get_init_inputs)")
    return items


def _task_source(path: Path) -> str:
    """The text of a task file. Raises TaskError that also says how to keep a file that is no task in the folder."""
    try:
        source = path.read_text(encoding="utf-8")
        check_source(source, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task file {path} cannot be read: {error}") from None
    except TaskError as error:
        raise TaskError(f"{error}; a file that is no task is left out where its name begins with _") from None
    return source


def _scored(config: SweepConfig) -> list[Item]:
    """Programs that others made: KernelBench's own names, or files and folders named as the tasks are."""
    folder = Path(config.programs or ".")
    if not folder.is_dir():
        raise StitchError(f"there is no folder {folder}; give the one that holds the programs")
    generated = sorted((path for path in folder.rglob("*_kernel.py") if GENERATED.fullmatch(path.name)), key=_natural)
    if generated:
        return _generated(generated, config)
    tasks = _folder(Path(config.folder)) if config.folder else _kernelbench(config)
    alone = len({task.group for task in tasks}) == 1
    found: list[Item] = []
    for task in tasks:
        programs = [path for path in _named(folder, task, alone=alone) if path.exists()]
        if programs:
            found.append(_with_program(task, programs[0]))
    if not found:
        raise StitchError(
            f"no program in {folder} has a task's name: expected {tasks[0].name}.py, a folder {tasks[0].name}/ with "
            "program.py, or KernelBench's own level_L_problem_P_sample_S_kernel.py"
        )
    return found


def _with_program(task: Item, path: Path, sample: int = 0) -> Item:
    try:
        digest = load_program(path).digest
    except ProgramError as error:
        digest = _sha(str(error))  # a result all the same, until it is another program
    return task.model_copy(update={"seed": sample, "program": str(path.resolve()), "program_digest": digest})


def _named(folder: Path, task: Item, *, alone: bool) -> list[Path]:
    """Where the program of a task may lie. ``alone``: there is one level, so that a bare number says which task."""
    stems = [task.name, Path(task.task).stem]
    if task.task.startswith("kernelbench:"):
        level, _, number = task.task.removeprefix("kernelbench:").partition("/")
        own = re.sub(r"^kb\d+_0*", "", task.name)
        stems = [task.name, f"level{level}/{own}", f"level{level}/{number}", own, *([number] if alone else [])]
    return [path for stem in stems for path in (folder / f"{stem}.py", folder / stem)]


def _generated(paths: list[Path], config: SweepConfig) -> list[Item]:
    root = Path(config.root) if config.root else None
    wanted = set(numbers(config.ids)) if config.ids else None
    items: list[Item] = []
    tasks: dict[str, Item] = {}
    for path in paths:
        match = GENERATED.fullmatch(path.name)
        assert match is not None
        level, number, sample = int(match[1]), int(match[2]), int(match[3])
        if (config.levels and level not in config.levels) or (wanted is not None and number not in wanted):
            continue
        key = f"{level}/{number}"
        if key not in tasks:
            tasks[key] = _item(key, level, root)
        if config.split == "test" and plain(tasks[key].name) not in in_test_split(level):
            continue
        items.append(_with_program(tasks[key], path, sample))
    ids = [item.id for item in items]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise StitchError(f"two programs are sample {twice}: give the folder of one run, not of several")
    if not items:
        raise StitchError("none of the programs belongs to the levels, numbers and split that were asked for")
    return items


def _sha(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def _natural(path: Path) -> list[object]:
    """Orders 2 before 10; texts and numbers alternate, so that they compare."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]
