"""Nested values survive the way through flat memory, with their strides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stitchcuda.evaluation import layout, wire


def there_and_back(value: Any) -> Any:
    """Pack into a buffer of the size asked for, and unpack copies."""
    buffer = torch.zeros(layout.needed(value), dtype=torch.uint8)
    return layout.unpack(layout.pack(value, buffer, keep_strides=True), buffer, "cpu")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4, 5),
        torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(4, 6).t(),
        torch.randn(1, 5).expand(7, 5),
        torch.randn(5, 1).expand(5, 3),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(6, 8)[:, ::2],
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.arange(4, dtype=torch.int16),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(1, 1, 4),
    ],
)
def test_tensors_keep_values_and_dense_strides(tensor: torch.Tensor) -> None:
    back = there_and_back(tensor)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
    overlapping_or_gapped = tensor.stride() in {(8, 2)}
    if not overlapping_or_gapped:
        assert back.stride() == tensor.stride()


def test_nested_values() -> None:
    value = {"a": [1, 2.5, None, True, "text"], 3: (torch.ones(2), {"deep": torch.zeros(1)}), "nan": math.inf}
    back = there_and_back(value)
    assert back["a"] == value["a"]
    assert torch.equal(back[3][0], torch.ones(2))
    assert back["nan"] == math.inf
    described = layout.describe(value, [])
    assert [path for path, _ in layout.paths(described)][-1] == "nan"


def test_what_does_not_fit_is_described_without_bytes() -> None:
    packed = layout.pack(torch.ones(1000), torch.zeros(16, dtype=torch.uint8), keep_strides=False)
    assert packed["tensors"][0]["offset"] == -1


@pytest.mark.parametrize(
    "change",
    [{"offset": 10_000}, {"size": 10_000}, {"shape": [-1]}, {"dtype": "load"}, {"offset": 3}, {"shape": [100_000]}],
)
def test_a_forged_description_is_refused(change: dict[str, Any]) -> None:
    buffer = torch.zeros(1024, dtype=torch.uint8)
    packed = layout.pack(torch.ones(4), buffer, keep_strides=False)
    packed["tensors"][0] |= change
    with pytest.raises((ValueError, RuntimeError)):
        layout.unpack(packed, buffer, None)


def test_records_survive_and_foreign_bytes_do_not() -> None:
    command = wire.Command(wire.Op.CALL, call=3, token=2**63 + 1, flags=wire.HOLD, argument=-1)
    assert wire.Command.unpack(command.pack()) == command
    reply = wire.Reply(wire.Op.CALL, wire.Code.OK, 3, 5, wall_ns=10, device_ns=20, peak_device=1, peak_host=2)
    assert wire.Reply.unpack(reply.pack()) == reply
    with pytest.raises(ValueError, match="not a reply"):
        wire.Reply.unpack(bytes(wire.REPLY.size))


def test_regions_do_not_overlap_and_impossible_lengths_are_refused() -> None:
    arena = wire.Arena(setup=100, structure=5000, report=64, inputs=1, outputs=4096, state=0)
    ends = 0
    for offset, size in arena.offsets.values():
        assert offset >= ends
        assert offset % wire.PAGE == 0
        ends = offset + size
    assert arena.total >= ends
    memory = memoryview(bytearray(arena.total))
    wire.put_text(memory, arena, "report", '{"a": 1}')
    assert wire.get_text(memory, arena, "report") == '{"a": 1}'
    with pytest.raises(ValueError, match="do not fit"):
        wire.put_text(memory, arena, "report", "x" * 100)
    offset, _ = arena.offsets["report"]
    memory[offset : offset + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(ValueError, match="claims"):
        wire.get_text(memory, arena, "report")
