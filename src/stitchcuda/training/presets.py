"""Settings to start from, by name. A file or ``--set`` changes any of them."""

from __future__ import annotations

from typing import Any

from stitchcuda.errors import TrainingError

PRESETS: dict[str, dict[str, Any]] = {
    # The published settings: rank, group, clipping, divergence, lengths and sampling; 16 prompts in two updates.
    "qwen3-32b-lora": {
        "lora": {"rank": 128, "alpha": 128},
        "lengths": {"prompt": 8192, "completion": 16384},
        "sft": {"batch": 64, "optimizer": {"rate": 2e-5, "schedule": "cosine", "warmup": 5, "micro_batch": 1}},
        "grpo": {
            "steps": 200,
            "prompts": 16,
            "group": 6,
            "updates": 2,
            "kl": 0.03,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "temperature": 0.9,
            "top_p": 0.95,
            "top_k": 20,
            "vllm_memory": 0.35,
            "optimizer": {"rate": 1e-6, "micro_batch": 1},
        },
        "held_out": {"every": 100, "rows": 50},
        "saving": {"every": 20},
    },
    # A code model of half a billion to eight billion parameters on one GPU of 24 GB or more.
    "one-gpu": {
        "lora": {"rank": 32, "alpha": 64},
        "lengths": {"prompt": 8192, "completion": 4096},
        "sft": {"batch": 32, "optimizer": {"rate": 1e-4, "schedule": "cosine", "warmup": 5, "micro_batch": 1}},
        "grpo": {
            "steps": 100,
            "prompts": 8,
            "group": 8,
            "vllm_memory": 0.3,
            "optimizer": {"rate": 1e-5, "warmup": 5, "micro_batch": 1, "gradient_clip": 0.2},
        },
        "held_out": {"every": 20, "rows": 32},
        "saving": {"every": 10},
    },
    # Shows that everything is in place, on a processor.
    "tiny-cpu": {
        "needs_gpu": False,
        "precision": "fp32",
        "weights": "fp32",
        "checkpointing": False,
        "lora": {"rank": 8, "alpha": 16},
        "lengths": {"prompt": 8192, "completion": 64},
        "sft": {"steps": 3, "batch": 4, "optimizer": {"rate": 1e-3, "schedule": "constant_with_warmup"}},
        "grpo": {"steps": 3, "prompts": 2, "group": 4, "optimizer": {"rate": 1e-3, "warmup": 0, "micro_batch": 4}},
        "held_out": {"every": 0, "rows": 4, "at_start": False, "at_end": False},
        "saving": {"every": 1},
    },
}

DEFAULT = "one-gpu"


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset. Raises TrainingError for an unknown name."""
    if name not in PRESETS:
        raise TrainingError(f"unknown preset '{name}'; there are {', '.join(PRESETS)}")
    return {**PRESETS[name], "preset": name}
