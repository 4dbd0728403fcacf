"""One role call as a conversation with pydantic-ai: ask, validate, ask again with what is wrong, give up.

Independent of which role it is; the roles are in ``agents.llm``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pydantic_ai
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.settings import ModelSettings

from stitchcuda.agents.prompting import Prompt
from stitchcuda.agents.providers import DEFAULT_URLS, open_model
from stitchcuda.agents.reading import Amendable
from stitchcuda.agents.requests import JournaledModel, Notify, ToolsRefused, UnusableReplies, address_of
from stitchcuda.agents.roles import ReplyLog
from stitchcuda.agents.settings import MindSettings, OutputMode, Role
from stitchcuda.agents.spending import Meter

pydantic_ai.BANNER_ENABLED = False
"""Its advertisement would break into the live view of a run."""

Answer = TypeVar("Answer")
Typed = TypeVar("Typed", bound=BaseModel)


class NoUsableAnswer(Exception):
    """Every allowed reply was unusable; the message is what was wrong with the last one."""


class Conversation:
    """How to ask one model, for every call of a mind."""

    def __init__(
        self, model: str, base_url: str | None, *, log: ReplyLog, settings: MindSettings, meter: Meter, notify: Notify
    ) -> None:
        self.model = model
        self.base_url = base_url
        self.log = log
        self.settings = settings
        self.meter = meter
        self.notify = notify
        self._toolless: set[str] = set()
        """Models whose server refused a tool call."""

    def typed(
        self, role: Role, prompt: Prompt, output: type[Typed], check: Callable[[Typed], None], *, persist: bool = False
    ) -> Typed:
        """An ``output`` object that passes ``check`` (which raises ValueError with what is wrong).

        ``persist``: replies from the journal do not use up the allowed number, so that resuming asks on. A server
        that refuses tool calls is asked for JSON in the reply's text; it took nothing for the refusal.
        Raises NoUsableAnswer, ModelAccessError and BudgetExceeded.
        """
        problem = _Problem()
        name = self.settings.model_for(role, self.model)

        def validated(value: Typed) -> Typed:
            try:
                check(value)
            except ValueError as error:
                problem.words = str(error)
                raise ModelRetry(str(error)) from None
            return value

        async def ask(model: JournaledModel) -> Typed:
            agent: Agent[None, Typed] = Agent(
                model,
                output_type=_output(output, "prompted" if name in self._toolless else self.settings.output_mode),
                instructions=prompt.instructions,
                retries=_MANY,
                model_settings=self._sampling(role),
            )
            agent.output_validator(validated)
            return (await agent.run(prompt.message)).output

        try:
            return _run(self._converse(role, ask, problem, persist=persist))
        except ToolsRefused as refusal:
            self._toolless.add(name)
            self.notify(f"{refusal}; asking for JSON as text instead of a tool call")
            return _run(self._converse(role, ask, problem, persist=persist))

    def text(self, role: Role, prompt: Prompt, read: Callable[[str], Answer]) -> Answer:
        """What ``read`` makes of the reply's text; ``read`` raises ValueError with what is wrong."""
        problem = _Problem()

        async def ask(model: JournaledModel) -> Answer:
            def understood(text: str) -> Answer:
                try:
                    return read(text)
                except ValueError as error:
                    problem.words = str(error)
                    if model.truncated:
                        problem.words = (
                            f"The reply was cut off at its length limit before it was complete ({error}) "
                            "Be brief: the code, hardly any prose."
                        )
                    again = _AMEND if isinstance(error, Amendable) else _AGAIN
                    raise ModelRetry(f"{problem.words}{'' if problem.words.endswith('.') else '.'} {again}") from None

            agent: Agent[None, Answer] = Agent(
                model,
                output_type=TextOutput(understood),
                instructions=prompt.instructions,
                retries=_MANY,
                model_settings=self._sampling(role),
            )
            return (await agent.run(prompt.message)).output

        return _run(self._converse(role, ask, problem, persist=False))

    def _sampling(self, role: Role) -> ModelSettings:
        settings = ModelSettings(max_tokens=self.settings.output_tokens_for(role), framing_announcement="never")
        if (temperature := self.settings.temperature_for(role)) is not None:
            settings["temperature"] = temperature
        return settings

    async def _converse(
        self,
        role: Role,
        ask: Callable[[JournaledModel], Coroutine[Any, Any, Answer]],
        problem: _Problem,
        *,
        persist: bool,
    ) -> Answer:
        name = self.settings.model_for(role, self.model)
        base_url = self.base_url if name.partition(":")[0] == self.model.partition(":")[0] else None
        async with open_model(name, base_url, self.settings.patience) as wrapped:
            model = JournaledModel(
                wrapped,
                model=name,
                address=address_of(name, base_url, DEFAULT_URLS),
                role=role,
                log=self.log,
                meter=self.meter,
                settings=self.settings,
                most_requests=1 + self.settings.reasks,
                replayed_count=not persist,
                notify=self.notify,
            )
            try:
                return await ask(model)
            except UnusableReplies:
                raise NoUsableAnswer(problem.words or "the reply was empty or not in the form asked for") from None
            except UnexpectedModelBehavior as error:
                raise NoUsableAnswer(problem.words or str(error).splitlines()[0]) from None


_MANY = 100
"""More re-asks than ever happen: ``JournaledModel`` ends the conversation."""


_AGAIN = "Answer again from the start with the whole reply: nothing of the last one is kept."


_AMEND = (
    "Edits of the files as your last reply left them will do: for each place the file's path in a heading, then in a "
    "fence <<<<<<< SEARCH, the lines as they are, =======, the lines as they shall be, >>>>>>> REPLACE, each mark on a "
    "line of its own. manifest.json is sent whole. Or send every file again."
)


class _Problem:
    """What was wrong with the last reply."""

    words: str = ""


def _output(output: type[Typed], mode: OutputMode) -> Any:
    name = output.__name__.lower()
    if mode == "native":
        return NativeOutput(output, name=name)
    if mode == "prompted":
        return PromptedOutput(output, name=name)
    return ToolOutput(output, name=name)


def _run(conversation: Coroutine[Any, Any, Answer]) -> Answer:
    """Run to the end in this thread, or in one of its own where this thread already runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(conversation)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, conversation).result()
