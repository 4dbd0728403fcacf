"""What a server that fails or refuses a request says by it. What is done then is in ``agents.requests``."""

from __future__ import annotations

import json
import re

from pydantic_ai.exceptions import ModelHTTPError

from stitchcuda.agents.secrets import scrub

LEAST_OUTPUT_TOKENS = 1_000
"""Shorter replies are not asked for: no program fits into them, and hardly any Feedback."""

_RETRIED_STATUSES = {408, 409, 425, 429}
_BUSY_STATUSES = {429, 503, 529}
_NO_TOOLS = {400, 404, 422, 500, 501}
"""What servers answer to a tool call that they cannot make; llama.cpp without --jinja says 500."""
_LENGTH = re.compile(
    r"max_tokens|max_completion_tokens|max_new_tokens|maxOutputTokens|(output|completion) tokens"
    r"|context.?(length|limit|size|window)|prompt is too long",
    re.IGNORECASE,
)
_NOT_TOO_LONG = re.compile(r"unsupported|not supported|higher", re.IGNORECASE)
_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d+)"
_CONTEXT = [
    re.compile(place, re.IGNORECASE)
    for place in (rf"[<>]=? ?{_NUMBER}", rf"context\D{{1,40}}{_NUMBER}", rf"{_NUMBER}\D{{1,20}}context")
]
"""Where the length of a context stands, the surest place first: '> 200000', 'context length is 16384', '32768 maximum
context length'."""


def refuses_tools(error: ModelHTTPError) -> bool:
    """Whether it is the tool call that the server does not take."""
    return error.status_code in _NO_TOOLS and "tool" in str(error.body)


def refuses_length(error: ModelHTTPError) -> bool:
    """Whether the reply might be longer than the server gives, or is so together with the prompt."""
    said = str(error.body)
    return error.status_code in (400, 422) and bool(_LENGTH.search(said)) and not _NOT_TOO_LONG.search(said)


def whatever_the_prompt(error: ModelHTTPError) -> bool:
    """Whether it is the reply alone that is too long for the server."""
    return refuses_length(error) and not re.search("context|input|prompt", str(error.body), re.IGNORECASE)


def shorter(error: ModelHTTPError, asked: int, prompt: int) -> int | None:
    """Tokens of the longest reply to ask for instead of ``asked``; None where no shorter one is worth asking for.

    What the server names, its longest reply or what its context has beside the prompt; else half. ``prompt`` is the
    prompt's length in tokens, roughly, for a server that does not say it.
    """
    if not refuses_length(error) or asked <= LEAST_OUTPUT_TOKENS:
        return None
    said = str(error.body)
    numbers = named = [_number(found) for found in re.findall(_NUMBER, said)]
    places = [] if whatever_the_prompt(error) else [found for place in _CONTEXT if (found := place.search(said))]
    if places:
        context = _number(places[0][1])
        shown = [number for number in numbers if number != asked and context - asked < number < context]
        named = [context - max(shown, default=prompt)]
    return max(
        (number for number in named if LEAST_OUTPUT_TOKENS <= number < asked),
        default=max(asked // 2, LEAST_OUTPUT_TOKENS),
    )


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def worth_retrying(error: ModelHTTPError) -> bool:
    """Whether the same request may be answered later."""
    if "insufficient_quota" in f"{error.provider_error_code} {error.body}":
        return False
    return error.status_code in _RETRIED_STATUSES or error.status_code >= 500


def busy(error: ModelHTTPError) -> bool:
    """Whether the server is well, but has too much to do."""
    return error.status_code in _BUSY_STATUSES


def is_transport(error: BaseException) -> bool:
    """Whether a raw exception of an HTTP library got through an SDK."""
    return type(error).__module__.partition(".")[0] in (
        "httpx",
        "httpx2",
        "httpcore",
        "httpcore2",
        "ssl",
    ) or isinstance(error, (ConnectionError, OSError))


def status_words(error: ModelHTTPError) -> str:
    """Status and body, shortened, without keys."""
    body = error.body if isinstance(error.body, str) else json.dumps(error.body, default=str)
    return f"HTTP {error.status_code}, {scrub(body)[:200]}"


def words(error: BaseException) -> str:
    """What went wrong, with the socket's own words where a connection failed."""
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None and below not in chain:
        chain.append(below)
    outer = str(error).splitlines()[0] if str(error) else type(error).__name__
    socket_error = next((str(e) or type(e).__name__ for e in reversed(chain) if isinstance(e, OSError)), "")
    return scrub(f"{outer} ({socket_error})" if socket_error and socket_error not in outer else outer)[:200]
