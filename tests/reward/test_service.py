"""Completions become rewards: each thing is measured once, what is wrong is zero, a machine's fault is no number."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.errors import InfrastructureError, ProfilerError, TaskError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward import Reward, reward
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge import Judge
from stitchcuda.reward.judge_model import JudgeOutcome
from stitchcuda.reward.model import DIMENSIONS, Mark, RewardSettings, RubricScore
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.score import LONGEST, Item, Unscored
from stitchcuda.reward.service import RewardService, ServiceSettings
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.reward.service_judge import ModelJudge
from stitchcuda.task.model import Target, Task
from tests.reward import judged as judging
from tests.reward.samples import evaluation, rejection
from tests.reward.test_recorded import recorded
from tests.support.scripted_endpoint import ScriptedEndpoint, tool

T = TypeVar("T")

CALM = ServiceSettings(retry_seconds=0.0)
GRU = recorded("gru")
TASK = Task(name="gru", origin="gru.py", source="class Model: ...\n", target=Target(kind="cuda", arch="sm_90"))
FEEDBACK = Feedback(route="optimise", diagnosis="one block", evidence="1 of 132", suggestion="use more")


def reply(number: int = 0) -> str:
    """A Coder's reply with one program; each number gives another."""
    return f"Here it is.\n\n```python program.py\nclass ModelNew:\n    number = {number}\n```\n"


def program(number: int = 0) -> Program:
    """The program in ``reply(number)``."""
    return Program(files={"program.py": f"class ModelNew:\n    number = {number}\n"})


def as_reply(written: Program) -> str:
    """A native program as a Coder sends it."""
    files = dict(written.files)
    if written.manifest is not None:
        files["manifest.json"] = written.manifest.model_dump_json() + "\n"
    return "\n".join(f"```text {name}\n{text}```\n" for name, text in files.items())


class Pool:
    """A backend that answers with what was measured on an H200, and counts.

    ``answer`` may stand in for the Evaluation of the n-th one; ``trouble`` may raise before anything is answered.
    """

    stamp = "an H200"

    def __init__(
        self,
        answer: Callable[[int], Evaluation] = lambda count: GRU.evaluation,
        trouble: Callable[[str, int], None] = lambda what, count: None,
        *,
        seconds: float = 0.001,
    ) -> None:
        self.answer, self.trouble, self.seconds = answer, trouble, seconds
        self.asked: Counter[str] = Counter()
        self.working = self.most = 0

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        return await self._work("evaluate", self.answer)

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        if program is None:
            return await self._work("reference", lambda count: GRU.reference)
        return await self._work("profile", lambda count: GRU.profile)

    async def _work(self, what: str, answer: Callable[[int], T]) -> T:
        self.asked[what] += 1
        count = self.asked[what]
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            await asyncio.sleep(self.seconds)
            self.trouble(what, count)
            return answer(count)
        finally:
            self.working -= 1


def scored(pool: Pool, completion: str, settings: ServiceSettings = CALM, task: Task = TASK) -> Reward | Unscored:
    """The outcome of one completion written from scratch."""
    with BlockingService(pool, settings) as service:
        return service.score(task, completion)


def test_a_completion_gets_the_reward_that_evidence_and_formula_give() -> None:
    pool = Pool()
    found = scored(pool, reply())
    expected = reward(GRU.evaluation, mark(GRU, "scratch"), "scratch")
    assert isinstance(found, Reward)
    assert (found.value, found.total, found.against) == (expected.value, expected.total, expected.against)
    assert found.status == "correct"
    assert sum(found.marks.values()) == found.total
    assert pool.asked == {"evaluate": 1, "profile": 1, "reference": 1}


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        ("", "empty"),
        ("I cannot do that.", "holds no code"),
        ("```python program.py\nclass ModelNew:\n", "cut off"),
        ("```python program.py\nclass Other: ...\n```\n", "ModelNew"),
        ("```python program.py\nclass ModelNew(:\n```\n", "not valid Python"),
        ("x" * (LONGEST + 1), "characters"),
        ("```python program.py\nclass ModelNew: ...\nx = " + "(" * 5000 + ")" * 5000 + "\n```\n", ""),
    ],
)
def test_a_completion_without_a_program_is_worth_nothing_and_runs_nothing(completion: str, said: str) -> None:
    pool = Pool()
    found = scored(pool, completion)
    assert isinstance(found, Reward)
    assert (found.value, found.status, found.correct, found.hack) == (0.0, "no_program", False, False)
    assert said in found.reason
    assert pool.asked == {}


