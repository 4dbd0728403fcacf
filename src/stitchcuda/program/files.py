"""A Program on disk: written to a folder and loaded from a folder or a single file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stitchcuda.errors import ProgramError
from stitchcuda.program.model import ENTRY, MANIFEST, Manifest, Program
from stitchcuda.program.validate import GENERATED, MAX_FILE_BYTES, MAX_FILES, check_path, validate

SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".inl", ".md", ".txt", ".json")
"""What ``load_program`` takes from a folder; caches, libraries and the like are left where they are."""


def write_program(program: Program, folder: Path) -> None:
    """Write the files, and ``manifest.json`` where there is one, under ``folder`` (made if missing).

    Validates first. Raises ProgramError for an invalid Program, or when the disk refuses.
    """
    validate(program)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in program.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():
                target.unlink()
            target.write_text(text, encoding="utf-8")
        if program.manifest is not None:
            text = program.manifest.model_dump_json(indent=2) + "\n"
            (folder / MANIFEST).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProgramError(f"the program cannot be written to {folder}: {error}") from None


def load_program(path: Path) -> Program:
    """The Program in ``path``: a ``.py`` file that defines ModelNew, or a folder with ``program.py``.

    Symbolic links, hidden files and files of other kinds are refused or left out. Raises ProgramError.
    """
    if path.is_file():
        if path.suffix != ".py":
            raise ProgramError(f"{path} is not a program: give a .py file that defines ModelNew, or a folder")
        program = Program(files={ENTRY: _read(path)})
    elif path.is_dir():
        program = _load_folder(path)
    else:
        raise ProgramError(f"there is no program at {path}")
    validate(program)
    return program


def parse_manifest(text: str) -> Manifest:
    """A Manifest from its JSON text. Raises ProgramError that names the field which is wrong."""
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{MANIFEST} is not valid JSON: {error}") from None
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = [f"{_place(raw, e['loc'])}: {e['msg']}" for e in error.errors()[:5]]
        raise ProgramError(f"{MANIFEST} is wrong: {'; '.join(problems)}") from None


def _load_folder(folder: Path) -> Program:
    files: dict[str, str] = {}
    manifest: Manifest | None = None
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in [*folders, *sorted(names)]:
            path = Path(here) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise ProgramError(f"{relative} in {folder} is a symbolic link; a program holds plain files only")
            if path.is_dir() or name.startswith(".") or path.suffix not in SUFFIXES:
                continue
            if relative == MANIFEST:
                manifest = parse_manifest(_read(path))
            elif relative not in GENERATED:
                check_path(relative)
                files[relative] = _read(path)
            if len(files) > MAX_FILES:
                raise ProgramError(f"{folder} holds more than {MAX_FILES} source files; is it a program's folder?")
    return Program(files=files, manifest=manifest)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProgramError(f"{path} has {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are allowed")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"{path} cannot be read: {error}") from None


def _place(raw: Any, location: tuple[int | str, ...]) -> str:
    """``launchers[2] (softmax).arguments[0] (x).dtype`` for a pydantic location."""
    text, value = "", raw
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
        if isinstance(part, int) and isinstance(value, dict) and isinstance(value.get("name"), str):
            text += f" ({value['name']})"
    return text or "manifest"
