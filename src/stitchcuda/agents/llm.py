"""Planner, Coder and Verifier played by language models.

``mind`` gives the three roles for the workflow. Importing this file needs no model package; asking does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from pydantic import ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from stitchcuda.agents.feedback import Feedback, Route
from stitchcuda.agents.fingerprint import cause, fingerprint
from stitchcuda.agents.forms import first_error
from stitchcuda.agents.plan import Idea, Plan
from stitchcuda.agents.prompting import coder_prompt, coder_purpose, planner_prompt, verifier_prompt
from stitchcuda.agents.providers import check_access
from stitchcuda.agents.reading import Amendable, check_native_side, explanation, files_of, refusal
from stitchcuda.agents.roles import CodeRequest, Mind, NoGain, NoPlan, PlanRequest, ReplyLog, VerifyRequest
from stitchcuda.agents.settings import Limits, MindSettings, Role
from stitchcuda.agents.spending import Estimate, Meter, Spend, estimate
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import Program

if TYPE_CHECKING:
    from stitchcuda.agents.asking import Conversation

__all__ = ["Estimate", "LlmCoder", "LlmPlanner", "LlmVerifier", "Spend", "estimate", "mind"]


@runtime_checkable
class SpendingLog(Protocol):
    """A ReplyLog that knows what the run has spent besides the replies that this process will see again."""

    def spent(self) -> Spend: ...


@runtime_checkable
class TimedLog(Protocol):
    """A ReplyLog that knows how long the run has worked by now, in seconds."""

    def worked(self) -> float: ...


def mind(
    model: str,
    *,
    base_url: str | None = None,
    log: ReplyLog,
    settings: MindSettings | None = None,
    limits: Limits | None = None,
    notify: Callable[[str], None] | None = None,
) -> Mind:
    """The three roles behind ``model`` (PROVIDER:NAME, provider one of openai, anthropic, google).

    ``base_url`` is the address of any server that speaks the provider's protocol, for models of the same provider
    as ``model``. ``limits`` hold for the whole run; ``notify`` gets a sentence for each wait. Raises StitchError
    for a bad name or address, KeyMissing without a key, ToolMissing without the ``llm`` extra; nothing is
    asked yet.
    """
    settings = settings or MindSettings()
    roles: tuple[Role, ...] = ("planner", "coder", "repair", "verifier")
    for name in dict.fromkeys([model, *(settings.model_for(role, model) for role in roles)]):
        check_access(name, base_url if name.partition(":")[0] == model.partition(":")[0] else None)
    from stitchcuda.agents.asking import Conversation
    from stitchcuda.agents.scheme_judge import LlmJudge

    meter = Meter(limits or Limits(), log.worked if isinstance(log, TimedLog) else None)
    if isinstance(log, SpendingLog):
        meter.start_from(log.spent())
    conversation = Conversation(
        model, base_url, log=log, settings=settings, meter=meter, notify=notify or (lambda sentence: None)
    )
    return Mind(
        name=model,
        planner=LlmPlanner(conversation),
        coder=LlmCoder(conversation),
        verifier=LlmVerifier(conversation),
        paid=True,
        judge=LlmJudge(conversation),
    )


class LlmPlanner:
    """Asks for a Plan; NoPlan with what was wrong when no reply held one."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def plan(self, request: PlanRequest) -> Plan:
        from stitchcuda.agents.asking import NoUsableAnswer

        reader, settings = _PlanReader(), self._conversation.settings
        try:
            plan = self._conversation.typed("planner", planner_prompt(request), reader.form, reader.check, persist=True)
        except NoUsableAnswer as error:
            name = settings.model_for("planner", self._conversation.model)
            raise NoPlan(
                f"{name} gave no usable plan in {1 + settings.reasks} replies: {reader.problem or error}"
            ) from None
        ideas = [_without_recipes(idea) for idea in plan.ideas]
        return Plan(summary=plan.summary, bottleneck=plan.bottleneck, ideas=ideas)


