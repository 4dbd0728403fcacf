"""Processes that train one model together, each with a GPU of its own: every one takes an equal share of a step's
prompts, samples and evaluates them, and all make the same update from the sum of their gradients.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

Item = TypeVar("Item")

PATIENCE = datetime.timedelta(minutes=3)
"""How long a process waits for the others: a step takes seconds, and whoever is not there by then has died."""


class Ranks:
    """This process among ``world`` of them. Alone by default, and then no process group is needed."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self._objects: Any = None

    @classmethod
    def join(cls, rank: int, world: int, port: int, device: torch.device) -> Ranks:
        """Meet the others on this machine: gradients by NCCL on GPUs and by gloo elsewhere, everything else by gloo."""
        found = cls(rank, world)
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world,
            timeout=PATIENCE,
        )
        found._objects = distributed.new_group(backend="gloo", timeout=PATIENCE)
        return found

    def leave(self) -> None:
        """End the process group."""
        if self.world > 1:
            distributed.destroy_process_group()

    def part(self, items: Sequence[Item]) -> list[Item]:
        """This process's share: contiguous, so that shares in the order of ranks are the whole. Raises ValueError where
        they cannot be equal."""
        if len(items) % self.world:
            raise ValueError(f"{len(items)} prompts cannot be shared out equally among {self.world} processes")
        each = len(items) // self.world
        return list(items[self.rank * each : (self.rank + 1) * each])

    def gather(self, mine: Item) -> list[Item]:
        """What every process has, in the order of ranks."""
        if self.world == 1:
            return [mine]
        everyone: list[Any] = [None] * self.world
        distributed.all_gather_object(everyone, mine, group=self._objects)
        return everyone

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by the sum over all processes; one that is missing counts as zeros."""
        if self.world == 1:
            return
        known = list(parameters)
        for parameter in known:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in known if parameter.grad is not None])
        distributed.all_reduce(flat)
        at = 0
        for parameter in known:
            assert parameter.grad is not None
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


ALONE = Ranks()
