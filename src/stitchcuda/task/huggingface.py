"""KernelBench's level 4: models of Hugging Face's transformers from their configurations, with random weights.

The benchmark's sources ask for ``from_pretrained``, which downloads a configuration and weights. Here nothing is: the
configuration is written into the source, where it is known, and the model is built from it. Nothing is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from stitchcuda import syntax
from stitchcuda.errors import TaskError, ToolMissing

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "openai-community/gpt2": ("gpt2", {}),
    "facebook/bart-large": ("bart", {}),
    "google/bigbird-roberta-base": ("big_bird", {}),
    "google/electra-small-discriminator": ("electra", {}),
    "facebook/opt-1.3b": (
        "opt",
        {
            "hidden_size": 2048,
            "word_embed_proj_dim": 2048,
            "ffn_dim": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
        },
    ),
    "EleutherAI/gpt-neo-2.7B": (
        "gpt_neo",
        {
            "hidden_size": 2560,
            "num_layers": 32,
            "num_heads": 20,
            "attention_types": [[["global", "local"], 16]],
        },
    ),
}
"""Model type and what differs from that type's defaults in transformers, which are one model's of each family."""

FOLDER_VARIABLE = "STITCHCUDA_HF_CONFIGS"
"""Names a folder with ``ORG/NAME/config.json`` of further models."""


def offline(source: str, where: str) -> str:
    """``source`` with models from configurations instead of downloads; unchanged where it downloads nothing.

    Raises ToolMissing without transformers, TaskError where a model's configuration is not known here, or where the
    source is not of the benchmark's form.
    """
    if "from_pretrained" not in source:
        return source
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return source
    if not any(isinstance(node, ast.ImportFrom) and node.module == "transformers" for node in tree.body):
        return source
    if importlib.util.find_spec("transformers") is None:
        raise ToolMissing(f"{where} is a model of Hugging Face's transformers; pip install transformers")
    return rewritten(tree, where)


def rewritten(tree: ast.Module, where: str) -> str:
    """The text of a source that builds its model from a configuration. Raises TaskError as ``offline`` does."""
    tree = _Offline(_constants(tree), where).visit(tree)
    if "from_pretrained" in ast.unparse(tree):
        raise TaskError(
            f"{where} calls from_pretrained in a way that is not known, so it would download; expected "
            "AutoConfig.from_pretrained(NAME) and AutoModel...from_pretrained(NAME, config=CONFIG)"
        )
    _without_arguments(tree)
    tree.body.append(syntax.parse('MODE = "eval"').body[0])  # what from_pretrained leaves a model in
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def configuration(name: str) -> tuple[str, dict[str, Any]]:
    """Model type and settings of the model called ``name``. Raises TaskError where they are not known offline."""
    given = _given(name)
    if given is not None:
        return given
    if name in CONFIGURATIONS:
        return CONFIGURATIONS[name]
    raise TaskError(
        f"the configuration of '{name}' is not known without the network. Put its config.json into "
        f"{name}/config.json of a folder and name that folder in {FOLDER_VARIABLE} (no weights are needed)."
    )


def _given(name: str) -> tuple[str, dict[str, Any]] | None:
    """From the user's folder of configurations, or from what transformers has downloaded before."""
    places: list[Path] = []
    if folder := os.environ.get(FOLDER_VARIABLE):
        places.append(Path(folder).expanduser() / name / "config.json")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    places += sorted((home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    for path in places:
        if not path.is_file():
            continue
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
            kind = str(settings.pop("model_type"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TaskError(f"{path} is no model's configuration: {error}") from None
        dropped = ("architectures", "transformers_version", "_name_or_path", "torch_dtype", "dtype", "auto_map")
        return kind, {key: value for key, value in settings.items() if key not in dropped}
    return None


def _constants(tree: ast.Module) -> dict[str, str]:
    """Strings that names are bound to at the module's top."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


class _Offline(ast.NodeTransformer):
    """Replaces both calls that download."""

    def __init__(self, constants: dict[str, str], where: str) -> None:
        self._constants, self._where = constants, where

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if not (isinstance(function, ast.Attribute) and function.attr == "from_pretrained"):
            return node
        owner = ast.unparse(function.value)
        if owner == "AutoConfig" and len(node.args) == 1 and not node.keywords:
            return self._config(node.args[0])
        config = next((keyword.value for keyword in node.keywords if keyword.arg == "config"), None)
        if owner.startswith("AutoModel") and config is not None and len(node.keywords) == 1:
            return _call(f"{owner}.from_config", [config])
        return node

    def _config(self, argument: ast.expr) -> ast.Call:
        name = argument.value if isinstance(argument, ast.Constant) else self._constants.get(ast.unparse(argument))
        if not isinstance(name, str):
            raise TaskError(f"{self._where}: which model {ast.unparse(argument)} names cannot be told from the text")
        kind, settings = configuration(name)
        call = _call("AutoConfig.for_model", [ast.Constant(kind)])
        for key, value in settings.items():
            call.keywords.append(ast.keyword(key, syntax.parse_expression(repr(value)).body))
        return call


def _call(function: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(syntax.parse_expression(function).body, arguments, [])


def _without_arguments(tree: ast.Module) -> None:
    """Let Model take what the module names anyway, so that its constructor has no argument that is no plain value."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    given = functions.get("get_init_inputs")
    last = given.body[-1] if given is not None else None
    if model is None or not isinstance(last, ast.Return) or not isinstance(last.value, ast.List):
        return
    names = [ast.unparse(element) for element in last.value.elts]
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            taken = [argument.arg for argument in node.args.args[1:]]
            if taken == names:
                node.args.args = node.args.args[:1]
                last.value = ast.List([], ast.Load())
