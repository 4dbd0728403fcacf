"""What the oracle keeps of an export, for how long, and what comes of it where memory is short."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stitchcuda.evaluation import exported, layout, wire
from stitchcuda.evaluation.exported import same_bytes
from stitchcuda.evaluation.oracle import Oracle
from stitchcuda.evaluation.settings import TOLERANCES
from tests.evaluation.conftest import make_task

SOURCE = """
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""


class Exchange:
    """An oracle with one session, and what a runner would write there."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        task = make_task(SOURCE).model_dump()
        facts = {"training": True, "stochastic": False, "seedable": False}
        plan = self.oracle.init({"task": task, "tolerance": TOLERANCES["fp32"].model_dump()} | facts)
        self.oracle.renew({"nonce": "00" * 16})
        texts = dict.fromkeys(("setup", "structure", "report"), 1 << 16)
        arena = wire.Arena(**texts, **{region: plan[region] for region in ("inputs", "outputs", "state")})
        fd = os.memfd_create("session")
        os.truncate(fd, arena.total)
        asked = {"arena": vars(arena), "ipc": {}, "trusted": False, "flush_bytes": 0}
        self.oracle.attach({"session": 1} | asked, fd)
        self.session = self.oracle.sessions[1]
        self.calls = 0

    def take(self) -> torch.Tensor:
        """The inputs of the next call."""
        self.calls += 1
        self.oracle.fill({"call": self.calls, "label": str(self.calls), "case": None, "sessions": [1]})
        self.oracle.hand({"session": 1, "call": self.calls})
        text = wire.get_text(self.session.view, self.session.arena, "structure")
        (values,) = layout.unpack(json.loads(text), self.session.data["inputs"], "cpu")
        assert isinstance(values, torch.Tensor)
        return values

    def export(self, value: Any) -> None:
        """Write the outputs and have them copied."""
        report = layout.pack({"out": value}, self.session.data["outputs"], keep_strides=False)
        wire.put_text(self.session.view, self.session.arena, "report", json.dumps(report))
        self.oracle.freeze({"session": 1, "call": self.calls, "inputs": False})

    def check(self, *, hold: bool = False, again: bool = False) -> dict[str, Any]:
        """The verdict on them."""
        how = {"hold": hold, "again": again, "state": False, "full": False, "timed": True}
        return self.oracle.check({"session": 1, "call": self.calls} | how)

    def alive(self) -> tuple[bool, bool]:
        """Whether there is a copy to be judged, and one to be compared with what is read again."""
        return self.session.exported is not None, self.session.last is not None


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    opened = Exchange()
    yield opened
    opened.oracle.detach({"session": 1})


def test_a_copy_lives_no_longer_than_it_is_needed(exchange: Exchange) -> None:
    exchange.export(torch.relu(exchange.take()))
    assert exchange.alive() == (True, False)
    assert exchange.check(again=True)["ok"]
    assert exchange.alive() == (False, True)
    assert exchange.oracle.recheck({"session": 1})["ok"]
    assert exchange.alive() == (False, False)
    exchange.export(torch.relu(exchange.take()))
    assert exchange.check(again=True)["ok"]
    exchange.export(torch.relu(exchange.take()))
    assert exchange.alive() == (True, False)
    exchange.oracle.answer({"call": exchange.calls})
    assert exchange.alive() == (False, False)


def test_outputs_that_are_refused_are_kept_in_their_place_too(exchange: Exchange) -> None:
    exchange.take()
    exchange.oracle.keep({"session": 1})
    exchange.export(torch.zeros(3))
    assert not exchange.check()["ok"]
    assert len(exchange.session.held) == 1
    exchange.export(torch.relu(exchange.take()))
    assert exchange.check()["ok"]
    assert len(exchange.session.held) == 1
    exchange.export(torch.relu(exchange.take()))
    assert exchange.check(hold=True)["ok"]
    exchange.oracle.freeze({"session": 1, "call": exchange.calls, "inputs": False})
    assert exchange.oracle.check_held({"session": 1, "index": 1})["ok"]
    exchange.session.data["outputs"][0] ^= 1
    assert not exchange.oracle.check_held({"session": 1, "index": 1})["ok"]


def test_a_shortage_of_memory_is_no_verdict(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange.export(torch.relu(exchange.take()))
    real = layout.unpack_tensor

    def short(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(layout, "unpack_tensor", short)
    with pytest.raises(torch.OutOfMemoryError):
        exchange.check(again=True)
    monkeypatch.setattr(layout, "unpack_tensor", real)
    monkeypatch.setattr(exported, "same_bytes", short)
    with pytest.raises(torch.OutOfMemoryError):
        exchange.oracle.recheck({"session": 1})


def test_bytes_are_compared_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "CHUNK", 8)
    sizes: list[int] = []
    real = torch.equal

    def equal(one: torch.Tensor, two: torch.Tensor) -> bool:
        sizes.append(one.numel())
        return real(one, two)

    monkeypatch.setattr(torch, "equal", equal)
    kept = torch.arange(30, dtype=torch.uint8)
    assert same_bytes(kept, kept.clone())
    assert sizes == [8, 8, 8, 6]
    for place in (0, 7, 8, 29):
        now = kept.clone()
        now[place] += 1
        assert not same_bytes(kept, now)
    assert not same_bytes(kept, kept[:24])
    assert same_bytes(kept[:0], kept[:0])
