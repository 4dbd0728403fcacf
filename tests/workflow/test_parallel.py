"""Turns side by side: they overlap, what they find is taken in in order, and a run that was stopped anywhere goes on
without asking again for what any lane of its journal holds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stitchcuda.agents.plan import Idea
from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.profiling.model import KernelTime, Profile
from stitchcuda.program.files import load_program
from stitchcuda.program.model import Program
from stitchcuda.workflow import events
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.promise import ceiling
from stitchcuda.workflow.records import NAME, read_records, wall_seconds
from stitchcuda.workflow.story import read_story
from tests.workflow.world import Ear, ToyBench, ToyMind, config, go, idea, new_folder, words

SETTINGS = config(parallel=3, beam=3, replans=1, sol_fraction=1.0)


def toy() -> ToyMind:
    """Repairs, a second step, a dead idea and a second plan, as three branches."""
    return ToyMind(
        plans=[[idea("a", ["x", "y"]), idea("b"), idea("d")], [idea("c")]],
        programs={
            "a/x": ["wrong 1", "correct 1.2"],
            "a/y": ["build 2", "correct 1.4"],
            "b/one": ["nothing", "nothing"],
            "d/one": ["wrong 3", "wrong 4", "correct 1.3"],
            "c/one": ["correct 1.35"],
        },
    )


def told(folder: RunFolder) -> list[tuple[str, str, str]]:
    """What was tried, in no order."""
    return sorted((a.idea, a.status, a.diagnosis) for a in read_story(folder).attempts)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk guards against a machine that dies, not a process, and takes most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_the_branches_of_a_round_are_written_at_the_same_time(tmp_path: Path) -> None:
    mind = ToyMind(
        [[idea("a"), idea("b"), idea("c")]], {f"{n}/one": [f"correct 1.{n_}"] for n_, n in enumerate("abc", 1)}
    )
    together = threading.Barrier(3, timeout=30)

    def meet(what: str) -> None:
        if what.startswith("code"):
            together.wait()

    mind.before = meet
    result = go(new_folder(tmp_path, SETTINGS), mind, settings=SETTINGS)
    assert (result.attempts, result.over_best) == (3, 1.3)


def test_a_parallel_run_finds_what_one_after_the_other_finds(tmp_path: Path) -> None:
    one = config(beam=3, replans=1, sol_fraction=1.0)
    alone, beside = new_folder(tmp_path, one), new_folder(tmp_path, SETTINGS)
    first, second = go(alone, toy(), settings=one), go(beside, toy(), settings=SETTINGS)
    assert (first.over_best, first.attempts, first.status) == (second.over_best, second.attempts, second.status)
    assert told(alone) == told(beside)
    assert words(load_program(alone.best)) == words(load_program(beside.best))


@pytest.mark.usefixtures("no_sync")
def test_a_parallel_run_cut_at_any_line_pays_for_nothing_twice(tmp_path: Path) -> None:
    whole = new_folder(tmp_path, SETTINGS)
    undisturbed = go(whole, toy(), settings=SETTINGS)
    journal = (whole.path / NAME).read_bytes()
    paid = len([r for r in read_records(whole.path / NAME)[0] if _asked(r.kind, r.data)])
    for cut in [0, *(n + 1 for n, byte in enumerate(journal) if byte == ord("\n"))]:
        folder = new_folder(tmp_path, SETTINGS)
        (folder.path / NAME).write_bytes(journal[:cut])
        held = len([r for r in read_records(folder.path / NAME)[0] if _asked(r.kind, r.data)])
        mind = toy()
        result = go(folder, mind, settings=SETTINGS, resumed=True)
        assert (result.over_best, result.attempts, result.stopped) == (
            undisturbed.over_best,
            undisturbed.attempts,
            undisturbed.stopped,
        )
        assert told(folder) == told(whole)
        assert len(mind.asked) + held == paid
        numbers = sorted(a.number for a in read_story(folder).attempts)
        assert len(set(numbers)) == len(numbers), "two programs have one number"


def _asked(kind: str, data: dict[str, object]) -> bool:
    return kind in ("plan", "program", "feedback")


def test_a_turn_that_fails_stops_the_others_at_rest_and_all_go_on_later(tmp_path: Path) -> None:
    class Failing(ToyBench):
        broken = True

        def evaluate(self, program: Program, tier: Tier) -> Evaluation:
            if self.broken and words(program) == "wrong 3":
                raise InfrastructureError("the cable is out")
            return super().evaluate(program, tier)

    bench, folder, mind = Failing(), new_folder(tmp_path, SETTINGS), toy()
    with pytest.raises(InfrastructureError, match="cable"):
        go(folder, mind, settings=SETTINGS, bench=bench)
    bench.broken = False
    result = go(folder, mind, settings=SETTINGS, bench=bench, resumed=True)
    assert result.over_best == 1.4
    undisturbed = toy()
    go(new_folder(tmp_path, SETTINGS), undisturbed, settings=SETTINGS)
    assert sorted(mind.asked) == sorted(undisturbed.asked)


def test_once_the_target_is_reached_no_turn_beside_writes_another_program(tmp_path: Path) -> None:
    settings = config(parallel=2, beam=2, target_speedup=1.4)
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 1.5"], "b/one": ["wrong 1", "wrong 2", "wrong 3"]})
    settled = threading.Event()

    class Listening(Ear):
        def emit(self, event: events.Event) -> None:
            super().emit(event)
            if isinstance(event, events.AttemptFinished) and event.best:
                settled.set()

    def late(what: str) -> None:
        if what == "verify wrong 1":
            assert settled.wait(30)

    mind.before = late
    folder = new_folder(tmp_path, settings)
    result = go(folder, mind, settings=settings, ear=Listening())
    assert (result.target_met, result.over_best) == (True, 1.5)
    assert mind.asked.count("code b/one") == 1
    again = ToyMind(mind.plans, mind.programs)
    assert go(folder, again, settings=settings, resumed=True).over_best == 1.5
    assert again.asked == []


def test_the_clock_counts_what_goes_side_by_side_once(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, SETTINGS)
    result = go(folder, toy(), settings=SETTINGS)
    records = read_records(folder.path / NAME)[0]
    assert result.spent.seconds == pytest.approx(wall_seconds(records), abs=0.01)
    assert result.spent.seconds <= sum(record.seconds for record in records) + 0.01


def test_tokens_that_a_later_round_used_do_not_end_a_resumed_run_earlier(tmp_path: Path) -> None:
    settings = config(iterations=6, tokens=250)
    steps = list("uvwxyz")
    table = {f"a/{s}": [f"correct 1.{n}"] for n, s in enumerate(steps, 1)}

    def run(folder: RunFolder, *, resumed: bool) -> list[str]:
        mind = ToyMind([[idea("a", steps)]], table)
        with Journal.open(folder.path) as journal:

            def pay(what: str) -> None:
                if what.startswith("code"):
                    key = RequestKey(node=journal.node, role="coder", ordinal=0, request_hash=what)
                    journal.append(ReplyRecord(key=key, reply={}, input_tokens=90, output_tokens=10))

            mind.before = pay
            result = go(folder, mind, settings=settings, resumed=resumed, journal=journal)
        assert "300 of 250 tokens" in result.stopped
        return mind.asked

    folder = new_folder(tmp_path, settings)
    assert len([a for a in run(folder, resumed=False) if a.startswith("code")]) == 3
    assert run(folder, resumed=True) == []


def test_two_programs_that_are_close_are_both_checked_and_the_faster_one_then_wins(tmp_path: Path) -> None:
    class Moody(ToyBench):
        def evaluate(self, program: Program, tier: Tier) -> Evaluation:
            evaluation = super().evaluate(program, tier)
            if tier == "publish" and words(program) == "correct 1.32":
                return evaluation.model_copy(update={"speedup": {**evaluation.speedup, "over_best": 1.25}})
            return evaluation

    table = {"a/one": ["correct 1.3"], "b/one": ["correct 1.32"], "c/one": ["correct 1.1"]}
    bench = Moody()
    mind = ToyMind([[idea("a"), idea("b"), idea("c")]], table)
    settings = config(beam=3, sol_fraction=1.0)
    result = go(new_folder(tmp_path, settings), mind, settings=settings, bench=bench)
    assert [a for a in bench.asked if "publish" in a] == [
        "evaluate publish correct 1.32",
        "evaluate publish correct 1.3",
    ]
    assert (result.number, result.over_best) == (1, 1.3)


def profile_of(seconds: dict[str, float], wall: float) -> Profile:
    """A profile with one kernel for each operator."""
    kernels = [
        KernelTime(name=f"{name}_kernel", seconds=value, share=value / wall, calls=1, origin="library", operator=name)
        for name, value in seconds.items()
    ]
    plain = ToyBench().profile(None)
    line = plain.timeline.model_copy(update={"wall_seconds": wall, "busy_seconds": sum(seconds.values())})
    return plain.model_copy(update={"kernels": kernels, "timeline": line})


def over(name: str, *operators: str) -> Idea:
    """An idea that covers these operators."""
    plain = idea(name)
    return plain.model_copy(update={"steps": [plain.steps[0].model_copy(update={"operators": list(operators)})]})


def test_an_idea_can_gain_no_more_than_the_time_of_what_it_touches() -> None:
    profile = profile_of({"aten::linear": 0.008, "aten::gelu": 0.001}, wall=0.010)
    assert ceiling(over("x", "gelu"), profile) == pytest.approx(1.25)
    assert ceiling(over("x", "linear"), profile) == pytest.approx(10)
    assert ceiling(over("x", "linear", "gelu"), profile) is None, "nothing is left, so nothing bounds it"
    assert ceiling(over("x", "forward"), profile) is None, "an operator that the profile does not know"
    assert ceiling(over("x", "gelu"), None) is None
    beside = profile_of({"aten::linear": 0.009, "aten::gelu": 0.009}, wall=0.010)
    assert ceiling(over("x", "gelu"), beside) is None, "side by side"


def test_an_idea_that_cannot_win_any_more_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    class Known(ToyBench):
        def profile(self, program: Program | None, counters: int = 0) -> Profile:
            super().profile(program, counters)
            return profile_of({"aten::linear": 0.008, "aten::gelu": 0.001}, wall=0.010)

    ideas = [over("a", "linear"), over("b", "gelu")]
    mind = ToyMind([ideas], {"a/one": ["correct 1.5"], "b/one": ["correct 1.2"]})
    ear, settings = Ear(), config(beam=2)
    folder = new_folder(tmp_path, settings)
    result = go(folder, mind, settings=settings, bench=Known(), ear=ear)
    assert result.attempts == 1
    notices = [e.text for e in ear.events if isinstance(e, events.Notice)]
    assert any("left out 'b': it can reach 1.25x eager at most" in text for text in notices)
    assert go(folder, ToyMind([ideas], {}), settings=settings, bench=Known(), resumed=True).attempts == 1


def test_what_a_turn_pays_is_seen_before_the_turn_is_over(tmp_path: Path) -> None:
    folder, ear = new_folder(tmp_path, SETTINGS), Ear()
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 1.2"], "b/one": ["correct 1.1"]})
    with Journal.open(folder.path) as journal:

        def pay(what: str) -> None:
            if what.startswith("code"):
                key = RequestKey(node=journal.node, role="coder", ordinal=0, request_hash=what)
                journal.append(ReplyRecord(key=key, reply={}, input_tokens=90, output_tokens=10))

        mind.before = pay
        go(folder, mind, settings=SETTINGS, journal=journal, ear=ear)
    first = next(n for n, event in enumerate(ear.events) if isinstance(event, events.AttemptFinished))
    seen = [event.spent.requests for event in ear.events[:first] if isinstance(event, events.SpentSoFar)]
    assert max(seen) >= 1
