"""A Program's launchers inside the runner, counted or put out of action."""

from __future__ import annotations

from types import ModuleType

from stitchcuda.evaluation import launchers


def bindings() -> ModuleType:
    """Two launchers, of which one refuses."""
    module = ModuleType("bindings")
    module._c_good = lambda *_: 0  # type: ignore[attr-defined]
    module._c_bad = lambda *_: 3  # type: ignore[attr-defined]
    module.PROFILE = False  # type: ignore[attr-defined]
    return module


def test_launches_are_counted_for_a_while_and_then_no_more() -> None:
    module = bindings()
    before = dict(vars(module))
    with launchers.counted(module) as counts:
        assert (module._c_good(1, 2), module._c_bad(), module._c_bad()) == (0, 3, 3)
    module._c_good()
    assert counts == {"good": [1, 0], "bad": [0, 2]}
    assert launchers.launched(counts) == {"good", "bad"}
    assert launchers.failing(counts) == ["bad"]
    assert vars(module) == before


def test_launches_are_counted_from_some_point_on() -> None:
    module = bindings()
    counts = launchers.count(module)
    module._c_good()
    before = launchers.totals(counts)
    assert launchers.launched(counts) == {"good"}
    assert launchers.launched(counts, before) == set()
    module._c_bad()
    assert launchers.launched(counts, before) == {"bad"}
    with launchers.counted(module) as inner:
        module._c_good()
    assert (inner["good"], counts["good"]) == ([1, 0], [2, 0])


def test_without_bindings_there_is_nothing_to_count() -> None:
    with launchers.counted(None) as counts:
        pass
    assert launchers.launched(counts) == set()


def test_launchers_that_are_knocked_out_do_nothing_and_say_that_all_is_well() -> None:
    module = bindings()
    launchers.knock_out(module)
    assert (module._c_good(), module._c_bad()) == (0, 0)


def test_what_only_a_trace_shows_is_told_and_taking_turns_is_not() -> None:
    module, launches = bindings(), launchers.Launches()
    launches.watch(module)
    assert launches.only_in({"good"}) == [], "nothing was timed"
    for turn in range(8):
        launches.begin()
        (module._c_good if turn % 2 else module._c_bad)()
        launches.end(counted=True)
    assert launches.only_in({"good", "bad", "other"}) == ["other"]


def test_a_launch_in_one_call_of_many_does_not_hide_what_the_call_before_the_trace_did_without() -> None:
    module, launches = bindings(), launchers.Launches()
    launches.watch(module)
    for turn in range(9):
        launches.begin()
        if turn == 3:
            module._c_good()
        launches.end(counted=turn < 8)
    assert launches.only_in({"good"}) == ["good"]
    launches.begin()
    module._c_good()
    launches.end(counted=False)
    assert launches.only_in({"good"}) == [], "it is launched for the inputs that the trace has"
