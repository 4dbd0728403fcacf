"""The state of the one module that a runner holds: the oracle's copied in, what calls change put back, and what they
change though they should not. torch and the standard library only; the runner loads it by path.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


class HeldState:
    """Of a module, once ``hold`` has seen it."""

    def __init__(self, states: ModuleType, layout: ModuleType, device: str) -> None:
        """``states`` and ``layout``: those modules, loaded by path."""
        self.states: Any = states
        self.layout: Any = layout
        self.device = device
        self.model: torch.nn.Module | None = None
        self.names: list[str] = []
        self.watch: list[tuple[str, torch.Tensor]] = []
        """What a call is known to change, by name"""
        self.saved: list[torch.Tensor] = []
        self.sums: dict[str, str] = {}

    def let_go(self) -> None:
        """Forget the module and its tensors."""
        self.model, self.watch = None, []

    def hold(self, model: torch.nn.Module, names: list[str]) -> None:
        """Watch what has these ``names``."""
        self.model, self.names = model, names
        self.find()

    def find(self) -> None:
        """Look for what is watched again, and take it as it is now for how it is before a call."""
        state = {name: tensor for name, (_, tensor) in self.states.named_state(self.model).items()}
        self.watch = [(name, state[name]) for name in self.names if name in state]
        self.saved = [tensor.detach().clone() for _, tensor in self.watch]
        self.sums = {}

    def put_back(self) -> None:
        """Undo what a call has changed."""
        with torch.no_grad():
            for (_, tensor), saved in zip(self.watch, self.saved, strict=True):
                tensor.detach().copy_(saved)

    def moved(self) -> list[str]:
        """Parameters that are not what they were the last time; what a call is known to change is put back anyway."""
        assert self.model is not None
        known = {name for name, _ in self.watch}
        parameters = {name: p for name, p in self.model.named_parameters() if name not in known}
        totals = [p.detach().sum(dtype=torch.float64).to(self.device) for p in parameters.values()]
        values = torch.stack(totals).tolist() if totals else []
        now = {name: repr(value) for name, value in zip(parameters, values, strict=True)}
        before, self.sums = self.sums, now
        return sorted(name for name, total in now.items() if before.get(name, total) != total)

    def take(self, description: dict[str, Any], shared: torch.Tensor, *, by_value: bool) -> tuple[str, list[str]]:
        """Copy the oracle's state in place, once every required name and shape is known to fit.

        ``by_value``: what has no counterpart by name goes to what holds the values that the reference's held when the
        seed had made both. Returns what does not fit, in words, and then nothing was copied; and the names that have
        no counterpart of either kind.
        """
        named = self.states.named_state(self.model)
        plan, open_ = [], []
        for entry, tensor in zip(description["entries"], description["tensors"], strict=True):
            own = named[entry["name"]][1] if entry["name"] in named else None
            if own is not None and list(own.shape) == tensor["shape"]:
                plan.append((own, tensor))
            elif entry["required"]:
                found = "is missing" if own is None else f"has shape {list(own.shape)}, not {tensor['shape']}"
                open_.append((entry, tensor, f"{entry['name']} {found}"))
        if open_ and not by_value:
            return open_[0][2], []
        unmatched = []
        if open_:
            taken = {own.data_ptr() for own, _ in plan}
            others = self.states.shares(named, [entry["origin"] for entry, _, _ in open_], taken)
            for entry, tensor, _ in open_:
                plan += [(own, tensor) for own in others[entry["origin"]]]
            unmatched = [entry["name"] for entry, _, _ in open_ if not others[entry["origin"]]]
        with torch.no_grad():
            for own, tensor in plan:
                value = self.layout.unpack_tensor(tensor, shared, None)
                own.detach().copy_(value.reshape(own.shape))
        self.find()
        return "", unmatched
