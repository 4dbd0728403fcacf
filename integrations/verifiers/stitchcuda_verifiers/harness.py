"""One request to the model and its reply: a Coder has no tools and no second turn."""

from __future__ import annotations

import verifiers.v1 as vf
from openai import AsyncOpenAI


class CoderHarnessConfig(vf.HarnessConfig):
    """Nothing of its own."""


class CoderHarness(vf.Harness[CoderHarnessConfig]):
    """Asks once, from this process; nothing is installed or run in the runtime."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """The reply is recorded where the request passes through."""
        system, prompt = self.resolve_text_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt or ""})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
