"""The recipes as Planner, Coder and Verifier: ideas that apply, programs that repair, routes with reasons."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan
from stitchcuda.agents.roles import Attempt, CodeRequest, PlanRequest, VerifyRequest
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.model import Evaluation, SpeedOfLight, Status
from stitchcuda.profiling.model import Profile, Timeline
from stitchcuda.program.model import Program
from stitchcuda.recipes.base import Rewriter
from stitchcuda.recipes.concat import Concat
from stitchcuda.recipes.mind import mind
from stitchcuda.recipes.write import write_program
from stitchcuda.task.model import Task, TaskFacts
from tests.recipes.support import make_device, make_task, model_source


class Failure(NamedTuple):
    """What a repair is asked with."""

    failed: Program
    feedback: Feedback
    evaluation: Evaluation


CHAIN = model_source("x = F.gelu(a) * b + 1\nreturn F.softmax(x, -1), (a @ b.t()).relu() * 2", [(64, 256), (64, 256)])


def plan_request(task: Task, attempts: list[Attempt] | None = None, *, gap: float = 4e-4) -> PlanRequest:
    timeline = Timeline(wall_seconds=1e-3, busy_seconds=1e-3 - gap, gap_seconds=gap, copy_seconds=0.0, launches=100)
    profile = Profile(
        subject="reference",
        source="kineto",
        timeline=timeline,
        kernels=[],
        bottleneck="launch_bound",
        evidence="gaps take 40% of 1 ms",
    )
    facts = TaskFacts(
        inputs=[],
        outputs=[],
        parameters=0,
        stochastic=False,
        seedable=False,
        training=True,
        mutates_state=False,
        eager_seconds=1e-3,
    )
    return PlanRequest(
        task=task,
        facts=facts,
        device=make_device(task.target.kind),
        profile=profile,
        baselines={"eager": 1e-3},
        attempts=attempts or [],
    )


def plan_for(task: Task, *, gap: float = 4e-4) -> Plan:
    return mind().planner.plan(plan_request(task, gap=gap))


def code_request(task: Task, idea: Idea, step: int = -1, *, failed: Failure | None = None) -> CodeRequest:
    request = plan_request(task)
    more = failed._asdict() if failed is not None else {}
    return CodeRequest(
        task=task,
        facts=request.facts,
        device=request.device,
        idea=idea,
        step=idea.steps[step],
        **more,
    )


def test_the_mind_is_free_and_named() -> None:
    recipes = mind()
    assert recipes.name == "recipes"
    assert not recipes.paid


def test_where_gaps_dominate_the_first_candidate_is_complete() -> None:
    (idea,) = plan_for(make_task(CHAIN, "cuda")).ideas
    assert idea.name == "kernels and host"
    (step,) = idea.steps
    assert {"pointwise", "row_reduction", "cuda_graph"} <= set(step.recipes)
    assert step.predicted_gain > 1
    assert step.acceptance


def test_without_gaps_no_graph_is_tried() -> None:
    (idea,) = plan_for(make_task(CHAIN, "cuda"), gap=2e-5).ideas
    assert idea.name == "kernels only"
    assert "cuda_graph" not in idea.steps[0].recipes


def test_where_a_graph_may_pay_the_kernels_are_measured_first() -> None:
    (idea,) = plan_for(make_task(CHAIN, "cuda"), gap=1.7e-4).ideas
    assert ["cuda_graph" in step.recipes for step in idea.steps] == [False, True]


def broken_concat(_: Concat, rewriter: Rewriter) -> None:
    """Changes the graph and fails."""
    for node in rewriter.graph.nodes:
        if node.op == "call_function":
            node.args = ()
    raise RuntimeError("no such shape")


@pytest.mark.filterwarnings("ignore:recipe concat was left out")
def test_a_recipe_that_fails_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(CHAIN, "cuda")
    (whole,) = plan_for(task).ideas
    names = [name for name in whole.steps[0].recipes if name != "concat"]
    expected = write_program(task, make_device("cuda"), names)
    monkeypatch.setattr(Concat, "apply", broken_concat)
    plan = plan_for(task)
    assert "concat was left out: it failed on this program (RuntimeError: no such shape)" in plan.summary
    assert plan.ideas[0].steps[0].recipes == names
    with pytest.warns(RuntimeWarning, match="recipe concat was left out"):
        assert write_program(task, make_device("cuda"), [*names, "concat"]).files == expected.files


def test_a_plan_without_a_rewrite_says_so() -> None:
    plan = plan_for(make_task(model_source("return a @ b", [(8, 8), (8, 8)])))
    assert plan.ideas == []
    assert "No rewrite found" in plan.summary


def test_an_unreadable_program_on_cpu_says_why() -> None:
    plan = plan_for(make_task(model_source("if a.sum() > 0:\n    return a * 2\nreturn a", [(4,)])))
    assert plan.ideas == []
    assert "cannot be read as a graph" in plan.summary


CASES = """
def get_input_cases():
    return [("short", 1.0, lambda: [torch.randn({short}, 64)]), ("long", 2.0, lambda: [torch.randn(32, 64)])]
