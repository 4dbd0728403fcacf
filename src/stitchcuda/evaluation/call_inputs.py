"""The inputs of a runner's calls: tensors made from what the oracle has put into the shared buffer, at addresses that
change or stay, with NaN behind their ends. torch and the standard library only; the runner loads it by path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import ModuleType

LARGE_INPUTS = 1 << 30
"""Bytes of inputs from which on two of them are not held at once."""

BUSY_CYCLES = 40_000_000
"""At least, for which the current stream is busy before an ordered call: 20 ms of a clock of 2 GHz. The call has been
made, and its outputs are waited for, before that is over; so it is twice as long as the call before where that is
longer."""

BUSY_MOST = 50
"""Times that, at most"""

RED_ZONE = 64
"""Elements behind each floating input that hold NaN."""


class CallInputs:
    """The inputs of the present call, and where they came from."""

    def __init__(self, layout: ModuleType, shared: torch.Tensor, place: str, *, guard: bool) -> None:
        """``layout``: that module, loaded by path; ``shared``: the buffer, uint8; ``place``: the device of the tensors;
        ``guard``: put NaN behind them."""
        self.layout: Any = layout
        self.shared, self.place, self.guard = shared, place, guard
        self.values: list[Any] = []
        self.tensors: list[tuple[dict[str, Any], torch.Tensor]] = []

    def take(self, described: dict[str, Any], *, reuse: bool, kept: set[int]) -> None:
        """New contents; with ``reuse`` at the addresses of the last inputs where these fit and do not lie in one of the
        ``kept`` storages."""
        tensors = self._reused(described["tensors"], kept) if reuse else None
        if tensors is None:
            tensors = self._allocated(described["tensors"])
        self.values = self.layout.rebuild(described["structure"], tensors)
        self.tensors = list(zip(described["tensors"], tensors, strict=True))

    def _allocated(self, entries: list[dict[str, Any]]) -> list[torch.Tensor]:
        """New tensors; while they are made the old ones stay, so that theirs are other addresses."""
        self.values = []
        if sum(entry["size"] for entry in entries) > LARGE_INPUTS:
            self.tensors = []
        tensors = [self._guarded(entry) for entry in entries]
        self.tensors = []
        return tensors

    def _guarded(self, entry: dict[str, Any]) -> torch.Tensor:
        """One input, with NaN behind its end where its type has that."""
        there = self.layout.unpack_tensor(entry, self.shared, None)
        if not there.is_floating_point() or there.element_size() < 2 or not self.guard:
            plain: torch.Tensor = self.layout.unpack_tensor(entry, self.shared, self.place)
            return plain
        count = entry["size"] // there.element_size()
        pinned = bool(entry.get("pinned")) and self.place == "cpu"
        memory = torch.empty(count + RED_ZONE, dtype=there.dtype, device=self.place, pin_memory=pinned)
        memory[count:].fill_(float("nan"))
        tensor = torch.empty(0, dtype=there.dtype, device=self.place)
        tensor.set_(memory.untyped_storage(), 0, entry["shape"], there.stride())
        row = self.shared[entry["offset"] : entry["offset"] + entry["size"]]
        memory[:count].copy_(row.view(there.dtype) if count else there.reshape(-1))
        return tensor

    def _reused(self, entries: list[dict[str, Any]], kept: set[int]) -> list[torch.Tensor] | None:
        """The last inputs' tensors with new contents; None where those do not fit."""
        old = [tensor for _, tensor in self.tensors]
        shapes = [(e["dtype"], e["shape"], e["strides"]) for e in entries]
        if shapes != [(e["dtype"], e["shape"], e["strides"]) for e, _ in self.tensors]:
            return None
        for entry, tensor in zip(entries, old, strict=True):
            same = list(tensor.shape) == entry["shape"] and tensor.untyped_storage().nbytes() >= entry["size"]
            if not same or 0 in tensor.stride() or tensor.untyped_storage().data_ptr() in kept:
                return None
        with torch.no_grad():
            for entry, tensor in zip(entries, old, strict=True):
                # Through .data, so that the version counter, too, says nothing about the contents.
                tensor.data.copy_(self.layout.unpack_tensor(entry, self.shared, None))
        return old

    def arrive(self, last: int) -> None:
        """Clear what lies on the device, then keep the current stream busy and put the contents back on it, without
        waiting for that: who reads them on another stream that does not wait for this one finds zeros. Large inputs
        stay, and those for which memory is short. ``last``: nanoseconds of the call before."""
        there = [tensor for _, tensor in self.tensors if tensor.is_cuda and 0 not in tensor.stride()]
        if sum(tensor.numel() * tensor.element_size() for tensor in there) > LARGE_INPUTS:
            there = []
        with torch.no_grad():
            # From the device, since a copy of the host's memory would be waited for.
            try:
                contents = [tensor.data.clone() for tensor in there]
            except torch.OutOfMemoryError:
                there, contents = [], []
            for tensor in there:
                tensor.data.zero_()
            torch.cuda.synchronize()
            cycles = min(max(BUSY_CYCLES, 4 * last), BUSY_MOST * BUSY_CYCLES)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            for tensor, content in zip(there, contents, strict=True):
                tensor.data.copy_(content)
                content.zero_()  # what the call allocates next may lie there

    def storages(self) -> set[int]:
        """Where the inputs' storages lie."""
        return {tensor.untyped_storage().data_ptr() for _, tensor in self.tensors}

    def write_back(self) -> None:
        """Write the inputs back where they came from, as the last call has left them; resized ones as zeros."""
        with torch.no_grad():
            for entry, tensor in self.tensors:
                place = self.shared[entry["offset"] : entry["offset"] + entry["size"]]
                bits = self.layout.raw(tensor)
                if bits.numel() == place.numel():
                    place.copy_(bits)
                else:
                    place.zero_()
