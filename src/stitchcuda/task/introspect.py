"""The process that looks at a user's class for ``stitchcuda init`` and prints JSON.

``python -m stitchcuda.task.introspect MODULE CLASS FOLDER``: imports the class, guesses constructor arguments
and inputs by name, annotation and first layer, and keeps those with which the model runs. Standard library
and torch; started by ``task.scaffold`` so that a broken package cannot harm the command.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

SIZES = {
    "vocab": 1000,
    "classes": 10,
    "heads": 4,
    "layers": 2,
    "depth": 2,
    "kernel": 3,
    "stride": 1,
    "padding": 1,
    "groups": 1,
    "tokens": 128,
    "length": 128,
    "seq": 128,
    "max": 128,
    "in_channels": 3,
    "channels": 32,
    "hidden": 256,
    "width": 64,
    "dim": 64,
    "features": 64,
    "size": 64,
}
"""Guesses for whole numbers whose name holds the word, first hit first; 8 for other names."""

TENSOR_WORDS = ("Tensor", "tensor", "ndarray")


def main() -> None:
    """Look and print; whatever goes wrong is ``{"error": sentence}``."""
    module, name, folder = sys.argv[1:4]
    if folder:
        sys.path.insert(0, folder)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            result = look(module, name)
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))


def look(module: str, name: str) -> dict[str, Any]:
    """What is needed to write the task file. Raises what importing raises."""
    import torch

    place = importlib.import_module(module)
    cls = getattr(place, name, None)
    if cls is None:
        classes = [n for n, v in vars(place).items() if isinstance(v, type) and issubclass(v, torch.nn.Module)]
        return {"error": f"{module} has no {name}; its modules are: {', '.join(classes) or 'none'}"}
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        return {"error": f"{module}:{name} is not a torch.nn.Module class"}
    construct = [argument(p) for p in parameters(cls.__init__)]
    forward = [argument(p) for p in parameters(cls.forward)]
    file = getattr(place, "__file__", None)
    root = Path(file).resolve().parents[module.count(".") + (Path(file).name == "__init__.py")] if file else None
    installed = root is None or "site-packages" in root.parts or "dist-packages" in root.parts
    result: dict[str, Any] = {
        "folder": None if installed else str(root),
        "init": construct,
        "forward": forward,
        "problem": "",
    }
    try:
        torch.manual_seed(0)
        model = cls(
            *(evaluate(a, place) for a in construct if not a["keyword"]),
            **{a["name"]: evaluate(a, place) for a in construct if a["keyword"]},
        ).eval()
    except Exception as error:
        result["problem"] = f"with the guessed arguments the constructor raises {type(error).__name__}: {error}"
        return result
    result["problem"] = try_inputs(model, forward)
    return result


def parameters(function: Any) -> list[inspect.Parameter]:
    """Parameters without defaults, less ``self`` and the variadic ones."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, SyntaxError):  # an annotation that only a type checker can resolve
        signature = inspect.signature(function)
    found = list(signature.parameters.values())[1:]
    return [p for p in found if p.default is inspect.Parameter.empty and p.kind not in variadic]


def argument(parameter: inspect.Parameter) -> dict[str, Any]:
    """One argument with a first guess as source text; None where there is nothing to go by."""
    annotation = parameter.annotation
    text = "" if annotation is inspect.Parameter.empty else getattr(annotation, "__name__", str(annotation))
    return {
        "name": parameter.name,
        "annotation": text,
        "keyword": parameter.kind is inspect.Parameter.KEYWORD_ONLY,
        "guess": guess(parameter.name, text, annotation),
    }


def guess(name: str, text: str, annotation: Any) -> str | None:
    """Source text of a plausible value."""
    if text.split("[")[0].split(".")[-1] in ("int", "float", "bool", "str", ""):
        if text.endswith("bool") or name.startswith(("use_", "is_", "with_")):
            return "False"
        if text.endswith("str"):
            return None
        if text.endswith("float") or name in ("eps", "epsilon", "dropout", "p", "alpha"):
            return {"eps": "1e-5", "epsilon": "1e-5", "dropout": "0.0", "p": "0.0"}.get(name, "1.0")
        return str(next((size for word, size in SIZES.items() if word in name.lower()), 8))
    if isinstance(annotation, type) and annotation.__module__ != "builtins":
        try:
            annotation()
        except Exception:
            return None
        return f"{annotation.__name__}()"
    return None


def evaluate(argument: dict[str, Any], place: Any) -> Any:
    """The guess as a value. Raises ValueError without one."""
    if argument["guess"] is None:
        raise ValueError(f"no value is known for {argument['name']} ({argument['annotation'] or 'no annotation'})")
    return eval(argument["guess"], vars(place))


def candidates(model: Any) -> list[str]:
    """Source texts of tensors that the model's first layer could take."""
    from torch import nn

    found: list[str] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            found.append(f"torch.randint(0, {module.num_embeddings}, (2, 64))")
        elif isinstance(module, nn.Conv2d):
            found += [f"torch.randn(2, {module.in_channels}, {size}, {size})" for size in (64, 224, 32)]
        elif isinstance(module, nn.Conv1d):
            found.append(f"torch.randn(2, {module.in_channels}, 256)")
        elif isinstance(module, nn.Conv3d):
            found.append(f"torch.randn(2, {module.in_channels}, 16, 32, 32)")
        elif isinstance(module, nn.Linear):
            found += [f"torch.randn(8, {module.in_features})", f"torch.randn(2, 64, {module.in_features})"]
        elif isinstance(module, nn.LayerNorm):
            found.append(f"torch.randn(2, 64, {', '.join(map(str, module.normalized_shape))})")
        elif isinstance(module, nn.BatchNorm2d):
            found.append(f"torch.randn(2, {module.num_features}, 32, 32)")
        elif isinstance(module, nn.RNNBase):
            found.append(f"torch.randn(2, 64, {module.input_size})")
        if len(found) >= 8:
            break
    sizes = sorted({p.shape[-1] for p in model.parameters() if p.dim()}, reverse=True)[:2]
    found += [f"torch.randn(8, {size})" for size in sizes] + ["torch.randn(8, 64)", "torch.randn(2, 64, 64)"]
    return list(dict.fromkeys(found))


def try_inputs(model: Any, forward: list[dict[str, Any]]) -> str:
    """Find inputs with which the model runs and leave them as guesses; a sentence when there are none."""
    import torch

    tensors = [a for a in forward if not a["annotation"] or any(word in a["annotation"] for word in TENSOR_WORDS)]
    if not tensors:
        return ""
    last = ""
    for text in candidates(model):
        for a in tensors:
            a["guess"] = text
        try:
            with torch.no_grad():
                model(*(eval(a["guess"] or "None", {"torch": torch}) for a in forward))
        except Exception as error:
            last = last or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        return ""
    for a in tensors:
        a["guess"] = None
    return f"no guessed input runs (the first one raised {last})"


if __name__ == "__main__":
    main()
