"""The stock accelerations every Program is compared with: CUDA graphs, torch.compile and another memory layout around
the reference. Runs in a
trusted runner; torch and the standard library only.

Outputs of graph-backed variants are cloned, since outputs must outlive later calls and fresh inputs are copied in: both
are paid for, as a user would.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

MODES = {
    "compile": "default",
    "compile_reduce_overhead": "reduce-overhead",
    "compile_max_autotune": "max-autotune",
}


def wrap(model: nn.Module, variant: str) -> Callable[..., Any]:
    """The model behind one stock option; ValueError for an unknown one."""
    if variant == "eager":
        return model
    if variant == "cuda_graph":
        return Graphed(model)
    if variant == "channels_last":
        return ChannelsLast(model)
    if variant not in MODES:
        raise ValueError(f"unknown baseline {variant!r}")
    settle()
    compiled = torch.compile(model, mode=MODES[variant])
    if variant == "compile" or not torch.cuda.is_available():
        return compiled

    def call(*inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return pytree.tree_map_only(torch.Tensor, torch.clone, compiled(*inputs))

    return call


def settle() -> None:
    """Inductor's settings, which it reads from the environment when it is imported: maybe before that was complete.

    Its precompiled header is off: that is kept outside the cache, and costs seven seconds in each new process.
    """
    from torch._inductor import config

    config.cpp_cache_precompile_headers = False
    config.compile_threads = int(os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1"))


LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions."""


class ChannelsLast:
    """The model with its images and their weights in the channels-last layout; inputs are converted at every call."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = relaid(tensor.data)  # in place, so that the tensors that are watched stay the module's

    def __call__(self, *inputs: Any) -> Any:
        return self.model(*pytree.tree_map_only(torch.Tensor, relaid, inputs))


def relaid(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the channels-last layout, where a tensor has one."""
    layout = LAYOUTS.get(tensor.dim())
    if layout is None or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=layout)


class Graphed:
    """The model captured at its first call and replayed afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[torch.Tensor] = []
        self.outputs: Any = None
        self.structure: Any = None

    def capture(self, inputs: tuple[Any, ...]) -> None:
        """Warm up on a side stream, then record."""
        leaves, self.structure = pytree.tree_flatten(inputs)
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        arguments = pytree.tree_unflatten(static, self.structure)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.model(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.outputs = self.model(*arguments)
        self.inputs = [leaf for leaf in static if isinstance(leaf, torch.Tensor)]
        self.graph = graph

    def __call__(self, *inputs: Any) -> Any:
        if self.graph is None:
            self.capture(inputs)
        assert self.graph is not None
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for static, fresh in zip(self.inputs, leaves, strict=True):
            static.copy_(fresh)
        self.graph.replay()
        return pytree.tree_map_only(torch.Tensor, torch.clone, self.outputs)
