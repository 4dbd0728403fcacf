"""What is told of a run from its journal, whether it goes on, was stopped or ended."""

from __future__ import annotations

from pathlib import Path

from stitchcuda.agents.plan import Idea
from stitchcuda.workflow.story import read_story
from tests.workflow.world import EXTENDED, ToyMind, config, extended, go, idea, in_turn, new_folder, program

PROGRAMS = ["correct 1.2", "correct 2.0", "correct 1.1"]


def by_recipes(written: Idea) -> Idea:
    """The same idea, of recipes."""
    steps = [step.model_copy(update={"recipes": ["r"]}) for step in written.steps]
    return written.model_copy(update={"steps": steps})


def test_the_result_of_a_run_that_was_given_more_is_an_earlier_one_until_it_ends_again(tmp_path: Path) -> None:
    folder = extended(tmp_path, PROGRAMS)
    story = read_story(folder)
    assert (story.status, story.best, story.result) == ("interrupted", 2, None)
    assert story.earlier is not None
    assert (story.earlier.number, story.earlier.over_best) == (1, 1.2)
    result = go(folder, in_turn(PROGRAMS), settings=EXTENDED, resumed=True)
    story = read_story(folder)
    assert (story.status, story.best, story.result, story.earlier) == ("correct", 2, result, None)


def test_a_summary_that_an_earlier_version_left_does_not_count(tmp_path: Path) -> None:
    folder = extended(tmp_path, PROGRAMS)
    earlier = read_story(folder).earlier
    assert earlier is not None
    folder.save_summary(earlier)
    assert read_story(folder).result is None


def test_a_program_that_led_and_did_not_hold_is_not_the_best(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, config())
    go(folder, ToyMind([[idea("a")]], {"a/one": ["flaky correct 1.2"]}))
    assert read_story(folder).best is None


def test_candidates_are_counted_as_the_result_counts_them(tmp_path: Path) -> None:
    mind = ToyMind(
        [[by_recipes(idea("seed")), idea("own"), idea("bad")]],
        {"seed/one": ["correct 1.2"], "own/one": ["wrong 1", "correct 1.3"], "bad/one": ["nothing"]},
        paid=True,
    )
    folder = new_folder(tmp_path, config())
    result = go(folder, mind, base=program("correct 1.1"))
    story = read_story(folder)
    assert (result.spent.iterations, len(story.attempts)) == (2, 6)
    assert story.spent.iterations == 2
