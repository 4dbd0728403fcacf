"""The loop: what is tried in which order, what ends it, and what it reports."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from stitchcuda.agents.feedback import Route
from stitchcuda.agents.plan import Idea, Plan
from stitchcuda.agents.roles import NoPlan, PlanRequest
from stitchcuda.errors import InfrastructureError, ModelAccessError
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.program.files import load_program
from stitchcuda.program.model import Program
from stitchcuda.workflow.machine import AwaitingApproval
from stitchcuda.workflow.records import NAME, read_records
from stitchcuda.workflow.states import TRANSITIONS, State
from tests.workflow.world import Ear, ToyBench, ToyMind, config, go, idea, new_folder, program, words


def test_a_run_goes_from_the_reference_to_a_confirmed_program(tmp_path: Path) -> None:
    mind = ToyMind([[idea("fuse")]], {"fuse/one": ["correct 1.5"]})
    folder, bench, ear = new_folder(tmp_path, config()), ToyBench(), Ear()
    result = go(folder, mind, bench=bench, ear=ear)
    assert (result.status, result.number, result.over_best, result.tier) == ("correct", 1, 1.5, "publish")
    assert result.exit_code == 0
    assert bench.asked == [
        "inspect",
        "baselines",
        "profile reference",
        "evaluate screen correct 1.5",
        "profile correct 1.5",
        "evaluate publish correct 1.5",
    ]
    assert words(load_program(folder.best)) == "correct 1.5"
    assert json.loads((folder.path / "summary.json").read_text())["status"] == "correct"
    assert (folder.path / "programs" / "001.json").is_file()
    assert (folder.path / "profiles" / "reference.json").is_file()


def test_counters_are_read_of_the_reference_and_of_every_correct_program(tmp_path: Path) -> None:
    mind = ToyMind([[idea("fuse")]], {"fuse/one": ["correct 1.5"]})
    settings, bench = config(counters=2), ToyBench()
    go(new_folder(tmp_path, settings), mind, settings=settings, bench=bench)
    found = [asked for asked in bench.asked if asked.startswith("profile")]
    assert found == ["profile reference counting 2", "profile correct 1.5 counting 2"]


def test_every_state_passed_through_is_allowed_by_the_table(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["wrong x", "correct 1.1"], "b/one": ["correct 1.2"]})
    ear = Ear()
    go(new_folder(tmp_path, config()), mind, ear=ear)
    states = [State(name) for name in ear.states()]
    assert all(after in TRANSITIONS[before] for before, after in pairwise(states))
    assert states[0] is State.PREPARE
    assert states[-1] is State.REPORT


def test_the_faster_of_two_ideas_is_kept(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 1.6"], "b/one": ["correct 1.3"]})
    result = go(new_folder(tmp_path, config()), mind)
    assert (result.number, result.over_best, result.attempts) == (1, 1.6, 2)


def test_steps_build_on_the_program_of_the_step_before(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a", ["x", "y"])]], {"a/x": ["correct 1.2"], "a/y": ["correct 1.4"]})
    result = go(new_folder(tmp_path, config()), mind)
    assert result.over_best == 1.4
    built_on = mind.code_requests[1].program
    assert built_on is not None
    assert words(built_on) == "correct 1.2"


def test_a_failed_program_is_repaired_with_its_feedback(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a")]], {"a/one": ["wrong first", "build second", "correct 1.2"]})
    result = go(new_folder(tmp_path, config()), mind)
    assert (result.status, result.number) == ("correct", 3)
    assert result.spent.iterations == 1, "repairs are not candidates"
    repair = mind.code_requests[1]
    assert repair.feedback is not None
    assert repair.feedback.diagnosis == "diagnosis of wrong first"
    assert repair.failed is not None


def test_repairs_end_at_three_and_at_the_second_equal_failure(tmp_path: Path) -> None:
    distinct = ToyMind([[idea("a")]], {"a/one": [f"wrong {n}" for n in range(9)]})
    assert go(new_folder(tmp_path, config()), distinct).attempts == 4
    equal = ToyMind([[idea("a")]], {"a/one": ["wrong same", "wrong same"]})
    result = go(new_folder(tmp_path, config()), equal)
    assert result.attempts == 2
    assert (result.status, result.exit_code) == ("nothing_correct", 1)


def test_an_answer_without_a_program_is_a_failed_attempt(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["nothing"], "b/one": ["correct 1.2"]})
    result = go(new_folder(tmp_path, config()), mind)
    assert result.status == "correct"
    assert result.attempts == 3, "asked again once, then the equal failure ends it"


def test_a_program_that_does_not_hold_in_fresh_processes_gives_way_to_the_next(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 2.0 flaky"], "b/one": ["correct 1.2"]})
    result = go(new_folder(tmp_path, config(sol_fraction=1.0)), mind, settings=config(sol_fraction=1.0))
    assert (result.status, result.over_best) == ("correct", 1.2)


def test_nothing_holds_when_all_fail_the_final_check(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.3 flaky"]})
    folder = new_folder(tmp_path, config())
    result = go(folder, mind)
    assert (result.status, result.best, result.exit_code) == ("nothing_correct", None, 1)
    assert not folder.best.exists(), "nobody shall export it"
    assert not (folder.path / "best.json").exists()


def test_the_target_ends_the_search_and_decides_the_answer(tmp_path: Path) -> None:
    ideas = [idea("a"), idea("b")]
    table = {"a/one": ["correct 1.5"], "b/one": ["correct 1.9"]}
    settings = config(target_speedup=1.4)
    result = go(new_folder(tmp_path, settings), ToyMind([ideas], table), settings=settings)
    assert (result.attempts, result.target_met, result.exit_code) == (1, True, 0)
    settings = config(target_speedup=3)
    result = go(new_folder(tmp_path, settings), ToyMind([ideas], table), settings=settings)
    assert (result.status, result.target_met, result.exit_code) == ("correct", False, 1)


def test_the_speed_of_light_ends_the_search(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 4.5"], "b/one": ["correct 1.1"]})
    result = go(new_folder(tmp_path, config()), mind)
    assert result.attempts == 1
    assert "hardware's bound" in result.stopped


def test_the_budget_of_candidates_ends_the_search(tmp_path: Path) -> None:
    settings = config(iterations=2)
    mind = ToyMind([[idea("a", list("uvwxyz"))]], {f"a/{s}": [f"correct 1.{n}"] for n, s in enumerate("uvwxyz", 1)})
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert (result.spent.iterations, result.over_best) == (2, 1.2)
    assert "2 candidates" in result.stopped


def test_the_last_candidate_of_a_budget_is_repaired_like_any_other(tmp_path: Path) -> None:
    settings = config(iterations=1)
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["wrong first", "correct 1.2"], "b/one": ["correct 1.9"]})
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert (result.spent.iterations, result.attempts, result.over_best) == (1, 2, 1.2)
    assert result.stopped == "the one candidate is used"


def test_a_plan_without_ideas_ends_with_no_rewrite(tmp_path: Path) -> None:
    result = go(new_folder(tmp_path, config()), ToyMind([[]], {}))
    assert (result.status, result.exit_code, result.attempts) == ("no_rewrite", 0, 0)
    assert result.seconds == {"eager": 0.010, "compile": 0.008}


def test_only_slower_programs_mean_no_gain(tmp_path: Path) -> None:
    result = go(new_folder(tmp_path, config()), ToyMind([[idea("a")]], {"a/one": ["correct 0.5"]}))
    assert (result.status, result.exit_code, result.number) == ("no_gain", 1, 1)


def test_repeated_failure_asks_for_another_plan_that_sees_what_was_tried(tmp_path: Path) -> None:
    settings = config(replans=1)
    table = {"a/one": ["wrong 1", "wrong 1"], "b/one": ["correct 1.3"]}
    mind = ToyMind([[idea("a")], [idea("b")]], table)
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert (result.status, result.over_best) == ("correct", 1.3)
    assert [a.status for a in mind.plan_requests[1].attempts] == ["wrong_output", "wrong_output"]


def test_a_second_plan_of_the_same_ideas_ends_the_search(tmp_path: Path) -> None:
    settings = config(replans=5)
    mind = ToyMind([[idea("a")]], {"a/one": ["wrong 1"]})
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert mind.asked.count("plan") == 2
    assert result.stopped == "the plan holds no idea that was not tried before"
    none = ToyMind([[idea("a")], []], {"a/one": ["wrong 1"]})
    result = go(new_folder(tmp_path / "none", settings), none, settings=settings)
    assert result.stopped == "the Planner, asked again, gave no further idea: a plan"


class OutOfPlans(ToyMind):
    """Its Planner has no usable answer once its plans are used up."""

    def plan(self, request: PlanRequest) -> Plan:
        if len(self.plan_requests) >= len(self.plans):
            raise NoPlan("the model gave no usable plan: summary: Field required")
        return super().plan(request)


def test_a_further_plan_that_cannot_be_used_ends_the_search_and_not_the_run(tmp_path: Path) -> None:
    settings = config(replans=1)
    folder = new_folder(tmp_path, settings)
    mind = OutOfPlans([[idea("a")]], {"a/one": ["correct 1.5"]})
    result = go(folder, mind, settings=settings)
    assert (result.status, result.over_best, result.tier) == ("correct", 1.5, "publish")
    assert "asked again: the model gave no usable plan: summary: Field required" in result.stopped
    assert folder.summary() == result
    records, _ = read_records(folder.path / NAME)
    assert [bool(r.data["problem"]) for r in records if r.kind == "plan"] == [False, True]

    more = settings.limits().model_copy(update={"iterations": 50})
    again = ToyMind([[idea("a")], [idea("b")]], {"b/one": ["correct 1.7"]})
    assert go(folder, again, settings=settings, resumed=True, more=more).over_best == 1.7


def test_what_is_left_of_a_plan_is_tried_where_no_further_one_can_be_used(tmp_path: Path) -> None:
    settings = config(replans=2, beam=1, drafts=1)
    table = {"a/one": ["wrong 1", "wrong 1"], "b/one": ["wrong 2", "wrong 2"], "c/one": ["correct 1.5"]}
    mind = OutOfPlans([[idea(name) for name in "abc"]], table)
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert (result.status, result.over_best) == ("correct", 1.5)
    assert "asked again: the model gave no usable plan" in result.stopped


def test_a_first_plan_that_cannot_be_used_stops_the_run_until_it_is_resumed(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, config())
    with pytest.raises(ModelAccessError, match=r"summary: Field required\. Resume the run to ask again"):
        go(folder, OutOfPlans([], {}))
    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.5"]})
    assert go(folder, mind, resumed=True).over_best == 1.5


def test_a_refuted_idea_is_dropped_whole(tmp_path: Path) -> None:
    settings = config(drafts=2)
    table = {"a/one": ["correct 1.01", "correct 1.02"], "b/one": ["correct 1.3", "correct 1.2"]}
    mind = ToyMind([[idea("a"), idea("b")]], table, routes={"correct 1.01": "replan"})
    go(new_folder(tmp_path, settings), mind, settings=settings)
    assert mind.asked.count("code a/one") == 1


def test_stop_is_heard_once_every_idea_had_its_first_turn(tmp_path: Path) -> None:
    table = {"a/one": ["correct 1.8"], "b/one": ["correct 1.3"], "b/two": ["correct 1.4"]}
    mind = ToyMind([[idea("a"), idea("b", ["one", "two"])]], table, routes={"correct 1.8": "stop"})
    result = go(new_folder(tmp_path, config()), mind)
    assert [a for a in mind.asked if a.startswith("code")] == ["code a/one", "code b/one"]
    assert "nothing more to gain" in result.stopped


def test_after_a_stop_no_idea_gets_a_second_turn(tmp_path: Path) -> None:
    table = {
        "a/one": ["correct 1.5"],
        "a/two": ["correct 1.8"],
        "b/one": ["correct 1.3"],
        "b/two": ["correct 1.4"],
    }
    ideas = [idea("a", ["one", "two"]), idea("b", ["one", "two"])]
    mind = ToyMind([ideas], table, routes={"correct 1.8": "stop"})
    result = go(new_folder(tmp_path, config()), mind)
    assert [a for a in mind.asked if a.startswith("code")] == ["code a/one", "code b/one", "code a/two"]
    assert "nothing more to gain" in result.stopped


def test_a_stop_no_longer_counts_once_its_program_is_beaten(tmp_path: Path) -> None:
    table = {"a/one": ["correct 1.3"], "b/one": ["correct 1.5"], "b/two": ["correct 1.8"]}
    mind = ToyMind([[idea("a"), idea("b", ["one", "two"])]], table, routes={"correct 1.3": "stop"})
    assert go(new_folder(tmp_path, config()), mind).over_best == 1.8


def test_flat_rounds_bring_in_an_idea_that_waits(tmp_path: Path) -> None:
    settings = config(beam=1)
    table = {"a/one": ["correct 1.2", "correct 1.201", "correct 1.202", "correct 1.203"], "b/one": ["correct 1.5"]}
    routes = dict.fromkeys(table["a/one"], "optimise")
    mind = ToyMind([[idea("a"), idea("b")]], table, routes=routes)  # type: ignore[arg-type]
    result = go(new_folder(tmp_path, settings), mind, settings=settings)
    assert result.over_best == 1.5
    assert "code b/one" in mind.asked


def test_at_most_four_attempts_are_shown(tmp_path: Path) -> None:
    steps = list("uvwxyz")
    mind = ToyMind([[idea("a", steps)]], {f"a/{s}": [f"correct 1.{n}"] for n, s in enumerate(steps, 1)})
    go(new_folder(tmp_path, config()), mind)
    shown = [[a.number for a in r.attempts] for r in mind.code_requests]
    assert max(map(len, shown)) == 4
    assert shown[-1] == [2, 3, 4, 5]


def test_an_equal_program_is_not_measured_twice(tmp_path: Path) -> None:
    bench = ToyBench()
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 1.2"], "b/one": ["correct 1.2"]})
    go(new_folder(tmp_path, config()), mind, bench=bench)
    assert bench.asked.count("evaluate screen correct 1.2") == 1


def test_a_paid_verifier_sees_what_was_profiled_of_equal_files_or_why_nothing_was(tmp_path: Path) -> None:
    bench = ToyBench()
    ideas = [idea("a", ["x", "y"]), idea("b")]
    table = {"a/x": ["correct 1.4"], "a/y": ["correct 1.0"], "b/one": ["correct 1.4"]}
    mind = ToyMind([ideas], table, paid=True)
    go(new_folder(tmp_path, config()), mind, bench=bench)
    assert [asked for asked in bench.asked if asked.startswith("profile")] == [
        "profile reference",
        "profile correct 1.4",
    ]
    first, again, slower = mind.verify_requests
    assert (first.same_as, again.same_as, again.profile) == (None, 1, first.profile)
    assert (first.unprofiled, again.unprofiled) == ("", "")
    assert (slower.profile, slower.start, slower.start_profile) == (None, 1, first.profile)
    assert "1.00x over the best stock option" in slower.unprofiled
    (profiled,) = tmp_path.glob("*/profiles/002.json")
    assert profiled.read_bytes() == profiled.with_name("001.json").read_bytes()


def test_drafts_of_an_idea_are_told_of_each_other(tmp_path: Path) -> None:
    settings = config(drafts=2, beam=2)
    table = {"a/x": ["correct 1.2", "correct 1.3"], "a/y": ["correct 1.4", "correct 1.5"], "b/one": ["correct 1.1"]}
    mind = ToyMind([[idea("a", ["x", "y"]), idea("b")]], table)
    go(new_folder(tmp_path, settings), mind, settings=settings)
    seen = [
        (asked.step.title, asked.draft, {n: a and a.number for n, a in asked.others.items()})
        for asked in mind.code_requests
        if asked.idea.name == "a"
    ]
    assert seen == [("x", 0, {1: None}), ("x", 1, {0: 1}), ("y", 0, {1: 2}), ("y", 1, {0: 5})]


def test_a_coder_is_told_when_the_feedback_is_of_a_slower_program_than_the_one_it_starts_from(tmp_path: Path) -> None:
    table = {"a/one": ["correct 1.4", "correct 1.0", "correct 1.5"]}
    routes: dict[str, Route] = {"correct 1.4": "optimise", "correct 1.0": "optimise"}
    mind = ToyMind([[idea("a")]], table, routes=routes)
    go(new_folder(tmp_path, config()), mind)
    told = [(words(r.program) if r.program else "", r.outdone) for r in mind.code_requests]
    assert told[:3] == [("", False), ("correct 1.4", False), ("correct 1.4", True)]


def test_a_start_program_is_number_zero_and_the_base(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.4"]})
    result = go(new_folder(tmp_path, config()), mind, base=program("correct 1.1"))
    assert (result.number, result.attempts) == (1, 2)
    given = mind.code_requests[0].program
    assert given is not None
    assert words(given) == "correct 1.1"


def test_the_start_program_wins_when_nothing_beats_it(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.05"]})
    result = go(new_folder(tmp_path, config()), mind, base=program("correct 1.1"))
    assert (result.status, result.number, result.over_best) == ("correct", 0, 1.1)


def test_a_broken_start_program_is_repaired_first(tmp_path: Path) -> None:
    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.4"]})
    go(new_folder(tmp_path, config()), mind, base=program("wrong from the start"))
    first = mind.code_requests[0]
    assert first.failed is not None
    assert first.feedback is not None
    assert "start from" in first.feedback.diagnosis


def test_the_machines_failures_are_tried_once_more_and_never_scored(tmp_path: Path) -> None:
    class Failing(ToyBench):
        left = 1

        def evaluate(self, program: Program, tier: Tier) -> Evaluation:
            evaluation = super().evaluate(program, tier)
            if self.left:
                self.left -= 1
                return evaluation.model_copy(update={"status": "infrastructure_error"})
            return evaluation

    table = {"a/one": ["correct 1.2"]}
    folder = new_folder(tmp_path, config())
    assert go(folder, ToyMind([[idea("a")]], table), bench=Failing()).status == "correct"

    twice = Failing()
    twice.left = 2
    folder = new_folder(tmp_path, config())
    with pytest.raises(InfrastructureError, match="twice"):
        go(folder, ToyMind([[idea("a")]], table), bench=twice)
    assert go(folder, ToyMind([[idea("a")]], table), bench=twice, resumed=True).status == "correct"


def test_an_approved_plan_is_what_is_followed(tmp_path: Path) -> None:
    settings = config(approve_plan=True)
    folder = new_folder(tmp_path, settings)
    mind = ToyMind([[idea("a"), idea("b")]], {"a/one": ["correct 1.1"], "b/one": ["correct 1.2"]})
    with pytest.raises(AwaitingApproval):
        go(folder, mind, settings=settings)
    plan = json.loads(folder.plan(0).read_text())
    plan["ideas"] = plan["ideas"][1:]
    folder.plan(0).write_text(json.dumps(plan))
    result = go(folder, mind, settings=settings, resumed=True)
    assert (result.attempts, result.over_best) == (1, 1.2)
    assert mind.asked.count("plan") == 1


def test_a_plan_that_was_edited_wrongly_is_shown_again(tmp_path: Path) -> None:
    settings = config(approve_plan=True)
    folder = new_folder(tmp_path, settings)
    problems: list[str] = []

    def ask(path: Path, waited: bool, problem: str) -> bool:
        problems.append(problem)
        whole = json.dumps({"summary": "s", "bottleneck": "b", "ideas": [_idea_data("b")]})
        path.write_text(whole if problem else "{}")
        return True

    mind = ToyMind([[idea("a")]], {"b/one": ["correct 1.2"]})
    assert go(folder, mind, settings=settings, ask=ask).status == "correct"
    assert problems[0] == ""
    assert "summary" in problems[1]


def _idea_data(name: str) -> object:
    written: Idea = idea(name)
    return written.model_dump(mode="json")


def test_the_result_says_who_wrote_the_best_program(tmp_path: Path) -> None:
    seed = idea("seed")
    seed = seed.model_copy(update={"steps": [step.model_copy(update={"recipes": ["r"]}) for step in seed.steps]})
    authors = []
    for name, speedups in (("a", ("1.5", "1.2")), ("b", ("1.2", "1.5"))):
        table = {"seed/one": [f"correct {speedups[0]}"], "own/one": [f"correct {speedups[1]}"]}
        (tmp_path / name).mkdir()
        result = go(new_folder(tmp_path / name, config()), ToyMind([[seed, idea("own")]], table, paid=True))
        authors.append(result.author)
    assert authors == ["recipes", "toy"]
