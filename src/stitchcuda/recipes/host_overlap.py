"""Recipe: host-resident inputs go to the device through pinned memory in chunks, packing overlapped with sending."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter, TargetKind
from stitchcuda.recipes.cuda_graph import flat_inputs
from stitchcuda.recipes.normalise import op_name, tensor

PAGEABLE = 1.0e10
PINNED = 4.0e10
"""Typical copy rates from pageable and pinned host memory, bytes per second; only for the prediction."""

RUNTIME = '''
class _HostInput:
    """Sends one host tensor to the device: chunks are packed into pinned memory while the one before is sent."""

    chunk = 1 << 20

    def __init__(self, like):
        self.pinned = torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)
        self.sent = torch.cuda.Event()

    def __call__(self, value):
        if value.is_pinned() or not value.is_contiguous():
            return value.to("cuda")
        result = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        source, target = value.view(-1), result.view(-1)
        self.sent.synchronize()
        for begin in range(0, source.numel(), self.chunk):
            part = slice(begin, begin + self.chunk)
            self.pinned[part].copy_(source[part])
            target[part].copy_(self.pinned[part], non_blocking=True)
        self.sent.record()
        return result


def _send(owner, name, value):
    """``value`` on the device, through the pinned memory kept for this input."""
    if name not in owner._host_inputs:
        owner._host_inputs[name] = _HostInput(value)
    return owner._host_inputs[name](value)

'''


class HostOverlap(Recipe):
    """Applies on cuda to inputs in host memory that forward only moves to the device.

    The move becomes chunks through a pinned buffer, so that the copy runs at the bus's rate. What is cast on the
    device stays cast there, so that the narrow type is what is sent.
    """

    name: ClassVar[str] = "host_overlap"
    title: ClassVar[str] = "Send host-resident inputs through pinned memory, packing overlapped with sending"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 15

    def apply(self, rewriter: Rewriter) -> None:
        """Take every such move out of the graph."""
        captured = rewriter.captured
        if captured.device != "cuda" or captured.mutates_inputs or not flat_inputs(rewriter):
            return
        for node in captured.inputs:
            value = tensor(node)
            if node is None or value is None or value.device.type != "cpu" or not value.is_contiguous():
                continue
            if node.users and all(self._moves(user) for user in node.users):
                self._stage(rewriter, node, value)

    def _moves(self, node: fx.Node) -> bool:
        value, before = tensor(node), tensor(node.args[0]) if node.args else None
        if op_name(node) not in ("to", "_to_copy") or value is None or before is None:
            return False
        return value.device.type == "cuda" and value.dtype == before.dtype and value.stride() == before.stride()

    def _stage(self, rewriter: Rewriter, node: fx.Node, value: torch.Tensor) -> None:
        moves = list(node.users)
        node.meta["val"] = moves[0].meta["val"]
        for move in moves:
            rewriter.replace(move, node)
        rewriter.staged.add(node)
        size = value.numel() * value.dtype.itemsize
        seconds = size / PAGEABLE - size / PINNED
        rewriter.add_gain(Gain(self.name, "inputs sent through pinned memory", seconds, 0, 0, ("to",)))
