"""Calls that nothing but the caller's stream orders: who is blamed for what, and limits of the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from stitchcuda.evaluation import wire
from stitchcuda.evaluation.calls import Calls
from stitchcuda.evaluation.poison import PERSISTING_L2_LIMIT, Poison
from stitchcuda.evaluation.runner import Runner
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.settings import EvaluationSettings

GOOD, BAD = True, False


class Scripted(Calls):
    """Calls whose verdicts are given, and what was asked for."""

    def __init__(self, *oks: bool) -> None:
        super().__init__(cast("Any", SimpleNamespace(settings=EvaluationSettings())))
        self.oks = list(oks)
        self.asked: list[dict[str, Any]] = []
        self.checked: list[dict[str, Any]] = []

    def play(self, sessions: Any, label: str, case: str | None, **asked: Any) -> list[Any]:
        self.asked.append({"label": label} | asked)
        return [(sessions[0], None, {"ok": self.oks.pop(0), "message": f"of {label}", "layer": "numerics"})]

    def run(self) -> list[str]:
        """The rules of the verdicts that were not well, empty where they have none."""
        self._in_order(cast("Session", None), None, lambda verdict, full: self.checked.append(verdict), "check")
        return [verdict.get("rule", "") for verdict in self.checked if not verdict["ok"]]


def test_one_good_call_is_enough() -> None:
    calls = Scripted(GOOD)
    assert calls.run() == []
    assert [asked["ordered"] for asked in calls.asked] == [True]


def test_what_is_wrong_twice_in_such_calls_and_right_between_them_is_the_order() -> None:
    calls = Scripted(BAD, GOOD, BAD)
    assert calls.run() == ["stream_order"]
    assert calls.checked[-1]["layer"] == "memory"
    assert "caller's stream" in calls.checked[-1]["message"]
    assert [asked["ordered"] for asked in calls.asked] == [True, False, True]
    assert len({asked["label"] for asked in calls.asked}) == 3, "fresh inputs each"
    assert len({asked["reuse"] for asked in calls.asked}) == 1, "at addresses of the same kind"


@pytest.mark.parametrize("oks", [(BAD, BAD, BAD), (BAD, BAD, GOOD), (BAD, GOOD, GOOD)])
def test_what_is_wrong_otherwise_is_not(oks: tuple[bool, ...]) -> None:
    rules = Scripted(*oks).run()
    assert rules
    assert set(rules) == {""}


class Scene(Runner):
    """A runner without a device that notes in which order an ordered call's parts come."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.order: list[str] = []
        note = self.order.append
        self.torch: Any = torch
        self.cuda, self.wall, self.witness = True, 7, None
        self.inputs = SimpleNamespace(values=[], arrive=lambda last: note(f"inputs after {last}"))
        self.poison = SimpleNamespace(allocated=lambda fill: None, freed=lambda now: None)
        self.launches = SimpleNamespace(begin=lambda: None, end=lambda counted: None)
        self.layout = SimpleNamespace(plain=lambda value: value, pack=lambda *_, **__: note("outputs") or {})
        self.data: Any = {"outputs": None}

        def noted() -> Any:
            note("call")
            return call()

        self.call = noted

    def sync(self) -> None:
        self.order.append("sync")


def test_an_ordered_calls_inputs_come_right_before_it_and_its_outputs_are_copied_before_anything_is_waited_for() -> (
    None
):
    scene = Scene(lambda: None)
    wall, device = scene.run_call(wire.ORDERED, 0)
    assert scene.order == ["inputs after 7", "call", "outputs", "sync"]
    assert wall > 0
    assert device == 0


def test_an_ordered_call_that_raises_leaves_no_stream_busy() -> None:
    scene = Scene(lambda: [].pop())
    with pytest.raises(IndexError):
        scene.run_call(wire.ORDERED, 0)
    assert scene.order == ["inputs after 7", "call", "sync"]


class Library:
    """A runtime whose one limit can be set, or not."""

    def __init__(self, limit: int, *, settable: bool = True) -> None:
        self.limit, self.settable = limit, settable

    def cudaCtxResetPersistingL2Cache(self) -> int:  # noqa: N802
        return 0

    def cudaDeviceSetLimit(self, which: int, size: ctypes.c_size_t) -> int:  # noqa: N802
        assert which == PERSISTING_L2_LIMIT
        self.limit = size.value if self.settable else self.limit
        return 0 if self.settable else 801

    def cudaDeviceGetLimit(self, place: Any, which: int) -> int:  # noqa: N802
        assert which == PERSISTING_L2_LIMIT
        place._obj.value = self.limit
        return 0

    def cudaGetLastError(self) -> int:  # noqa: N802
        return 0


@pytest.mark.parametrize("settable", [True, False])
def test_a_limit_counts_as_changed_against_what_could_be_set(settable: bool) -> None:
    library = Library(7, settable=settable)
    poison = Poison(False, library)
    poison.reset_persisting_cache()
    assert poison.limits() == []
    library.limit = 1 << 20
    assert poison.limits() == ["lines that persist in L2: 1048576 bytes"]
    poison.reset_persisting_cache()
    assert poison.limits() == []