@pytest.mark.parametrize("status", ["wrong_output", "build_failed", "crashed", "timed_out", "out_of_memory"])
def test_a_wrong_program_is_worth_nothing_and_says_why(status: str) -> None:
    wrong = GRU.evaluation.model_copy(update={"status": status, "message": "element 3 is 7"})
    pool = Pool(lambda count: wrong)
    found = scored(pool, reply())
    assert isinstance(found, Reward)
    assert (found.value, found.status, found.reason, found.hack) == (0.0, status, "element 3 is 7", False)
    assert pool.asked == {"evaluate": 1}, "nothing that does not work is profiled"


class Always:
    """A judge that gives everything the same mark; with ``failures`` it first fails so often."""

    stamp = "always"

    def __init__(self, score: float, failures: int = 0) -> None:
        self.score, self.failures, self.asked = score, failures, 0

    async def judge(self, task: Task, observed: Observed, evidence: RubricScore) -> JudgeOutcome:
        self.asked += 1
        if self.asked <= self.failures:
            return JudgeOutcome(outcome="failed", reason="no answer", score=evidence, evidence=evidence, model="m")
        score = RubricScore(skill=evidence.skill, marks={n: Mark(score=self.score) for n in DIMENSIONS}, source="m")
        return JudgeOutcome(outcome="counted", score=score, evidence=evidence, model="m")


def test_a_cheat_is_worth_nothing_whatever_a_judge_says() -> None:
    cheat = GRU.evaluation.model_copy(update={"findings": [rejection("patched_clock")]})
    with BlockingService(Pool(lambda count: cheat), CALM, judge=Always(5.0)) as service:
        found = service.score(TASK, reply())
    assert isinstance(found, Reward)
    assert (found.value, found.hack, found.hacks) == (0.0, True, ["patched_clock"])


def test_a_judge_counts_for_what_works_and_is_paid_once(tmp_path: Path) -> None:
    for asked in (1, 0):
        judge = Always(1.0)
        with BlockingService(Pool(), CALM, judge=judge, cache=tmp_path / "cache.db") as service:
            found = service.score(TASK, reply())
            assert service.score(TASK, "Again:\n" + reply()) == found
        assert isinstance(found, Reward)
        assert (found.total, found.judged, found.score_source) == (4, "counted", "m")
        assert judge.asked == asked


def test_a_judge_that_fails_leaves_the_evidence_standing_and_is_asked_again_another_time() -> None:
    judge = Always(1.0, failures=1)
    with BlockingService(Pool(), CALM, judge=judge) as service:
        first, second = service.score(TASK, reply()), service.score(TASK, reply())
    assert isinstance(first, Reward)
    assert isinstance(second, Reward)
    assert (first.judged, first.total) == ("failed: no answer", mark(GRU, "scratch").total)
    assert (second.judged, second.total) == ("counted", 4)


def test_the_real_judge_counts_behind_the_service_and_is_recorded() -> None:
    said: list[JudgeOutcome] = []
    work = judging.task()

    class Measured(Pool):
        async def evaluate(self, task: Task, program: Program) -> Evaluation:
            return judging.observed().evaluation

    with ScriptedEndpoint(lambda request, number: tool(judging.verdict(1))) as endpoint:
        judge = ModelJudge(Judge(judging.settings(endpoint.base_url)), keep=said.append)
        with BlockingService(Measured(), CALM, judge=judge) as service:
            found = service.score(work, as_reply(judging.program()))
    assert isinstance(found, Reward)
    assert [outcome.outcome for outcome in said] == ["counted"]
    assert found.judged.startswith("counted")
    assert found.score_source == "evidence and openai:scripted"
    assert found.marks["anti_hacking"] == 1, "honesty can be lowered"


