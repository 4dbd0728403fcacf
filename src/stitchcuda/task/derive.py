"""Source-to-source rewrites of a task: real inputs, real weights, a part of the model.

Each takes task source and returns task source, so that everything downstream sees an ordinary Task.
The contents of the files are hashed into the source, so that a Task's digest changes with them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from importlib import resources
from pathlib import Path
from typing import Any

from stitchcuda import syntax
from stitchcuda.errors import TaskError
from stitchcuda.task.source import bound_names


def with_inputs(source: str, path: Path) -> str:
    """``source`` with ``get_inputs`` drawing from the values saved in ``path`` by ``torch.save``.

    The file holds forward's arguments (a list or tuple, or one tensor), or a dict from case name to those.
    Raises TaskError when the file is missing or holds anything else.
    """
    digest, saved = _load(path, "--inputs")
    cases = saved if isinstance(saved, dict) else {"real": saved}
    if not cases or not all(isinstance(key, str) and _is_arguments(value) for key, value in cases.items()):
        raise TaskError(
            f"--inputs {path} holds {_describe(saved)}; expected a list of forward's arguments saved by torch.save, "
            "or a dict from case name to such a list"
        )
    return _append(source, "inputs.py.txt", PATH=repr(str(path.resolve())), DIGEST=digest)


def with_checkpoint(source: str, path: Path) -> str:
    """``source`` with every new ``Model`` loading the state dict saved in ``path``, strictly.

    A dict with the single state dict under ``state_dict``, ``model`` or ``module`` is unwrapped, and a common
    prefix ``module.`` or ``_orig_mod.`` is dropped. Raises TaskError when the file is missing or is no state
    dict; keys that do not fit are told when the model is first constructed.
    """
    digest, saved = _load(path, "--checkpoint")
    state = _state_dict(saved)
    if state is None:
        raise TaskError(f"--checkpoint {path} holds {_describe(saved)}; expected a state dict saved by torch.save")
    return _append(source, "checkpoint.py.txt", PATH=repr(str(path.resolve())), DIGEST=digest)


def with_submodule(source: str, name: str) -> str:
    """``source`` with ``Model`` being the submodule ``name`` of the former one.

    The submodule's inputs are those of its first call when the full model, with fixed weights, runs on fresh inputs.
    """
    if not all(part.isidentifier() or part.isdigit() for part in name.split(".")):
        raise TaskError(f"--submodule {name!r} is not a dotted module name such as 'layers.0.attention'")
    import ast

    statement = bound_names(syntax.parse(source))["Model"]
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        source = _rename(source, "Model", "FullModel")
    else:
        source = f"{source.rstrip()}\n\nFullModel = Model\n"
    source = _rename_function(source, "get_inputs", "get_full_inputs")
    source = _rename_function(source, "get_input_cases", "get_full_input_cases")
    return _append(source, "submodule.py.txt", NAME=repr(name))


def for_programs(source: str) -> str:
    """``source`` without what reads real inputs and weights, or runs the full model for a part's inputs.

    Programs are given inputs and weights, and are taken to where those files are not; the user's own class must stay
    as it is where one runs.
    """
    return _FOR_THE_TASK.sub("", source)


_FOR_THE_TASK = re.compile(
    r"^# Real (weights|inputs): sha256 .*?^# End of real \1\n|^# Inputs of the part: .*?^# End of inputs of the part\n",
    re.MULTILINE | re.DOTALL,
)


def _append(source: str, fragment: str, **values: str) -> str:
    text = resources.files("stitchcuda.task").joinpath("fragments", fragment).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return f"{source.rstrip()}\n\n\n{text}"


def _load(path: Path, option: str) -> tuple[str, Any]:
    """SHA-256 of the file and the value torch.load gives for it, weights only, on the host."""
    if not path.is_file():
        raise TaskError(f"{option} {path} is not a file")
    import torch

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        return digest, torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:
        try:  # files of torch.save's older format cannot be mapped
            return digest, torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            text = str(error).strip()
            reason = text.splitlines()[0].split(". ")[0] if text else type(error).__name__
            raise TaskError(
                f"{option} {path} cannot be read by torch.load with weights_only=True ({reason}); "
                "save plain tensors, numbers, lists and dicts with torch.save"
            ) from None


def _is_arguments(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, list | tuple) and len(value) > 0


def _state_dict(value: Any) -> dict[str, Any] | None:
    import torch

    if not isinstance(value, dict) or not value:
        return None
    for key in ("state_dict", "model", "module"):
        if isinstance(value.get(key), dict):
            return _state_dict(value[key])
    fits = all(isinstance(key, str) for key in value) and any(isinstance(v, torch.Tensor) for v in value.values())
    return value if fits else None


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(repr(key) for key in list(value)[:5])
        return f"a dict with {len(value)} keys ({keys}{', ...' if len(value) > 5 else ''})"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _rename_function(source: str, old: str, new: str) -> str:
    return _rename(source, old, new) if old in bound_names(syntax.parse(source)) else source


def _rename(source: str, old: str, new: str) -> str:
    """Every name token ``old`` that is not an attribute becomes ``new``; strings and comments stay."""
    lines = source.splitlines(keepends=True)
    previous = ""
    hits: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string == old and previous != ".":
            hits.append(token.start)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.string
    for row, column in reversed(hits):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)
