"""From what a user names (a path, ``kernelbench:LEVEL/ID``) to a Task; nothing of the source runs here.

Errors that the text alone shows (syntax, missing names, bad settings) are found here, by AST. What only
running can show is ``task.inspect``'s business.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from stitchcuda import syntax
from stitchcuda.errors import TaskError
from stitchcuda.task.derive import with_checkpoint, with_inputs, with_submodule
from stitchcuda.task.huggingface import offline
from stitchcuda.task.kernelbench import read_kernelbench
from stitchcuda.task.model import Mode, Precision, Residence, Target, Task
from stitchcuda.task.source import bound_names, literal_string

KERNELBENCH = "kernelbench:"


def load_task(
    reference: str,
    *,
    target: Target,
    root: Path | None = None,
    precision: Precision | None = None,
    inputs: Path | None = None,
    checkpoint: Path | None = None,
    submodule: str | None = None,
) -> Task:
    """The Task that ``reference`` names: a path to a ``.py`` file, or ``kernelbench:LEVEL/ID``.

    ``root`` is the KernelBench checkout or Parquet data set (default: the environment's KERNELBENCH_ROOT).
    ``precision`` overrides the source's own. ``inputs`` (real inputs saved by ``torch.save``), ``checkpoint``
    (real weights) and ``submodule`` (a part of the model, by its dotted name) rewrite the source, so that
    everything downstream sees an ordinary Task.

    Raises TaskError for anything the text or those files show to be wrong, ToolMissing for a model of a library that
    is not installed.
    """
    name, source, search_path = _read(reference, root)
    check_source(source, reference, needs_inputs=inputs is None)
    if checkpoint is not None:
        source = with_checkpoint(source, checkpoint)
        name = f"{name}_{safe_name(checkpoint.stem)}"
    if submodule is not None:
        if inputs is not None:
            raise TaskError("--inputs and --submodule cannot be combined: a submodule's inputs come from its model")
        source = with_submodule(source, submodule)
        name = f"{name}_{safe_name(submodule)}"
    if inputs is not None:
        source = with_inputs(source, inputs)
    tree = syntax.parse(source)
    settings = {
        "MODE": _setting(tree, "MODE", get_args(Mode), reference),
        "RESIDENCE": _setting(tree, "RESIDENCE", get_args(Residence), reference),
        "PRECISION": _setting(tree, "PRECISION", get_args(Precision), reference),
    }
    return Task.model_validate(
        {
            "name": name,
            "origin": reference,
            "source": source,
            "target": target,
            "precision": precision or settings["PRECISION"] or "fp32",
            "mode": settings["MODE"],
            "residence": settings["RESIDENCE"] or "device",
            "search_path": search_path,
        }
    )


def read_source(reference: str, root: Path | None = None) -> str:
    """The text that ``reference`` names, whatever it is. Raises TaskError and ToolMissing as ``load_task`` does."""
    return _read(reference, root)[1]


def check_source(source: str, where: str, *, needs_inputs: bool = True) -> None:
    """Raise TaskError for a syntax error or for required names that the source never binds.

    ``get_input_cases`` stands in for ``get_inputs``.
    """
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        text = (getattr(error, "text", "") or "").strip()
        at = f" in line {line}" if line else ""
        raise TaskError(
            f"{where} is not valid Python: {getattr(error, 'msg', error)}{at}{f': {text}' if text else ''}"
        ) from None
    names = bound_names(tree)
    missing = [name for name in ("Model", "get_init_inputs") if name not in names]
    if needs_inputs and not {"get_inputs", "get_input_cases"} & names.keys():
        missing.append("get_inputs")
    if missing:
        meaning = {
            "Model": "Model (the torch.nn.Module to speed up)",
            "get_inputs": "get_inputs() (a list of forward's arguments)",
            "get_init_inputs": "get_init_inputs() (a list of the constructor's arguments, [] for none)",
        }
        raise TaskError(f"{where} does not define {', nor '.join(meaning[name] for name in missing)}")


def safe_name(text: str) -> str:
    """``text`` with everything but letters, digits, ``_`` and ``-`` replaced, at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:80] or "task"


def _read(reference: str, root: Path | None) -> tuple[str, str, str | None]:
    """Name, source and the folder that must be importable."""
    if reference.startswith(KERNELBENCH):
        name, source = read_kernelbench(reference.removeprefix(KERNELBENCH), root)
        return name, offline(source, reference), None
    return _read_file(Path(reference))


def _read_file(path: Path) -> tuple[str, str, str | None]:
    if path.suffix != ".py":
        raise TaskError(f"{str(path)!r} is neither a .py file nor {KERNELBENCH}LEVEL/ID")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"there is no task file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task file {str(path)!r} cannot be read: {error}") from None
    return safe_name(path.stem), source, _own_folder(source, path.resolve().parent)


def _own_folder(source: str, folder: Path) -> str | None:
    """``folder`` when the source imports something that lies in it, so that it must be importable."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            base = folder / module.split(".")[0]
            if base.with_suffix(".py").is_file() or base.is_dir():
                return str(folder)
    return None


def _setting(tree: ast.Module, name: str, allowed: tuple[str, ...], where: str) -> str | None:
    try:
        value = literal_string(tree, name)
    except ValueError as error:
        raise TaskError(f"{where}: {error}, one of {', '.join(allowed)}") from None
    if value is not None and value not in allowed:
        raise TaskError(f"{where}: {name} is {value!r}; it must be one of {', '.join(allowed)}")
    return value
