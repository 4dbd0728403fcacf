"""The Judge: a language model's marks beside those from evidence, asked several times, never trusted further than that.

It sees reference, program, evidence and rubric. Whatever goes wrong with it ends in an outcome that says so and leaves
the evidence's marks as they are; how both are combined is in ``reward.combine``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stitchcuda.agents.prompting import Prompt
from stitchcuda.agents.providers import check_access
from stitchcuda.agents.settings import Limits, MindSettings, Patience
from stitchcuda.agents.spending import Meter
from stitchcuda.reward.combine import combine
from stitchcuda.reward.judge_calibration import Calibration
from stitchcuda.reward.judge_evidence import Item, items
from stitchcuda.reward.judge_model import JudgeOutcome, JudgeSettings, Outcome, Verdict, Vote
from stitchcuda.reward.judge_prompt import judge_prompt, order, prompt_digest
from stitchcuda.reward.judge_python import CannotBeShown
from stitchcuda.reward.judge_view import reference_text, view
from stitchcuda.reward.model import DIMENSIONS, RubricScore
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.replies import Replies
from stitchcuda.reward.task_rubric import TaskRubric
from stitchcuda.task.model import Task

Notify = Callable[[str], None]


class Judge:
    """One model as a judge. Safe to be asked from several threads."""

    def __init__(
        self, settings: JudgeSettings, calibration: Calibration | None = None, notify: Notify | None = None
    ) -> None:
        """A calibration of another model or prompt is left aside, and said.

        Raises StitchError for a bad name or address, KeyMissing without a key, ToolMissing without the ``llm`` extra.
        """
        check_access(settings.model, settings.base_url)
        self.settings = settings
        self.notify = notify or (lambda sentence: None)
        self.prompt = prompt_digest(settings)
        self.calibration = self._fitting(calibration)

    def judge(
        self, task: Task, observed: Observed, evidence: RubricScore, asked: TaskRubric | None = None
    ) -> JudgeOutcome:
        """Marks of evidence and judge together. Never raises for anything that the model or its server does."""
        if not observed.evaluation.passed:
            return self._alone(evidence, "not asked", f"the program is {observed.evaluation.status}")
        if observed.program is None:
            return self._alone(evidence, "not asked", "there is no program to show")
        try:
            shown = view(observed.program, task.source)
            reference = reference_text(task.source)
        except CannotBeShown as error:
            return self._alone(evidence, "not asked", f"the program cannot be shown: {error}")
        found = items(observed, evidence.skill, shown.names)
        asks = []
        for number in range(self.settings.votes):
            dimensions, listed = order(number, self.settings.seed, found)
            prompt = judge_prompt(task, evidence.skill, shown, reference, dimensions, listed, asked)
            asks.append((Vote(number=number, dimensions=dimensions, evidence=[i.id for i in listed]), prompt))
        meter = Meter(Limits())
        with ThreadPoolExecutor(max_workers=len(asks)) as pool:
            votes = list(pool.map(lambda ask: self._vote(ask[0], ask[1], found, meter), asks))
        return self._outcome(evidence, votes, found, meter)

    def _vote(self, vote: Vote, prompt: Prompt, found: Sequence[Item], meter: Meter) -> Vote:
        from stitchcuda.agents.asking import Conversation, NoUsableAnswer

        known = {item.id for item in found}

        def check(verdict: Verdict) -> None:
            for name in DIMENSIONS:
                if unknown := [one for one in verdict.opinion(name).evidence if one not in known]:
                    raise ValueError(
                        f"{name} cites {', '.join(unknown)[:80]}; cite only ids that are shown, such as E1"
                    )

        settings = self.settings
        conversation = Conversation(
            settings.model,
            settings.base_url,
            log=Replies(f"judge#{vote.number}"),
            settings=MindSettings(
                judge_temperature=settings.temperature,
                judge_output_tokens=settings.output_tokens,
                output_mode=settings.output_mode,
                reasks=settings.reasks,
                patience=Patience(
                    request_seconds=settings.request_seconds,
                    attempts=settings.attempts,
                    busy_seconds=settings.request_seconds,
                    first_wait_seconds=settings.first_wait_seconds,
                ),
                prices=settings.prices,
            ),
            meter=meter,
            notify=self.notify,
        )
        try:
            verdict = conversation.typed("judge", prompt, Verdict, check)
        except NoUsableAnswer as error:
            return vote.model_copy(update={"failure": f"no usable answer: {error}"[:500]})
        except Exception as error:
            # A judge is advice: whatever its client raises must not end the scoring, and is recorded.
            return vote.model_copy(update={"failure": f"{type(error).__name__}: {error}"[:500]})
        return vote.model_copy(update={"verdict": verdict})

    def _outcome(self, evidence: RubricScore, votes: list[Vote], found: Sequence[Item], meter: Meter) -> JudgeOutcome:
        spend = meter.spend
        usable = [vote.verdict for vote in votes if vote.verdict is not None]
        base = self._alone(evidence, "failed", "").model_copy(
            update={
                "votes": votes,
                "items": {item.id: item.text for item in found},
                "requests": spend.requests,
                "input_tokens": spend.input_tokens,
                "output_tokens": spend.output_tokens,
                "usd": spend.usd,
            }
        )
        if 2 * len(usable) <= len(votes):
            last = next((vote.failure for vote in votes if vote.failure), "")
            said = f"{len(usable)} of {len(votes)} votes can be used; {last}"
            self.notify(f"the judge's word is left out: {said}")
            return base.model_copy(update={"reason": said})
        scores = {name: [verdict.opinion(name).score for verdict in usable] for name in DIMENSIONS}
        medians = {name: float(statistics.median(given)) for name, given in scores.items()}
        combined = combine(evidence, medians, self.calibration, judge=self.settings.model)
        return base.model_copy(
            update={
                "outcome": "contradicted" if combined.contradiction else "counted",
                "reason": combined.contradiction,
                "score": combined.score,
                "medians": medians,
                "spread": {name: max(given) - min(given) for name, given in scores.items()},
                "notes": combined.notes,
            }
        )

    def _alone(self, evidence: RubricScore, outcome: Outcome, reason: str) -> JudgeOutcome:
        return JudgeOutcome(
            outcome=outcome,
            reason=reason,
            score=evidence,
            evidence=evidence,
            model=self.settings.model,
            calibrated=self.calibration is not None,
            prompt=self.prompt,
        )

    def _fitting(self, calibration: Calibration | None) -> Calibration | None:
        if calibration is None:
            return None
        if calibration.model != self.settings.model:
            self.notify(f"the calibration is of {calibration.model}; {self.settings.model} can only lower marks")
            return None
        if calibration.prompt != self.prompt:
            self.notify(
                f"{self.settings.model} was calibrated with another prompt, temperature or number of votes; "
                "until it is calibrated again it can only lower marks"
            )
            return None
        return calibration
