"""One provider request: looked up in the journal, limited, retried, paid once, journaled, repaired for the agent.

This is the only place where a model is called. ``JournaledModel`` sits between pydantic-ai's agent, which asks
again when a reply does not validate, and the provider's model; each such re-ask is a request of its own here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from stitchcuda.agents import refusals
from stitchcuda.agents.roles import ReplyLog, ReplyRecord, RequestKey
from stitchcuda.agents.secrets import KEY_VARIABLES, public_url, scrub
from stitchcuda.agents.server import server_of, spread
from stitchcuda.agents.settings import MindSettings
from stitchcuda.agents.spending import CHARACTERS_PER_TOKEN, Meter, Price, Spend, price, split_model
from stitchcuda.agents.tries import Tries
from stitchcuda.errors import ModelAccessError

Notify = Callable[[str], None]

LONGEST_OUTPUT_TOKENS = 64_000


class UnusableReplies(Exception):
    """The bounded number of requests of one role call is used up without a usable answer."""


class ToolsRefused(Exception):
    """The server serves this model, but no tool calls; the message is what it said."""


class JournaledModel(WrapperModel):
    """A model whose every reply is in the journal before anyone acts on it.

    Made for one call of one role: ``ordinal`` counts its requests from 0, replayed ones included.
    """

    def __init__(
        self,
        wrapped: Model,
        *,
        model: str,
        address: str,
        role: str,
        log: ReplyLog,
        meter: Meter,
        settings: MindSettings,
        most_requests: int,
        replayed_count: bool,
        notify: Notify,
    ) -> None:
        super().__init__(wrapped)
        self.model = model
        self.address = address
        self.role = role
        self.log = log
        self.meter = meter
        self.role_settings = settings
        self.most_requests = most_requests
        self.replayed_count = replayed_count
        """Whether replayed requests use up ``most_requests``; if not, a resumed run asks on."""
        self.notify = notify
        self.server = server_of(model, address)
        self.ordinal = 0
        self.live = 0
        self.truncated = False
        """The last reply was cut off at its token limit."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        used = self.ordinal if self.replayed_count else self.live
        if used >= self.most_requests:
            raise UnusableReplies
        asked: dict[str, Any] = {**(model_settings or {})}
        usual = int(asked["max_tokens"])
        if self.truncated:
            asked["max_tokens"] = min(2 * usual, LONGEST_OUTPUT_TOKENS)
        key = RequestKey(
            node=self.log.node,
            role=self.role,
            ordinal=self.ordinal,
            request_hash=request_hash(self.model, messages, asked, model_request_parameters),
        )
        record = self.log.find(key)
        if record is None:
            # After the key was made: how long a reply is granted does not change the question.
            longest = self.role_settings.max_output_tokens or int(asked["max_tokens"])
            asked["max_tokens"] = self.server.granted(longest)
            most = self._most(messages, asked, model_request_parameters)
            async with self.meter.in_time(), self.meter.room_for(most):
                self.live += 1
                if self.ordinal:
                    self.notify(
                        f"{self.model}: the {self.role}'s reply could not be used; asking again "
                        f"({used + 1} of {self.most_requests})"
                    )
                answered = await self._ask(messages, asked, usual, model_request_parameters)
                record, priced = self._record(key, answered)
                self.log.append(record)
                self.meter.add(record, priced=priced)
        else:
            self.meter.add(record, priced=self._price(record.input_tokens, record.output_tokens).known)
        response = _load(record)  # the journaled form also when it is new, so that a resumed run sees the same
        self.ordinal += 1
        self.truncated = response.finish_reason == "length"
        return _usable(response, model_request_parameters)

    def _most(self, messages: list[ModelMessage], asked: dict[str, Any], parameters: ModelRequestParameters) -> Spend:
        """What the request takes where its reply is as long as it may be."""
        prompt, reply = _prompt_tokens(messages, parameters), int(asked["max_tokens"])
        return Spend(input_tokens=prompt, output_tokens=reply, usd=self._price(prompt, reply).usd)

    def _price(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> Price:
        prices = self.role_settings.prices
        return price(self.model, input_tokens, output_tokens, prices=prices, cached_tokens=cached_tokens)

    def _record(self, key: RequestKey, response: ModelResponse) -> tuple[ReplyRecord, bool]:
        usage = response.usage
        cost = self._price(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)
        dumped = scrub(ModelMessagesTypeAdapter.dump_json([response]).decode())
        record = ReplyRecord(
            key=key,
            reply=json.loads(dumped)[0],
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            usd=cost.usd,
        )
        return record, cost.known

    async def _ask(
        self, messages: list[ModelMessage], asked: dict[str, Any], usual: int, parameters: ModelRequestParameters
    ) -> ModelResponse:
        """The reply, after as many tries as patience allows; ModelAccessError when there is none, ToolsRefused when
        there would be one to a request without tools, UnusableReplies when there is no room for another one."""
        patience = self.role_settings.patience
        tries = Tries(patience)
        granted: int | None = None
        while True:
            await tries.next(self.server)
            busy, hint = False, None
            try:
                async with asyncio.timeout(patience.request_seconds):
                    reply = await self.wrapped.request(messages, ModelSettings(**asked), parameters)  # type: ignore[typeddict-item]
                if granted is not None:
                    self.server.grants(granted)
                return reply
            except ModelHTTPError as error:
                if self._amended(asked, usual, error, _prompt_tokens(messages, parameters)):
                    if refusals.whatever_the_prompt(error):
                        granted = int(asked["max_tokens"])
                    continue
                if self.ordinal and refusals.refuses_length(error):
                    raise UnusableReplies from None
                if parameters.output_tools and refusals.refuses_tools(error):
                    raise ToolsRefused(f"{self.model} at {self.address}: {refusals.status_words(error)}") from None
                if not refusals.worth_retrying(error):
                    raise self._refused(error) from None
                what, busy, hint = refusals.status_words(error), refusals.busy(error), error.retry_after
            except TimeoutError:
                what = f"no reply within {patience.request_seconds:.0f} s"
            except (ModelAPIError, UnexpectedModelBehavior) as error:
                what = refusals.words(error)
            except UserError as error:
                raise ModelAccessError(f"{self.model} cannot be asked: {scrub(str(error))[:300]}") from None
            except Exception as error:
                if not refusals.is_transport(error):
                    raise
                what = refusals.words(error)
            pause = tries.pause(hint, busy=busy)
            if pause is None:
                raise self._gave_up(what, tries.made, hint)
            self.notify(f"{self.model}: {what}; trying again in {pause:.1f} s ({tries.left(busy=busy)})")
            if busy:
                self.server.leave_alone(pause)
            else:
                await asyncio.sleep(spread(pause))

    def _amended(self, asked: dict[str, Any], usual: int, error: ModelHTTPError, prompt: int) -> bool:
        """Whether ``asked`` could be made what the server takes, by what its refusal says."""
        if error.status_code == 400 and "temperature" in asked and "temperature" in str(error.body):
            del asked["temperature"]
            return True
        refused = int(asked["max_tokens"])
        length = refusals.shorter(error, refused, prompt)
        if length is None and error.status_code in (400, 422) and refused > usual:
            length = usual  # in whatever words, the length may be what it refuses
        if length is None:
            return False
        self.notify(f"{self.model}: a reply of {refused:,} tokens is refused; asking for {length:,} at most")
        asked["max_tokens"] = length
        return True

    def _gave_up(self, what: str, tries: int, hint: float | None) -> ModelAccessError:
        times = "once" if tries == 1 else f"{tries} times"
        asked = f" The server asks to wait {hint:.0f} s." if hint else ""
        return ModelAccessError(
            f"{self.model} at {self.address} gave no usable answer (tried {times}): {what}.{asked} "
            "Check that the server is up and the address is right, then resume the run: nothing paid is asked again."
        )

    def _refused(self, error: ModelHTTPError) -> ModelAccessError:
        provider, name = split_model(self.model)
        code = error.status_code
        if code in (401, 403):
            names = " or ".join(KEY_VARIABLES[provider])
            advice = f"Check the key in {names}."
        elif code == 402 or code == 429:
            advice = "The account has no credit left for this model; add some, or choose another model."
        elif code == 404:
            advice = f"Check the model's name ('{name}') and the address (--base-url normally ends in /v1)."
        elif refusals.refuses_length(error):
            advice = "The prompt leaves no room for a reply in the model's context; choose a model with a longer one."
        else:
            advice = "The server refuses this request; its message says why."
        return ModelAccessError(f"{self.model} at {self.address}: {refusals.status_words(error)}. {advice}")


def request_hash(
    model: str, messages: list[ModelMessage], settings: dict[str, Any], parameters: ModelRequestParameters
) -> str:
    """SHA-256 over what is asked of whom; times, ids and addresses are left out, so that a resumed run finds it."""
    projected = [
        {
            "kind": message.kind,
            "instructions": message.instructions if isinstance(message, ModelRequest) else None,
            "parts": [
                {
                    "kind": part.part_kind,
                    "content": getattr(part, "content", None),
                    "tool": getattr(part, "tool_name", None),
                    "args": getattr(part, "args", None),
                }
                for part in message.parts
            ],
        }
        for message in messages
    ]
    tools = [
        (tool.name, tool.description, tool.parameters_json_schema)
        for tool in [*parameters.function_tools, *parameters.output_tools]
    ]
    schema = parameters.output_object.json_schema if parameters.output_object is not None else None
    asked = {
        "model": model,
        "messages": projected,
        "settings": settings,
        "tools": tools,
        "mode": parameters.output_mode,
        "schema": schema,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _load(record: ReplyRecord) -> ModelResponse:
    message = ModelMessagesTypeAdapter.validate_python([record.reply])[0]
    assert isinstance(message, ModelResponse)
    return message


def _usable(response: ModelResponse, parameters: ModelRequestParameters) -> ModelResponse:
    """``response`` in the form that lets the agent ask again instead of giving up.

    A cut-off reply counts as finished (its content is judged), and a JSON object written as text where the one
    tool should have been called counts as that call.
    """
    parts = list(response.parts)
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    if not calls and len(parameters.output_tools) == 1:
        text = "".join(part.content for part in parts if isinstance(part, TextPart))
        if (found := json_object(text)) is not None:
            parts = [ToolCallPart(parameters.output_tools[0].name, found, tool_call_id="from_text")]
    finish = "stop" if response.finish_reason == "length" else response.finish_reason
    return replace(response, parts=parts, finish_reason=finish)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is, or holds between its first and last brace; None when there is none."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        found = json.loads(text[start : end + 1], strict=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _prompt_tokens(messages: list[ModelMessage], parameters: ModelRequestParameters) -> int:
    """About how many."""
    size = sum(len(json.dumps(tool.parameters_json_schema)) for tool in parameters.output_tools)
    for index, message in enumerate(messages):
        if isinstance(message, ModelRequest) and index == 0:
            size += len(message.instructions or "")
        size += sum(len(str(getattr(part, "content", "") or getattr(part, "args", ""))) for part in message.parts)
    return int(size / CHARACTERS_PER_TOKEN)


def address_of(model: str, base_url: str | None, default_urls: dict[str, str]) -> str:
    """The address to show: without user, password or query."""
    return public_url(base_url or default_urls[split_model(model)[0]])