def test_a_pool_that_fails_is_asked_again_and_then_leaves_the_completion_unscored() -> None:
    def always(what: str, count: int) -> None:
        raise InfrastructureError("worker_lost: three workers died")

    pool = Pool(trouble=always)
    found = scored(pool, reply())
    assert found == Unscored(kind="infrastructure", reason="worker_lost: three workers died", tries=3)
    assert pool.asked == {"evaluate": 3}


@pytest.mark.parametrize("error", [InfrastructureError("gone"), ConnectionResetError("gone"), TimeoutError()])
def test_a_pool_that_recovers_costs_nothing(error: Exception) -> None:
    def first(what: str, count: int) -> None:
        if what == "evaluate" and count < 3:
            raise error

    found = scored(Pool(trouble=first), reply())
    assert isinstance(found, Reward)
    assert found.value > 0


def test_an_evaluation_that_says_the_machine_failed_is_not_scored_nor_kept() -> None:
    failed = evaluation("infrastructure_error")
    pool = Pool(lambda count: failed if count <= 3 else GRU.evaluation)
    with BlockingService(pool, CALM) as service:
        assert isinstance(service.score(TASK, reply()), Unscored)
        assert isinstance(service.score(TASK, reply()), Reward), "asked for again, it is measured again"


def test_a_number_that_cannot_be_is_measured_anew() -> None:
    broken = GRU.evaluation.model_copy(update={"speedup": {**GRU.evaluation.speedup, "over_best": float("nan")}})
    pool = Pool(lambda count: broken if count == 1 else GRU.evaluation)
    found = scored(pool, reply())
    assert isinstance(found, Reward)
    assert found.value > 0
    always = scored(Pool(lambda count: broken), reply())
    assert isinstance(always, Unscored)
    assert always.kind == "measurement"


def test_a_pool_that_is_silent_has_failed() -> None:
    found = scored(Pool(seconds=30.0), reply(), ServiceSettings(patience_seconds=0.05))
    assert isinstance(found, Unscored)
    assert "0.05 s" in found.reason


def test_a_task_that_does_not_run_is_the_callers_error() -> None:
    def refuse(what: str, count: int) -> None:
        raise TaskError("Model has no forward")

    with pytest.raises(TaskError, match="forward"):
        scored(Pool(trouble=refuse), reply())


def test_without_a_profiler_marks_are_bounded_by_what_was_seen() -> None:
    def none(what: str, count: int) -> None:
        if what != "evaluate":
            raise ProfilerError("no permission")

    found, full = scored(Pool(trouble=none), reply()), scored(Pool(), reply())
    assert isinstance(found, Reward)
    assert isinstance(full, Reward)
    assert found.total is not None
    assert full.total is not None
    assert 4 < found.total <= full.total


def test_a_reference_that_cannot_be_profiled_is_the_machines_fault_and_a_program_that_cannot_its_own() -> None:
    def reference(what: str, count: int) -> None:
        if what == "reference":
            raise InfrastructureError("no trace")

    def own(what: str, count: int) -> None:
        if what == "profile":
            raise InfrastructureError("no trace")

    assert isinstance(scored(Pool(trouble=reference), reply()), Unscored)
    found = scored(Pool(trouble=own), reply())
    assert isinstance(found, Reward)
    assert sorted(found.marks.values()) == [1, 1, 1, 2]


def test_a_machine_that_fails_when_a_program_is_profiled_is_not_the_programs_fault() -> None:
    def breaks(what: str, count: int) -> None:
        if what == "profile" or (what == "reference" and count > 1):
            raise InfrastructureError("no trace")

    pool = Pool(trouble=breaks)
    assert isinstance(scored(pool, reply()), Unscored)


def test_a_program_for_show_gains_nothing_by_breaking_the_profiler() -> None:
    def breaks(what: str, count: int) -> None:
        if what == "profile":
            raise InfrastructureError("no trace")

    class ForShow(Pool):
        """All that the reference runs still runs."""

        async def profile(self, task: Task, program: Program | None) -> Profile | None:
            await super().profile(task, program)
            return GRU.reference

    seen, hides = scored(ForShow(), reply()), scored(ForShow(trouble=breaks), reply())
    assert isinstance(seen, Reward)
    assert isinstance(hides, Reward)
    assert hides.value <= seen.value


