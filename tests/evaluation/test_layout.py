"""Nested values survive the way through flat memory, with their strides."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from stitchcuda.evaluation import candour, layout, wire


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


class Lazy(list[Any]):
    """Claims to hold something else than it does."""

    def __iter__(self) -> Iterator[Any]:
        return iter(["computed"])


class Named(NamedTuple):
    """A tuple with names."""

    first: int
    rest: list[int]


def test_containers_are_made_plain_by_what_they_hold() -> None:
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    made = layout.plain((Lazy([1, Lazy([2])]), Named(3, [4]), ordered))
    assert made == ([1, [2]], (3, [4]), {"b": 2, "a": 1})
    assert [type(each) for each in made] == [list, tuple, dict]
    assert list(made[2]) == ["b", "a"]
    assert type(made[0][1]) is list


def late(claimed: type, made: Any) -> Any:
    """What claims to be of another class, which a look at it gives."""
    parts = {"__class__": property(lambda _: claimed), "__getattr__": lambda _, name: getattr(made, name)}
    return type("Late", (), parts)()


class Computed(float):
    """A number that is another when it is read."""

    def __float__(self) -> float:
        return 7.0


class Counted(int):
    """The same in whole numbers."""

    def __int__(self) -> int:
        return 7


class Spelled(str):
    """The same in letters."""

    def __str__(self) -> str:
        return "computed"


def test_numbers_and_texts_are_made_plain_by_what_they_hold() -> None:
    made = layout.plain({Spelled("key"): [Computed(-0.0), Counted(3), Spelled("text"), True, None]})
    assert [type(each) for each in made] == [str]
    assert [type(each) for each in made["key"]] == [float, int, str, bool, type(None)]
    assert made["key"] == [0.0, 3, "text", True, None]
    assert math.copysign(1, made["key"][0]) == -1


@pytest.mark.parametrize(("claimed", "made"), [(torch.Tensor, torch.ones(2)), (list, [1]), (float, 2.0)])
def test_what_claims_to_be_of_another_class_is_described_by_its_own(claimed: type, made: Any) -> None:
    spec = layout.describe(layout.plain(late(claimed, made)), [])
    assert spec == {"kind": "opaque", "type": f"{__name__}.Late"}


def named_like_torch() -> Any:
    """A class of tensors with the name of torch's own, for which it passes as well."""

    class Same(type(torch.Tensor)):  # type: ignore[misc]
        def __eq__(cls, other: object) -> bool:
            return True

        __hash__ = type.__hash__

    return Same("Tensor", (torch.Tensor,), {"__module__": "torch"})


def test_a_subclass_of_tensor_with_its_name_is_told_apart() -> None:
    pretender = torch.ones(2).as_subclass(named_like_torch())
    for tensor, name in [
        (torch.ones(2), "torch.Tensor"),
        (torch.nn.Parameter(torch.ones(2)), "torch.nn.parameter.Parameter"),
        (pretender, "torch.Tensor subclass"),
    ]:
        packed = layout.pack(tensor, torch.zeros(512, dtype=torch.uint8), keep_strides=False)
        assert packed["tensors"][0]["type"] == name
    seen = candour.Witness([])
    assert seen.lazy([torch.ones(2), torch.nn.Parameter(torch.ones(2))]) == []
    assert any("class" in each for each in seen.lazy([pretender]))