class _PlanReader:
    """Reads the plans of one conversation, and keeps what was wrong with the last of them."""

    def __init__(self) -> None:
        self.problem = ""
        self.form = self._form()

    def _form(self) -> type[Plan]:
        """A Plan to whoever is asked for one."""
        reader = self

        class Noted(Plan):
            __doc__ = Plan.__doc__
            model_config = ConfigDict(title=Plan.__name__)

            @model_validator(mode="wrap")
            @classmethod
            def _noted(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
                try:
                    return read(value)
                except ValidationError as error:
                    reader.problem = first_error(error)
                    raise

        Noted.__name__ = Plan.__name__
        return Noted

    def check(self, plan: Plan) -> None:
        """Raises ValueError with what is wrong with the whole."""
        try:
            _check_plan(plan)
        except ValueError as error:
            self.problem = str(error)
            raise


class LlmCoder:
    """Asks for a Program; ProgramError with what was wrong when no reply held one, NoGain where the step is refused."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def code(self, request: CodeRequest) -> Program:
        from stitchcuda.agents.asking import NoUsableAnswer

        purpose, base = coder_purpose(request)
        reader = _Reader(request, base)
        role: Role = "repair" if purpose == "repair" else "coder"
        try:
            answer = self._conversation.text(role, coder_prompt(request), reader.read)
        except NoUsableAnswer as error:
            raise ProgramError(
                f"no usable program in {1 + self._conversation.settings.reasks} replies: {error}"
            ) from None
        if isinstance(answer, str):
            raise NoGain(answer)
        return answer


class _Reader:
    """Reads the replies of one conversation; those that come after an unusable one may edit its files."""

    def __init__(self, request: CodeRequest, base: Program | None) -> None:
        self._request = request
        self._bases = [base]
        """What edits may be of: the program that was shown, and before it the files of the last reply."""
        self._said = ""
        """What came with those files."""

    def read(self, text: str) -> Program | str:
        """The Program, or why there is none. Raises ValueError with what is wrong, Amendable where edits will do."""
        try:
            if self._request.may_refuse and (reason := refusal(text)) is not None:
                return reason
            program = self._files(text)
        except ProgramError as error:
            raise ValueError(str(error)) from None
        try:
            check_native_side(program, self._request.task.target.kind)
        except ProgramError as error:
            self._bases = [program, self._bases[-1]]
            self._said = explanation(f"{self._said}\n{text}")
            raise Amendable(str(error)) from None
        return program.model_copy(update={"notes": explanation(f"{self._said}\n{text}")})

    def _files(self, text: str) -> Program:
        for base in self._bases[:-1]:
            try:
                return files_of(text, base)
            except ProgramError:
                continue
        return files_of(text, self._bases[-1])


class LlmVerifier:
    """Asks for Feedback; falls back to plain rules when the model gives none that can be used."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def verify(self, request: VerifyRequest) -> Feedback:
        from stitchcuda.agents.asking import NoUsableAnswer

        told = request.evaluation.status == "build_failed" and not self._conversation.settings.explain_build_failures
        if told or request.evaluation.status == "infrastructure_error":
            return plain_feedback(request)
        routes = allowed_routes(request)

        def check(feedback: Feedback) -> None:
            if feedback.route not in routes:
                raise ValueError(
                    f"route '{feedback.route}' does not fit status {request.evaluation.status}; "
                    f"expected one of {', '.join(routes)}"
                )

        try:
            feedback = self._conversation.typed("verifier", verifier_prompt(request, routes), Feedback, check)
        except NoUsableAnswer:
            return plain_feedback(request)
        cited = request.references.cited(feedback.citations) if request.references else []
        return feedback.model_copy(update={"fingerprint": fingerprint(request.evaluation), "citations": cited})


def allowed_routes(request: VerifyRequest) -> list[Route]:
    """Routes that fit what was measured: code decides whether a Program is correct, not the model."""
    if request.evaluation.passed:
        return ["optimise", "next", "replan", "stop"]
    return ["retry", "replan"]


def plain_feedback(request: VerifyRequest) -> Feedback:
    """Feedback by rule, for when no model can give it. Never 'stop': nobody has judged that nothing is left to gain."""
    evaluation = request.evaluation
    if evaluation.passed:
        return Feedback(
            route="next",
            diagnosis="Correct; no diagnosis was given.",
            evidence=evaluation.message,
            suggestion="Go on with the plan.",
        )
    return Feedback(
        route="retry",
        diagnosis=f"{evaluation.status}: {cause(evaluation)}",
        evidence=evaluation.message,
        suggestion="Repair the first error, and look for others of its kind.",
        fingerprint=fingerprint(evaluation),
    )


def _check_plan(plan: Plan) -> None:
    names = [idea.name for idea in plan.ideas]
    if len(set(names)) != len(names):
        raise ValueError("two ideas have the same name; give each its own")
    if not plan.ideas and not plan.summary.strip():
        raise ValueError("a plan without ideas must say in its summary why the program cannot be made faster")


def _without_recipes(idea: Idea) -> Idea:
    return idea.model_copy(update={"steps": [step.model_copy(update={"recipes": []}) for step in idea.steps]})
