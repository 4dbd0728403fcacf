"""Ablations and comparison systems in the same loop, asked over a real connection: who is asked, and what each sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.agents.llm import mind
from stitchcuda.agents.metrics24 import COUNTERS
from stitchcuda.agents.schemes import Agents, Part, arranged
from stitchcuda.errors import ModelAccessError, StitchError
from stitchcuda.profiling.model import KernelCounters, Profile
from stitchcuda.program.model import Program
from stitchcuda.recipes.seeds import seeded
from stitchcuda.task.model import Task
from stitchcuda.workflow.approval import approval, later
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.machine import Machine
from stitchcuda.workflow.result import Result
from stitchcuda.workflow.story import read_story
from tests.agents.support import hasty
from tests.support.scripted_endpoint import Request, ScriptedEndpoint, text, tool
from tests.workflow.world import DEVICE, TASK, Ear, ToyBench, new_folder
from tests.workflow.world import program as given

STEP = {"title": "one row softmax", "operators": ["softmax"], "fusion": "f", "acceptance": "a"}
PLAN = {"summary": "s", "bottleneck": "memory", "ideas": [{"name": "rows", "rationale": "bytes", "steps": [STEP]}]}
SMALL_TASK = Path(__file__).parents[2] / "examples" / "postprocess.py"
SECRET_COUNTER = "smsp__not_one_of_them.pct"


def program(words: str) -> dict[str, Any]:
    return text(f"### program.py\n```python\n# {words}\nclass ModelNew:\n    pass\n```\n")


class Model:
    """Answers by what is asked for; programs in the given order."""

    def __init__(self, programs: Sequence[str]) -> None:
        self.programs = list(programs)
        self.roles: list[str] = []
        self.texts: list[str] = []

    def __call__(self, request: Request, number: int) -> dict[str, Any]:
        role = request.tools[0] if request.tools else "coder"
        self.roles.append(role)
        self.texts.append(request.text)
        match role:
            case "plan":
                return tool(PLAN)
            case "feedback":
                route = "optimise" if "**correct**" in request.text else "retry"
                return tool({"route": route, "diagnosis": "d", "evidence": "e", "suggestion": "THE-VERIFIER-SAYS"})
            case "issue":
                return tool({"critical_issue": "ISSUE", "why_it_matters": "w", "minimal_fix_hint": "HINT"})
            case "limit":
                return tool({"bottleneck": "LIMIT", "method": "METHOD", "plan": "PLAN-OF-CHANGE"})
        return program(self.programs[min(self.roles.count("coder"), len(self.programs)) - 1])


class Counting(ToyBench):
    """Profiles with hardware counters."""

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        metrics = dict.fromkeys(COUNTERS, 41.0) | {SECRET_COUNTER: 97.5}
        rows = KernelCounters(name="rows", grid=(1, 1, 1), block=(32, 1, 1), metrics=metrics)
        return super().profile(program, counters).model_copy(update={"counters": [rows]})


def go(
    tmp_path: Path,
    model: Model,
    *,
    agents: Agents = "full",
    ablate: Sequence[Part] = (),
    task: Task = TASK,
    base: Program | None = None,
    **more: object,
) -> Result:
    """A whole run with the given arrangement."""
    settings = RunConfig.checked(
        task="toy.py", model="openai:scripted", agents=agents, ablate=list(ablate), sol_fraction=1.0, **more
    )
    folder = new_folder(tmp_path, settings)
    with ScriptedEndpoint(model) as endpoint, Journal.open(folder.path) as journal:
        whole = mind("openai:scripted", base_url=endpoint.base_url, log=journal, settings=hasty())
        arranged_mind = arranged(whole, settings.agents, settings.ablate, judge=whole.judge)
        return Machine(
            settings,
            task,
            DEVICE,
            journal=journal,
            folder=folder,
            bench=Counting(),
            mind=seeded(arranged_mind) if settings.seeded else arranged_mind,
            sink=Ear(),
            approve=approval(folder, resumed=False, ask=later),
            base=base,
        ).run()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")


def test_single_is_one_answer_from_one_model(tmp_path: Path) -> None:
    model = Model(["correct 1.2"])
    result = go(tmp_path, model, agents="single")
    assert model.roles == ["coder"]
    assert (result.over_best, result.attempts, result.mind) == (1.2, 1, "openai:scripted (single)")


def test_best_of_k_writes_k_programs_and_repairs_none(tmp_path: Path) -> None:
    model = Model(["wrong 1", "correct 1.1", "correct 1.4"])
    result = go(tmp_path, model, agents="single", iterations=3, parallel=1)
    assert model.roles == ["coder"] * 3
    assert (result.over_best, result.attempts) == (1.4, 3)


def test_coder_judge_goes_round_by_round_from_the_last_program_without_history(tmp_path: Path) -> None:
    model = Model(["wrong 1", "wrong 1", "correct 1.3", "correct 1.2", "correct 1.5"])
    result = go(tmp_path, model, agents="coder-judge", iterations=5)
    assert model.roles == ["coder", "issue", "coder", "issue", "coder", "limit", "coder", "limit", "coder", "limit"]
    assert (result.over_best, result.attempts, result.spent.iterations) == (1.5, 5, 5)
    coders = [t for role, t in zip(model.roles, model.texts, strict=True) if role == "coder"]
    assert "HINT" in coders[1]
    assert "METHOD PLAN-OF-CHANGE" in coders[3]
    assert "correct 1.2" in coders[4], "the last program, though the one before was faster"
    assert not any("correct 1.3" in t for t in coders[4:]), "no history"


def test_its_judge_sees_the_24_counters_and_no_other(tmp_path: Path) -> None:
    model = Model(["correct 1.3"])
    go(tmp_path, model, agents="coder-judge", iterations=1)
    seen = next(t for role, t in zip(model.roles, model.texts, strict=True) if role == "limit")
    assert len(COUNTERS) == 24
    assert all(f"{name}: 41" in seen for name in COUNTERS)
    assert SECRET_COUNTER not in seen


def test_coder_judge_ends_when_its_rounds_are_used(tmp_path: Path) -> None:
    model = Model(["wrong same"])
    result = go(tmp_path, model, agents="coder-judge", iterations=4)
    assert (result.status, result.attempts) == ("nothing_correct", 4)


def test_without_the_planner_nobody_plans(tmp_path: Path) -> None:
    model = Model(["correct 1.2"])
    result = go(tmp_path, model, ablate=["planner"], iterations=1, drafts=1)
    assert "plan" not in model.roles
    assert "feedback" in model.roles
    assert result.mind == "openai:scripted without planner"


def test_without_the_verifier_nobody_judges(tmp_path: Path) -> None:
    model = Model(["wrong 1", "correct 1.2", "correct 1.3"])
    result = go(tmp_path, model, ablate=["verifier"], iterations=2, drafts=1)
    assert set(model.roles) == {"plan", "coder"}
    assert result.over_best == 1.3


def test_without_the_profile_nobody_is_told_where_time_goes(tmp_path: Path) -> None:
    told, blind = Model(["correct 1.2"]), Model(["correct 1.2"])
    go(tmp_path / "a", told, iterations=1, drafts=1)
    go(tmp_path / "b", blind, ablate=["profile"], iterations=1, drafts=1)
    assert any("because it is so" in text for text in told.texts)
    assert not any("because it is so" in text for text in blind.texts)
    assert any("it was not profiled" in text for text in blind.texts)


def test_recipes_best_idea_joins_the_first_plan_and_costs_no_reply(tmp_path: Path) -> None:
    source = SMALL_TASK.read_text()
    task = TASK.model_copy(update={"source": source, "name": "small"})
    model = Model(["correct 1.2"])
    result = go(tmp_path, model, iterations=1, drafts=1, beam=1, task=task)
    assert model.roles == ["plan", "coder", "feedback"]
    story = read_story(RunFolder(Path(result.run)))
    assert {attempt.idea.partition(":")[0] for attempt in story.attempts} == {"recipes", "rows"}
    assert result.spent.iterations == 1, "a recipe is no candidate beside a model"
    without = Model(["correct 1.2"])
    go(tmp_path, without, ablate=["recipes"], iterations=1, drafts=1, beam=1, task=task)
    assert without.roles == model.roles
    assert not any("recipes: " in text for text in without.texts)


def test_recipes_that_cannot_print_their_program_do_not_end_the_models_run(tmp_path: Path) -> None:
    source = SMALL_TASK.read_text().replace("return self.norm(x)", "return Scores(self.norm(x))")
    source += "\nfrom collections import namedtuple\nScores = namedtuple('Scores', 'x')\n"
    task = TASK.model_copy(update={"source": source, "name": "small"})
    result = go(tmp_path, Model(["correct 1.2"]), iterations=1, drafts=1, beam=1, task=task)
    assert (result.status, result.over_best) == ("correct", 1.2)
    attempts = read_story(RunFolder(Path(result.run))).attempts
    assert any("cannot be printed" in attempt.diagnosis for attempt in attempts)


class Wordy(Model):
    """Never gives a plan in the form that is asked for."""

    def __call__(self, request: Request, number: int) -> dict[str, Any]:
        answer = super().__call__(request, number)
        return tool({**PLAN, "ideas": "fuse everything"}) if self.roles[-1] == "plan" else answer


def test_recipes_are_the_plan_where_the_model_gives_none(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"source": SMALL_TASK.read_text(), "name": "small"})
    model = Wordy([])
    result = go(tmp_path, model, iterations=2, drafts=2, beam=1, replans=1, task=task)
    assert set(model.roles) == {"plan"}
    story = read_story(RunFolder(Path(result.run)))
    assert story.plans[0].summary.startswith("Recipes alone: openai:scripted gave no usable plan in 3 replies: ideas:")
    assert {attempt.idea for attempt in story.attempts} == {idea.name for idea in story.plans[0].ideas}
    assert "asked again: openai:scripted gave no usable plan" in result.stopped


def test_where_recipes_have_no_idea_either_it_is_said_what_was_wrong_with_the_plan(tmp_path: Path) -> None:
    with pytest.raises(ModelAccessError, match="ideas: Input should be a valid list, found 'fuse everything'"):
        go(tmp_path, Wordy([]))


@pytest.mark.parametrize(("agents", "ablate"), [("single", ()), ("coder-judge", ()), ("full", ("planner",))])
def test_a_program_to_start_from_is_worked_on_without_a_planner_too(
    tmp_path: Path, agents: Agents, ablate: Sequence[Part]
) -> None:
    model = Model(["correct 1.2"])
    go(tmp_path, model, agents=agents, ablate=ablate, iterations=1, drafts=1, base=given("correct 1.1"))
    assert model.roles.count("coder") == 1


def test_recipes_join_the_first_plan_of_a_run_with_a_program_to_start_from(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"source": SMALL_TASK.read_text(), "name": "small"})
    model = Model(["correct 1.2"])
    result = go(tmp_path, model, iterations=1, drafts=1, beam=1, task=task, base=given("correct 1.1"))
    story = read_story(RunFolder(Path(result.run)))
    assert {attempt.idea.partition(":")[0] for attempt in story.attempts} == {"given", "recipes", "rows"}


def test_without_knowledge_nothing_is_looked_up() -> None:
    assert RunConfig.checked(task="t.py", model="openai:x").looks_up
    assert not RunConfig.checked(task="t.py", model="openai:x", ablate=["knowledge"]).looks_up
    assert not RunConfig.checked(task="t.py", model="openai:x", agents="single").looks_up


def test_arrangements_that_say_nothing_are_refused() -> None:
    with pytest.raises(StitchError, match="no effect on recipes"):
        RunConfig.checked(task="t.py", agents="single")
    with pytest.raises(StitchError, match="no effect on recipes"):
        RunConfig.checked(task="t.py", ablate=["planner"])
    with pytest.raises(StitchError, match="parts of the full loop"):
        RunConfig.checked(task="t.py", model="openai:x", agents="single", ablate=["profile"])


def test_settings_with_an_arrangement_are_read_back(tmp_path: Path) -> None:
    settings = RunConfig.checked(task="t.py", model="openai:x", ablate=["planner", "profile"])
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml())
    assert RunConfig.read(path) == settings
