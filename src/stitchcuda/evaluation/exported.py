"""What a runner's shared memory holds for the oracle: one session's buffers, and what a call has exported, copied
before anything is computed from it. A runner can write to the shared memory at any time; what is judged must not
change while the reference works out what is right. Oracle only.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch

from stitchcuda.evaluation import buffers, layout, wire
from stitchcuda.evaluation.judging import Round, refusal
from stitchcuda.evaluation.levels import Levels

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What a description that a runner has made up raises; too deep a recursion is a RuntimeError."""


CHUNK = 1 << 26
"""Bytes compared at once: a comparison takes memory of its own."""


def same_bytes(kept: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether two rows of bytes are equal; ``now`` is brought to ``kept`` a piece at a time."""
    pieces = ((kept[at : at + CHUNK], now[at : at + CHUNK]) for at in range(0, kept.numel(), CHUNK))
    return kept.numel() == now.numel() and all(torch.equal(a, b.to(a.device)) for a, b in pieces)


@dataclass
class Exported:
    """The bytes of one export and the runner's description of them."""

    text: str
    data: torch.Tensor

    def read(self) -> tuple[Any, list[Any], list[torch.Tensor], dict[str, torch.Tensor]]:
        """Structure, descriptions and tensors of the outputs, and the exported state by name; views of the bytes.
        Raises one of ``UNREADABLE``."""
        report = json.loads(self.text)
        structure, entries = report["structure"], report["tensors"]
        fields = dict(zip([key["value"] for key in structure["keys"]], structure["items"], strict=True))
        placeholder = torch.empty(0)
        tensors = [layout.unpack_tensor(e, self.data, None) if e["offset"] >= 0 else placeholder for e in entries]
        state: dict[str, torch.Tensor] = {}
        if "state" in fields:
            keys = [key["value"] for key in fields["state"]["keys"]]
            state = {k: tensors[i["at"]] for k, i in zip(keys, fields["state"]["items"], strict=True)}
        return fields["out"], entries, tensors, state

    def bytes_of(self, entry: dict[str, Any]) -> torch.Tensor:
        """The bytes of one tensor by its description. Raises one of ``UNREADABLE``."""
        return self.data[entry["offset"] : entry["offset"] + entry["size"]]


@dataclass
class Session:
    """One runner's shared memory and what was asked of it."""

    arena: wire.Arena
    memory: Any
    view: memoryview
    data: dict[str, torch.Tensor]
    device: buffers.DeviceBuffers | None = None
    exported: Exported | None = None
    """Of the last call, as it was when the runner said that it was there"""
    changed: list[str] = field(default_factory=list)
    """Inputs that were others then than before the call"""
    held: list[Exported] = field(default_factory=list)
    keep: bool = False
    """Whether the runner keeps the outputs that are checked next, though they are not of the first calls"""
    last: Exported | None = None
    """The last outputs checked, where they are to be read again"""
    answers: list[torch.Tensor] = field(default_factory=list)
    """The reference's outputs of the call before, where they are small."""
    levels: Levels = field(default_factory=Levels)
    weighed: int = 0
    """Changes of weights since which a call was checked."""

    def freeze(self) -> None:
        """Copy what was exported; to the host where the device has no room for it."""
        self.exported = self.last = None
        live = self.data["outputs"]
        try:
            data = live.clone()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            data = live.cpu()
        # A length that is impossible makes a text that cannot be read.
        text = ""
        with contextlib.suppress(ValueError):
            text = wire.get_text(self.view, self.arena, "report")
        self.exported = Exported(text, data)

    def changed_inputs(self, this: Round) -> list[str]:
        """Paths of inputs that are not what they were, by what the runner wrote back."""
        leaves: list[torch.Tensor] = []
        names = [path for path, leaf in layout.paths(layout.describe(this.inputs, leaves)) if leaf["kind"] == "tensor"]
        changed = []
        for name, leaf, entry in zip(names, leaves, this.entries, strict=True):
            now = self.data["inputs"][entry["offset"] : entry["offset"] + entry["size"]]
            if not same_bytes(layout.raw(leaf), now):
                changed.append(name)
        return changed

    def unchanged(self, before: Exported | None, message: str) -> dict[str, Any]:
        """Whether the outputs that were exported again are what they were ``before``, described alike and to the byte;
        the verdict otherwise."""
        try:
            if before is None:
                raise ValueError("none was kept")
            again = Exported(wire.get_text(self.view, self.arena, "report"), self.data["outputs"])
            (spec, entries, _, _), (now, others, _, _) = before.read(), again.read()
            places = [leaf["at"] for _, leaf in layout.paths(spec) if leaf["kind"] == "tensor"]
            same = spec == now and all(
                entries[at] == others[at] and same_bytes(before.bytes_of(entries[at]), again.bytes_of(others[at]))
                for at in places
            )
        except torch.OutOfMemoryError:
            raise
        except UNREADABLE as problem:
            return refusal(f"the kept outputs could not be read ({problem})")
        if same:
            return {"ok": True, "message": ""}
        return refusal(message)