"""


def test_input_cases_of_different_shapes_end_without_a_rewrite() -> None:
    source = model_source("return F.gelu(a) * 2 + a", [(32, 64)])
    plan = plan_for(make_task(source + CASES.format(short=8)))
    assert plan.ideas == []
    assert plan.summary.startswith("No rewrite found: the input cases 'short' (float32[8, 64]) and 'long'")
    assert plan_for(make_task(source + CASES.format(short=32))).ideas


def test_on_cuda_each_shape_of_input_cases_gets_a_graph_of_its_own() -> None:
    task = make_task(model_source("return F.gelu(a) * 2 + a", [(32, 64)]) + CASES.format(short=8), "cuda")
    (idea,) = plan_for(task).ideas
    assert idea.name == "host only"


def test_where_a_graph_would_only_copy_a_lone_operator_gets_a_kernel() -> None:
    task = make_task(model_source("return torch.relu(a)", [(4096, 32768)]), "cuda")
    (idea,) = plan_for(task, gap=1e-6).ideas
    assert (idea.name, idea.steps[0].recipes[0]) == ("kernels only", "lone_pointwise")
    assert "cuda_graph: 1 places, -" in idea.rationale
    program = mind().coder.code(code_request(task, idea))
    assert "_Graph" not in program.files["program.py"]
    assert program.manifest is not None
    assert len(program.manifest.launchers) == 1


def test_where_nothing_but_a_graph_is_left_it_is_tried() -> None:
    task = make_task(model_source("return F.max_pool2d(a, 2)", [(64, 64, 512, 512)]), "cuda")
    (idea,) = plan_for(task, gap=1e-6).ideas
    assert idea.name == "host only"


def test_an_unreadable_program_on_cuda_may_still_be_captured_whole() -> None:
    task = make_task(model_source("if a.sum() > 0:\n    return a * 2\nreturn a", [(4,)]), "cuda")
    plan = plan_for(task)
    (idea,) = plan.ideas
    program = mind().coder.code(code_request(task, idea))
    assert "_Graph(super().forward" in program.files["program.py"]


def test_replanning_leaves_out_what_was_tried() -> None:
    task = make_task(CHAIN, "cuda")
    first = plan_for(task).ideas[0].name
    tried = [Attempt(number=1, idea=first, step="", status="correct")]
    assert first not in [idea.name for idea in mind().planner.plan(plan_request(task, tried)).ideas]


def test_later_steps_keep_the_recipes_of_earlier_ones() -> None:
    task = make_task(CHAIN, "cuda")
    (idea,) = plan_for(task, gap=1.7e-4).ideas
    first, last = (mind().coder.code(code_request(task, idea, step)) for step in (0, -1))
    assert "_Graph" not in first.files["program.py"]
    assert "_Graph" in last.files["program.py"]
    assert first.manifest == last.manifest


def test_the_same_request_gives_the_same_program() -> None:
    task = make_task(CHAIN)
    idea = plan_for(task).ideas[0]
    assert mind().coder.code(code_request(task, idea)).digest == mind().coder.code(code_request(task, idea)).digest


def failure(program: Program, status: Status = "wrong_output", log: str = "") -> Failure:
    evaluation = Evaluation(status=status, message="it failed", tier="screen", precision="fp32", log=log)
    feedback = Feedback(route="retry", diagnosis="it failed", evidence=log, suggestion="repair")
    return Failure(program, feedback, evaluation)


def test_a_launcher_that_the_messages_name_is_left_out() -> None:
    task = make_task(CHAIN)
    idea = plan_for(task).ideas[0]
    program = mind().coder.code(code_request(task, idea))
    assert program.manifest is not None
    names = [launcher.name for launcher in program.manifest.launchers]
    assert len(names) == 2
    repaired = mind().coder.code(
        code_request(task, idea, failed=failure(program, "build_failed", f"error in {names[0]}"))
    )
    assert repaired.manifest is not None
    assert names[0] not in [launcher.name for launcher in repaired.manifest.launchers]
    assert names[1] in [launcher.name for launcher in repaired.manifest.launchers]


def test_one_half_then_the_other_then_all_launchers_are_left_out() -> None:
    task = make_task(CHAIN, "cuda")
    (idea,) = plan_for(task).ideas
    seen = []
    program = mind().coder.code(code_request(task, idea))
    for _ in range(4):
        seen.append([launcher.name for launcher in program.manifest.launchers] if program.manifest else [])
        if not seen[-1]:
            break
        program = mind().coder.code(code_request(task, idea, failed=failure(program)))
    whole, first, second, nothing = seen
    assert len(whole) == 2
    assert second == [name for name in whole if name not in first]
    assert nothing == []
    assert "_Graph" in program.files["program.py"]


def test_repair_ends_when_nothing_is_left() -> None:
    task = make_task(CHAIN)
    idea = plan_for(task).ideas[0]

    def repair_for_ever() -> None:
        program = mind().coder.code(code_request(task, idea))
        for _ in range(12):
            program = mind().coder.code(code_request(task, idea, failed=failure(program)))

    with pytest.raises(ProgramError):
        repair_for_ever()


def test_a_graph_that_can_be_rewritten_and_not_printed_is_an_answer_without_a_program() -> None:
    forward = "from collections import namedtuple\nreturn namedtuple('Pair', 'x')(F.gelu(a * 2 + 1) * 3)"
    task = make_task(model_source(forward, [(64, 64)]))
    idea = plan_for(task).ideas[0]
    with pytest.raises(ProgramError, match="returns a Pair, which cannot be printed"):
        mind().coder.code(code_request(task, idea))


def verify(evaluation: Evaluation, *, last: bool = True) -> Feedback:
    task = make_task(CHAIN)
    idea = plan_for(task).ideas[0]
    request = VerifyRequest(
        task=task,
        device=make_device(),
        idea=idea,
        step=idea.steps[-1],
        program=Program(files={"program.py": ""}),
        evaluation=evaluation,
        last_step=last,
    )
    return mind().verifier.verify(request)


def evaluated(status: Status, **more: Any) -> Evaluation:
    return Evaluation(status=status, message="m", tier="screen", precision="fp32", **more)


def test_routes_follow_the_evaluation() -> None:
    assert verify(evaluated("wrong_output")).route == "retry"
    assert verify(evaluated("wrong_output")).fingerprint
    assert verify(evaluated("dishonest")).route == "replan"
    assert verify(evaluated("correct", speedup={"eager": 1.5, "over_best": 1.1})).route == "next"
    assert verify(evaluated("correct", speedup={"eager": 0.5, "over_best": 0.4})).route == "replan"
    bound = SpeedOfLight(fraction=0.95, bound_seconds=1e-3, binds="memory")
    assert verify(evaluated("correct", speedup={"eager": 3.0}, sol=bound)).route == "stop"
