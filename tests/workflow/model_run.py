"""A small run with a language model behind real HTTP, whose answers are scripted, and the requests that it was sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcuda.agents.llm import mind
from stitchcuda.agents.settings import Limits
from stitchcuda.workflow.approval import approval, later
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.machine import Machine
from stitchcuda.workflow.result import Result
from tests.agents.support import hasty
from tests.support.scripted_endpoint import Answer, Request, ScriptedEndpoint, text, tool
from tests.workflow.world import DEVICE, TASK, Ear, ToyBench, config, new_folder

FORM = """### program.py
```python
{source}```
"""


@dataclass(frozen=True)
class Sent:
    """One request as the model reads it."""

    role: str
    """planner, coder or verifier"""
    instructions: str
    message: str


def step(
    title: str, operators: list[str], *, gain: float = 1.5, fusion: str = "one pass over memory"
) -> dict[str, Any]:
    """A Step as a model writes it."""
    return {
        "title": title,
        "operators": operators,
        "fusion": fusion,
        "predicted_gain": gain,
        "acceptance": "right and faster",
    }


def plan(**ideas: list[dict[str, Any]]) -> Answer:
    """A Plan of ideas by name, each with its steps."""
    made = [{"name": name, "rationale": "bytes", "steps": steps} for name, steps in ideas.items()]
    return tool({"summary": "s", "bottleneck": "memory", "ideas": made})


def wrote(words: str, *, said: str = "") -> Answer:
    """A Coder's answer: prose, and the program that the toy bench reads ``words`` from."""
    return text(f"{said}\n\n{FORM.format(source=f'# {words}{chr(10)}class ModelNew:{chr(10)}    pass{chr(10)}')}")


def judged(route: str, diagnosis: str = "what limits it") -> Answer:
    """A Verifier's answer."""
    return tool({"route": route, "diagnosis": diagnosis, "evidence": "figures", "suggestion": "the one change"})


def role_of(request: Request) -> str:
    """Whom the request asks, by the tool that it offers."""
    return {"plan": "planner", "feedback": "verifier"}.get((request.tools or [""])[0], "coder")


def go(
    folder: RunFolder, script: Callable[[Request, int], Answer], *, settings: RunConfig, bench: ToyBench | None = None
) -> tuple[Result, list[Sent]]:
    """Start the run in ``folder``, or go on with it; how it ended, and what was asked, in order."""
    with ScriptedEndpoint(script) as endpoint, Journal.open(folder.path) as journal:
        result = Machine(
            settings,
            TASK,
            DEVICE,
            journal=journal,
            folder=folder,
            bench=bench or ToyBench(),
            mind=mind(
                "openai:scripted",
                base_url=endpoint.base_url,
                log=journal,
                settings=hasty(),
                limits=Limits(tokens=settings.tokens, usd=settings.usd, seconds=settings.seconds),
            ),
            sink=Ear(),
            approve=approval(folder, resumed=True, ask=later),
        ).run()
    sent = []
    for request in endpoint.requests:
        by_role = {m["role"]: str(m["content"]) for m in request.body["messages"]}
        sent.append(Sent(role_of(request), by_role["system"], by_role["user"]))
    return result, sent


def run(
    parent: Path,
    *,
    plans: list[Answer],
    programs: Callable[[str], Answer],
    verdicts: Callable[[str], Answer] = lambda message: judged("next" if "**correct**" in message else "retry"),
    bench: ToyBench | None = None,
    **values: object,
) -> tuple[Result, list[Sent], RunFolder]:
    """A whole run: ``plans`` in order, ``programs`` and ``verdicts`` by what the request says."""
    settings = config(**{"model": "openai:scripted", "parallel": 1, "replans": len(plans) - 1, **values})
    folder = new_folder(parent, settings)
    asked = iter(plans)

    def script(request: Request, _: int) -> Answer:
        match role_of(request):
            case "planner":
                return next(asked)
            case "verifier":
                return verdicts(request.text)
            case _:
                return programs(request.text)

    result, sent = go(folder, script, settings=settings, bench=bench)
    return result, sent, folder
