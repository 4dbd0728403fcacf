"""Decisions of the search on their own."""

from __future__ import annotations

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan
from stitchcuda.agents.roles import Attempt
from stitchcuda.workflow.search import Branch, Search, Trial, best_of_ideas
from tests.workflow.world import ToyBench, idea, program


def by_recipes(name: str) -> Idea:
    plain = idea(name, ("one", "two"))
    return plain.model_copy(update={"steps": [step.model_copy(update={"recipes": ["r"]}) for step in plain.steps]})


def correct(branch: Branch, number: int, over_best: float) -> Trial:
    written = program(f"correct {over_best}")
    return Trial(number, branch.idea.name, branch.step.title, written, ToyBench().evaluate(written, "screen"))


def test_recipes_beside_a_model_take_no_place_of_the_beam() -> None:
    search = Search(beam=1, drafts=1)
    search.adopt(Plan(summary="", bottleneck="", ideas=[by_recipes("recipes: all"), idea("rows", ("one", "two"))]))
    onward = Feedback(route="next", diagnosis="", evidence="", suggestion="")
    recipes, model = search.next(), search.next()
    assert recipes is not None
    assert model is not None
    search.settle(recipes, correct(recipes, 1, 1.5), onward, candidate=False)
    search.settle(model, correct(model, 2, 1.2), onward, candidate=True)
    assert search.end_round() == "again"
    assert (recipes.open, model.open) == (True, True)


def test_recipes_alone_have_one_draft_each_since_all_would_be_the_same() -> None:
    search = Search(beam=2, drafts=3)
    search.adopt(Plan(summary="", bottleneck="", ideas=[by_recipes("a"), by_recipes("b")]))
    assert [(branch.idea.name, branch.draft) for branch in search.branches] == [("a", 0), ("b", 0)]


def test_an_idea_is_told_by_its_fastest_correct_attempt_or_its_latest_where_none_is() -> None:
    def tried(number: int, name: str, status: str, over_best: float | None = None) -> Attempt:
        return Attempt(number=number, idea=name, step="s", status=status, over_best=over_best)

    attempts = [
        tried(1, "a", "build_failed"),
        tried(2, "b", "crashed"),
        tried(3, "a", "correct", 1.4),
        tried(4, "a", "correct", 1.1),
        tried(5, "a", "wrong_output", 9.0),
        tried(6, "b", "wrong_output"),
    ]
    assert [attempt.number for attempt in best_of_ideas(attempts)] == [3, 6]
