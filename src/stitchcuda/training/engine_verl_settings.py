"""Settings of the engine verl: its environment, its cluster, and what of it this package's own settings do not say.

The section ``verl`` of ``training.config``; how verl itself is told is in ``engine_verl_config``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class VerlSettings(BaseModel):
    """Where verl and the GPUs that it trains on are; where programs are measured is told apart from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str = Field(default="python", description="interpreter of the environment that has verl; not ours")
    nodes: int = Field(default=1, ge=1, description="nodes that train")
    gpus: int = Field(default=8, ge=1, description="GPUs of each that train")
    ray: str = Field(default="", description="address of the Ray cluster that trains; '' starts one on this machine")
    training_gpus: str = Field(default="", description="CUDA_VISIBLE_DEVICES of verl, where it starts its own Ray")
    benchmark_gpus: str = Field(
        default="", description="CUDA_VISIBLE_DEVICES of measuring, where that is on this machine"
    )
    endpoint: str = Field(
        default="", description="a reward server that runs already; nothing is measured from here then"
    )
    token_file: str = Field(default="", description="its token")
    host: str = Field(
        default="", description="address at which nodes that train reach this one; '' for one node: loopback"
    )
    reward_workers: int = Field(default=2, ge=1, description="verl's processes that ask for rewards; they only wait")
    rollout: Literal["vllm", "sglang"] = Field(default="vllm", description="what samples")
    engine: Literal["fsdp", "fsdp2"] = Field(default="fsdp2", description="how weights are shared out")
    offload: bool = Field(default=True, description="keep weights and optimiser in host memory while others work")
    sequence_parallel: int = Field(default=1, ge=1, description="GPUs that share one sequence (Ulysses)")
    tensor_parallel: int | None = Field(
        default=None, ge=1, description="GPUs that share one copy of the model in sampling; None: grpo.vllm_parallel"
    )
    memory: float = Field(
        default=0.6, gt=0, lt=1, description="share of a GPU's memory for sampling; 0.35 as published"
    )
    refill: bool = Field(
        default=False, description="sample anew where a whole group has no reward, instead of stopping"
    )
    more: dict[str, Any] = Field(
        default_factory=dict, description="verl's own settings by dotted name, over all of these"
    )