def test_equal_completions_at_once_are_measured_once() -> None:
    pool = Pool()
    with BlockingService(pool, CALM) as service:
        found = service.score_all([Item(TASK, reply())] * 40 + [Item(TASK, "Better:\n" + reply())] * 40)
    assert len({outcome.model_dump_json() for outcome in found}) == 1
    assert pool.asked == {"evaluate": 1, "profile": 1, "reference": 1}


def test_no_more_are_in_work_than_allowed_and_order_is_kept() -> None:
    pool = Pool(lambda count: GRU.evaluation)
    with BlockingService(pool, ServiceSettings(concurrency=3)) as service:
        found = service.score_all([Item(TASK, reply(n) if n % 5 else "no code") for n in range(40)])
    assert pool.most == 3
    assert [outcome.status for outcome in found if isinstance(outcome, Reward)] == [
        "correct" if n % 5 else "no_program" for n in range(40)
    ]
    assert pool.asked["evaluate"] == 32
    assert pool.asked["reference"] == 1


def test_a_caller_that_leaves_takes_the_result_from_nobody() -> None:
    async def scenario() -> tuple[Reward | Unscored, Counter[str]]:
        pool = Pool(seconds=0.05)
        async with RewardService(pool, CALM) as service:
            leaves, stays = (asyncio.create_task(service.score(TASK, reply())) for _ in range(2))
            await asyncio.sleep(0.02)
            leaves.cancel()
            return await stays, pool.asked

    found, asked = asyncio.run(scenario())
    assert isinstance(found, Reward)
    assert asked["evaluate"] == 1


def test_when_every_caller_leaves_the_work_ends_and_can_begin_again() -> None:
    async def scenario() -> None:
        pool = Pool(seconds=0.05)
        async with RewardService(pool, CALM) as service:
            callers = [asyncio.create_task(service.score(TASK, reply())) for _ in range(3)]
            await asyncio.sleep(0.02)
            for caller in callers:
                caller.cancel()
            again = asyncio.create_task(service.score(TASK, reply()))
            assert isinstance(await again, Reward)
            assert pool.working == 0
            assert pool.asked["evaluate"] == 2

    asyncio.run(scenario())


def test_improving_is_measured_beside_the_program_before_and_edits_apply_to_it() -> None:
    before = GRU.evaluation.model_copy(
        update={"timings": {n: t.model_copy(update={"median": 2 * t.median, "low": None, "high": None})
                            for n, t in GRU.evaluation.timings.items()}}
    )  # fmt: skip
    pool = Pool(lambda count: before if count == 1 else GRU.evaluation)
    edit = "program.py\n<<<<<<< SEARCH\n    number = 0\n=======\n    number = 1\n>>>>>>> REPLACE\n"
    with BlockingService(pool, CALM) as service:
        found = service.score(TASK, edit, skill="improve", previous=program(0), feedback=FEEDBACK)
        assert isinstance(found, Reward)
        assert found.skill == "improve"
        assert found.value > 0
        assert pool.asked["evaluate"] == 2
        service.score(TASK, reply(1), skill="scratch")
        assert pool.asked["evaluate"] == 2, "the edited program is the one that this reply holds whole"


def test_an_improvement_is_paid_over_stock_options_not_over_a_program_that_was_made_worse() -> None:
    step = Step(title="all of it", operators=["gru"], fusion="one kernel", acceptance="correct and faster")

    def paid(answer: Evaluation) -> Reward:
        pool = Pool(lambda count: evaluation(program=15e-3) if count == 1 else answer)
        with BlockingService(pool, CALM) as service:
            found = service.score(TASK, reply(1), skill="improve", previous=program(0), feedback=FEEDBACK, step=step)
        assert isinstance(found, Reward)
        return found

    stock, honest = paid(evaluation(program=1.5e-3, own=0.0)), paid(evaluation(program=0.75e-3))
    assert (stock.against, stock.speedup, stock.capped) == ("compile", 1.0, False), "ten times as fast as what it was"
    assert (honest.against, honest.speedup) == ("compile", 2.0)
    assert honest.value > stock.value + 0.5


