"""Model clients by provider, built anew for each role call and closed after it. Imports the SDKs lazily.

The SDKs' own retries are off: retrying, waiting and accounting happen in one place, ``agents.requests``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stitchcuda.agents.secrets import KEY_VARIABLES, PLACEHOLDER, key_for
from stitchcuda.agents.settings import Patience
from stitchcuda.agents.spending import split_model
from stitchcuda.errors import KeyMissing, StitchError, ToolMissing

if TYPE_CHECKING:
    from pydantic_ai.models import Model

DEFAULT_URLS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}


def check_access(model: str, base_url: str | None) -> None:
    """Raise before any work when ``model`` could not be asked: bad name, bad address, no key, no package."""
    provider, _ = split_model(model)
    if base_url is not None and urlsplit(base_url).scheme not in ("http", "https"):
        raise StitchError(f"--base-url is '{base_url}'; expected http://HOST:PORT/v1 or https://HOST/...")
    if base_url is None and key_for(provider) is None:
        names = " or ".join(KEY_VARIABLES[provider])
        raise KeyMissing(
            f"{model} needs a key: the environment variable {names} is not set. "
            "Set it, name a server of your own with --base-url, or use --model recipes, which needs none."
        )
    try:
        import pydantic_ai  # noqa: F401
    except ImportError as error:
        raise ToolMissing(
            "Language models need the 'llm' extra, which is not installed. "
            "Run: pip install 'stitchcuda[llm]', or use --model recipes."
        ) from error


@asynccontextmanager
async def open_model(model: str, base_url: str | None, patience: Patience) -> AsyncIterator[Model]:
    """A pydantic-ai model for PROVIDER:NAME with a connection pool of its own, closed on leaving."""
    provider, name = split_model(model)
    key = key_for(provider) or PLACEHOLDER
    if provider == "openai":
        opened = _openai(name, base_url, key, patience)
    elif provider == "anthropic":
        opened = _anthropic(name, base_url, key, patience)
    else:
        opened = _google(name, base_url, key, patience)
    async with opened as client:
        yield client


@asynccontextmanager
async def _openai(name: str, base_url: str | None, key: str, patience: Patience) -> AsyncIterator[Model]:
    from openai import AsyncOpenAI, Timeout
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    timeout = Timeout(patience.request_seconds, connect=patience.connect_seconds)
    url = base_url or DEFAULT_URLS["openai"]
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=timeout) as client:
        provider = OpenAIProvider(openai_client=client)
        if base_url is None:
            yield OpenAIChatModel(name, provider=provider)
        else:
            # Servers other than OpenAI's know max_tokens, and few know the field that replaced it there; the chat
            # templates of many models fail on a system message that is not the first.
            profile = OpenAIModelProfile(
                openai_chat_supports_max_completion_tokens=False,
                openai_chat_supports_multiple_system_messages=False,
                supports_inline_system_prompts=False,
            )
            yield OpenAIChatModel(name, provider=provider, profile=profile)


@asynccontextmanager
async def _anthropic(name: str, base_url: str | None, key: str, patience: Patience) -> AsyncIterator[Model]:
    from anthropic import AsyncAnthropic, Timeout
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    timeout = Timeout(patience.request_seconds, connect=patience.connect_seconds)
    url = base_url or DEFAULT_URLS["anthropic"]
    async with AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=timeout) as client:
        yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


@asynccontextmanager
async def _google(name: str, base_url: str | None, key: str, patience: Patience) -> AsyncIterator[Model]:
    import httpx2
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    timeout = httpx2.Timeout(patience.request_seconds, connect=patience.connect_seconds)
    async with httpx2.AsyncClient(timeout=timeout) as http:
        yield GoogleModel(name, provider=GoogleProvider(api_key=key, base_url=base_url, http_client=http))
