"""Whole calls: what the host does while the device idles decides, and changes are ranked over the whole call."""

from __future__ import annotations

import pytest

from stitchcuda.profiling.diagnosis import rank, suggestions
from stitchcuda.profiling.model import Cause, Idle, KernelTime, Timeline
from stitchcuda.profiling.rules import call_cause
from tests.profiling.counters import counters


def line(
    busy: float = 1e-3,
    *,
    wall: float = 10e-3,
    launches: int = 100,
    copies: float = 0.0,
    pageable: float = 0.0,
    syncs: int = 0,
    allocations: int = 0,
    **idle: float,
) -> Timeline:
    kinds: tuple[Idle, ...] = ("launch", "synchronise", "copy", "allocation", "host")
    return Timeline(
        wall_seconds=wall,
        busy_seconds=busy,
        gap_seconds=wall - busy,
        copy_seconds=copies,
        launches=launches,
        idle_seconds={kind: idle[kind] for kind in kinds if kind in idle},
        pageable_seconds=pageable,
        synchronisations=syncs,
        allocations=allocations,
    )


@pytest.mark.parametrize(
    ("timeline", "cause"),
    [
        (line(launch=8e-3, synchronise=1e-3), "launch_overhead"),
        (line(launch=5e-3, synchronise=4e-3, syncs=100), "host_sync"),
        (line(synchronise=8e-3, launch=1e-3, syncs=100), "host_sync"),
        (line(synchronise=5e-3, launch=4e-3, syncs=100, allocations=200), "allocation"),
        (line(allocation=8e-3, launch=1e-3), "allocation"),
        (line(host=8e-3, launch=1e-3, launches=10), "host_work"),
        (line(busy=9e-3, copies=8e-3, pageable=8e-3), "pageable_copies"),
        (line(busy=9e-3, copies=8e-3), "host_copies"),
        (line(busy=3e-3, copies=2e-3, pageable=2e-3, copy=6e-3), "pageable_copies"),
        (line(busy=9.5e-3, launches=5000, launch=0.5e-3), "launch_overhead"),
        (line(busy=9.5e-3, launches=10), "none"),
        (line(launches=400), "launch_overhead"),
        (line(launches=100, syncs=90), "host_sync"),
        (line(launches=3), "host_work"),
        (line(wall=0.0, busy=0.0), "none"),
    ],
)
def test_cause_of_a_call(timeline: Timeline, cause: Cause) -> None:
    assert call_cause(timeline)[0] == cause


def test_evidence_holds_the_numbers() -> None:
    told = call_cause(line(launch=8e-3, synchronise=1e-3))[1]
    assert "9 ms of 10 ms" in told
    assert "8 ms of it in launching" in told


def test_changes_of_the_call_and_of_kernels_stand_in_one_order() -> None:
    kernels = [KernelTime(name="kernel", seconds=8e-3, share=1.0, calls=1, origin="own")]
    timeline = line(busy=8e-3, launches=100, launch=2e-3)
    few = counters(grid=4, sm_active=3e4, dram=4)
    ranked = suggestions(timeline, kernels, rank([few], kernels, 10e-3))
    assert [one.kernel for one in ranked] == ["kernel", ""]
    assert "CUDA graph" in ranked[1].change
    assert ranked[0].gain == pytest.approx(1 / (0.2 + 0.8 / 10), rel=0.05)
    assert all(one.gain >= 1.02 for one in ranked)


def test_pinning_and_pools_are_named_where_they_gain() -> None:
    pageable = suggestions(line(busy=9e-3, launches=1, copies=8e-3, pageable=8e-3), [], [])
    assert "pinned" in pageable[0].change
    allocating = suggestions(line(launches=50, allocation=8e-3), [], [])
    assert "allocate once" in allocating[0].change