def test_a_step_from_scratch_is_paid_over_the_program_so_far() -> None:
    step = Step(title="the tail", operators=["gru"], fusion="one kernel", acceptance="correct and faster")
    pool = Pool(lambda count: evaluation(program=2e-3 if count == 1 else 1e-3))
    with BlockingService(pool, CALM) as service:
        found = service.score(TASK, reply(1), previous=program(0), step=step)
    assert isinstance(found, Reward)
    assert (found.against, found.speedup) == ("previous program", 2.0)


def test_what_was_measured_is_found_again_by_another_service(tmp_path: Path) -> None:
    for expected in (1, 0):
        pool = Pool()
        with BlockingService(pool, CALM, cache=tmp_path / "cache.db") as service:
            found = service.score(TASK, reply())
        assert isinstance(found, Reward)
        assert pool.asked["evaluate"] == expected
        assert pool.asked["reference"] == expected
    other = Pool()
    with BlockingService(
        other, ServiceSettings(reward=RewardSettings.preset("paper")), cache=tmp_path / "cache.db"
    ) as service:
        found = service.score(TASK, reply())
    assert isinstance(found, Reward)
    assert found.against == "eager"
    assert other.asked == {}, "another reward of the same measurements"


@pytest.mark.parametrize(
    "change",
    [
        {"source": "class Model: pass\n"},
        {"precision": "tf32"},
        {"target": Target(kind="cuda", arch="sm_80")},
        {"search_path": "/somewhere"},
    ],
)
def test_another_task_or_device_is_measured_anew(tmp_path: Path, change: dict[str, object]) -> None:
    with BlockingService(Pool(), CALM, cache=tmp_path / "cache.db") as service:
        service.score(TASK, reply())
    pool = Pool()
    with BlockingService(pool, CALM, cache=tmp_path / "cache.db") as service:
        service.score(TASK.model_copy(update=change), reply())
    assert pool.asked["evaluate"] == 1
    moved = Pool()
    moved.stamp = "another GPU"
    with BlockingService(moved, CALM, cache=tmp_path / "cache.db") as service:
        service.score(TASK, reply())
    assert moved.asked["evaluate"] == 1


def test_whatever_another_version_kept_is_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with BlockingService(Pool(), CALM, cache=path) as service:
        first = service.score(TASK, reply())
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE entry SET value = ?", (zlib.compress(b'{"old": 1}'),))
        file.commit()
    pool = Pool()
    with BlockingService(pool, CALM, cache=path) as service:
        assert service.score(TASK, reply()) == first
    assert pool.asked == {"evaluate": 1, "profile": 1, "reference": 1}


def test_a_task_of_a_users_package_is_not_kept_on_disk_for_its_code_may_change(tmp_path: Path) -> None:
    own = TASK.model_copy(update={"search_path": str(tmp_path)})
    for _ in range(2):
        pool = Pool()
        with BlockingService(pool, CALM, cache=tmp_path / "cache.db") as service:
            service.score(own, reply())
        assert pool.asked["evaluate"] == 1


def test_a_time_out_is_scored_but_not_kept_for_it_may_be_the_loads() -> None:
    late = GRU.evaluation.model_copy(update={"status": "timed_out"})
    pool = Pool(lambda count: late)
    with BlockingService(pool, CALM) as service:
        for _ in range(2):
            found = service.score(TASK, reply())
            assert isinstance(found, Reward)
            assert (found.value, found.status) == (0.0, "timed_out")
    assert pool.asked["evaluate"] == 2


def test_memory_stays_within_its_bound_however_many_are_scored() -> None:
    settings = ServiceSettings(memory_bytes=1 << 20, concurrency=64, profile=False)
    with BlockingService(Pool(seconds=0.0), settings) as service:
        for start in range(0, 640, 64):
            service.score_all([Item(TASK, reply(n)) for n in range(start, start + 64)])
            assert service.service.memory <= 1 << 20
        assert service.service.memory > 1 << 19, "the bound is what limits it"
