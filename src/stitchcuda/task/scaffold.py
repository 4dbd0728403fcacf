"""Write a task file for a model in the user's own package; what cannot be known is marked to be filled in."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcuda.errors import TaskError

MARK = "FILL IN"
"""Stands in a comment at every place that the user should look at."""


@dataclass(frozen=True)
class Scaffold:
    """A task file's text, and what its user should still look at, one sentence each."""

    source: str
    left: list[str]


def scaffold(reference: str, *, timeout_s: float = 120) -> Scaffold:
    """The task file for ``MODULE:CLASS``, or ``path/to/file.py:CLASS``.

    Imports the class in a process of its own, with the current folder importable. Raises TaskError when that
    fails, or when the class is no torch.nn.Module.
    """
    module, separator, name = reference.rpartition(":")
    if not separator or not module or not name.isidentifier():
        raise TaskError(f"{reference!r} is not MODULE:CLASS, such as mypackage.models:Decoder")
    folder = str(Path.cwd())
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            raise TaskError(f"there is no file {module!r}")
        folder, module = _importable(path)
    command = [sys.executable, "-m", "stitchcuda.task.introspect", module, name, folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise TaskError(f"importing {module} took longer than {timeout_s:g} s") from None
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TaskError(f"importing {module} ended its process: {last}") from None
    if "error" in facts:
        raise TaskError(f"{reference} cannot be used: {facts['error']}")
    return Scaffold(_source(module, name, facts), _left(facts))


def _importable(path: Path) -> tuple[str, str]:
    """The folder and the dotted name that a file is imported by: from above the packages that it lies in."""
    folder, module = path.parent, path.stem
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, module = folder.parent, f"{folder.name}.{module}"
    return str(folder), module.removesuffix(".__init__")


def _source(module: str, name: str, facts: dict[str, Any]) -> str:
    lines = [f'"""Task: speed up ``{module}:{name}``."""', ""]
    if facts["folder"] is not None:
        lines += ["import sys", "", f"sys.path.insert(0, {facts['folder']!r})", ""]
    lines += ["import torch", f"import {module} as package", ""]
    lines += ['MODE = "eval"  # "train" for a model that is called in training mode', ""]
    init = facts["init"]
    if any(a["keyword"] for a in init):
        lines += [
            "",
            f"class Model(package.{name}):",
            '    """The model with its keyword-only arguments filled in."""',
            "",
            "    def __init__(self):",
            "        super().__init__(",
            *(f"            {a['name']}={_value(a)},{_note(a)}" for a in init),
            "        )",
            "",
        ]
        init = []
    else:
        lines += [f"Model = package.{name}", ""]
    lines += ["", "def get_inputs():", '    """Arguments of forward; other values, same shapes, on every call."""']
    lines += ["    return [", *(f"        {_value(a)},{_note(a)}" for a in facts["forward"]), "    ]", ""]
    lines += ["", "def get_init_inputs():", '    """Arguments of the constructor."""']
    lines += (
        ["    return [", *(f"        {_value(a)},{_note(a)}" for a in init), "    ]"] if init else ["    return []"]
    )
    return "\n".join(lines) + "\n"


def _value(argument: dict[str, Any]) -> str:
    guess: str | None = argument["guess"]
    if guess is None:
        return "..."
    return f"package.{guess}" if guess.endswith("()") else guess


def _note(argument: dict[str, Any]) -> str:
    kind = f": {argument['annotation']}" if argument["annotation"] else ""
    state = "" if argument["guess"] is None else " (guessed)"
    return f"  # {MARK}{state} {argument['name']}{kind}"


def _left(facts: dict[str, Any]) -> list[str]:
    left = []
    for where, arguments in (("the constructor", facts["init"]), ("forward", facts["forward"])):
        unknown = [a["name"] for a in arguments if a["guess"] is None]
        guessed = [f"{a['name']} = {a['guess']}" for a in arguments if a["guess"] is not None]
        if unknown:
            left.append(f"fill in {', '.join(unknown)} of {where}")
        if guessed:
            left.append(f"check the guesses for {where}: {', '.join(guessed)}")
    if facts["problem"]:
        left.append(facts["problem"])
    return left
