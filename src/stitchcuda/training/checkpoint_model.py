"""Models on disk and in memory: what a path names, loading it, and writing weights that can be served.

A path names a model with all its weights, a LoRA adapter, or the folder of an earlier training, whose result it means.
Adapters are added to the weights in memory, so that what is trained next begins from one plain model.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcuda.errors import ToolMissing, TrainingError
from stitchcuda.training.checkpoint import ADAPTER, MODEL, STARTED, read_started
from stitchcuda.training.config import TrainConfig
from stitchcuda.training.prompts_rl import PLAIN_TEMPLATE

NEEDED = ("accelerate", "datasets", "peft", "pyarrow", "transformers", "trl")
_ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Origin:
    """Weights to begin with."""

    base: str
    """Folder or name of a model with all its weights."""
    merged: tuple[str, ...] = ()
    """Folders of adapters that are added to it, in this order."""

    @property
    def tokenizer(self) -> str:
        """Where its tokenizer is: with the last adapter that has one, else with the base."""
        for folder in reversed(self.merged):
            if (Path(folder) / "tokenizer_config.json").is_file():
                return folder
        return self.base


def require_training() -> None:
    """Raises ToolMissing where a package that training needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolMissing(f"training needs {', '.join(missing)}; install stitchcuda[train]")


def origin_of(path: str) -> Origin:
    """What a path names. Raises TrainingError where there is no model; a name that is no path is left as it is."""
    folder = Path(path)
    if (folder / STARTED).is_file():
        started = read_started(folder)
        adapter, whole = folder / ADAPTER, folder / MODEL
        if (whole / "config.json").is_file():
            return Origin(str(whole.absolute()))
        if (adapter / _ADAPTER_FILE).is_file():
            return Origin(started.base, (*started.merged, str(adapter.absolute())))
        raise TrainingError(f"{folder} holds a training that has not ended; `stitchcuda train resume {folder}` goes on")
    if (folder / _ADAPTER_FILE).is_file():
        base = json.loads((folder / _ADAPTER_FILE).read_bytes()).get("base_model_name_or_path") or ""
        if not base:
            raise TrainingError(f"{folder} is an adapter that names no base model; merge it, and give the result")
        below = origin_of(base)
        return Origin(below.base, (*below.merged, str(folder.absolute())))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise TrainingError(f"{folder} holds no model: neither config.json nor {_ADAPTER_FILE} is in it")
        return Origin(str(folder.absolute()))
    if folder.is_absolute() or path.startswith((".", "~")):
        raise TrainingError(f"there is no {path}; give a folder with a model, or the name of one")
    return Origin(path)


def load_tokenizer(origin: Origin) -> Any:
    """Its tokenizer, with a padding token and a chat template. Raises TrainingError where there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(origin.tokenizer)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{origin.tokenizer} has no tokenizer that can be read: {_first(error)}") from None
    if tokenizer.eos_token is None:
        raise TrainingError(f"the tokenizer of {origin.tokenizer} has no token that ends a reply (eos_token); set one")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    return tokenizer


def load_model(origin: Origin, config: TrainConfig) -> Any:
    """Its weights, adapters added. Weights that are trained themselves are fp32 unless ``config.weights`` says bf16
    and all of them are trained. Raises TrainingError where they cannot be read."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if config.weights == "bf16" else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(origin.base, dtype=dtype)
        for folder in origin.merged:
            model = added(model, folder)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{origin.base} cannot be loaded as a model: {_first(error)}") from None
    return model


def added(model: Any, adapter: str) -> Any:
    """The model with an adapter's update in its weights."""
    from peft import PeftModel

    # Its base is the model in hand; what the adapter's file says of it may be a folder of another machine.
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def write_merged(path: str, out: Path, weights: str = "bf16") -> Origin:
    """Write what a path names as one model with all its weights and its tokenizer.

    Raises TrainingError where ``out`` exists, or the path names no model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    origin = origin_of(path)
    if out.exists():
        raise TrainingError(f"{out} exists; give another --out")
    dtype = torch.bfloat16 if weights == "bf16" else torch.float32
    # Added up in fp32: an update may be smaller than a weight's last bf16 digit.
    model = AutoModelForCausalLM.from_pretrained(origin.base, dtype=torch.float32)
    for folder in origin.merged:
        model = added(model, folder)
    scratch = out.with_name(f".{out.name}")
    model.to(dtype).save_pretrained(scratch)
    load_tokenizer(origin).save_pretrained(scratch)
    scratch.rename(out)
    return origin


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
