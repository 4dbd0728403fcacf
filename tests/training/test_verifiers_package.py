"""The package for verifiers, by verifiers' own loaders and command: equal rewards, and none where there is none.

Needs verifiers 0.4, which lives in an environment of its own; run it there (docs/training.md, "verifiers").
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers is in an environment of its own; see docs/training.md")

from stitchcuda.reward import BlockingService
from stitchcuda.reward.score import RewardOutcome
from stitchcuda.training.adapters.mapping import number, parts
from stitchcuda.training.adapters.scorer import open_service
from stitchcuda.training.adapters.server import RewardServer
from stitchcuda.training.rows import item_of
from tests.reward.test_service import CALM
from tests.support.scripted_endpoint import Request, ScriptedEndpoint, text
from tests.training import adapted

vf: Any = importlib.import_module("verifiers.v1")
PACKAGE = Path(__file__).parents[2] / "integrations" / "verifiers"
NAME = "stitchcuda-verifiers"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The package, as if it were installed."""
    sys.path.insert(0, str(PACKAGE))
    yield
    sys.path.remove(str(PACKAGE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set, and the server's token."""
    place = tmp_path_factory.mktemp("verifiers")
    adapted.write(place / "data")
    (place / "token").write_text("open sesame\n", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[BlockingService]:
    """A service that runs nothing."""
    with open_service(f"recorded:{folder / 'data'}", settings=CALM) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(service: BlockingService) -> Iterator[RewardServer]:
    """The same behind HTTP."""
    with RewardServer(service, token="open sesame") as serving:
        yield serving


@pytest.fixture(scope="module")
def outcomes(service: BlockingService) -> dict[str, RewardOutcome]:
    """What the service says of the fifty completions itself, by the request."""
    found = service.score_all([item_of(row, completion) for row, completion in adapted.asked()])
    return {row.message: outcome for (row, _), outcome in zip(adapted.asked(), found, strict=True)}


def tasks(folder: Path, server: RewardServer, part: str, endpoint: str = "") -> list[Any]:
    """The tasks as verifiers loads them."""
    told = {
        "id": NAME,
        "data": folder / "data",
        "part": part,
        "task": {"endpoint": endpoint or server.address(), "token_file": str(folder / "token")},
    }
    return list(vf.load_taskset(vf.taskset_config_type(NAME).model_validate(told)))


def trace_of(task: Any, reply: str) -> Any:
    """A finished rollout with one reply."""
    graph = importlib.import_module("verifiers.v1.graph")
    node = graph.MessageNode(message=vf.AssistantMessage(content=reply), sampled=True)
    named = vf.TraceTask(type=type(task).__name__, data=task.data)
    info = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(task=named, agent=info, nodes=[node])


def test_verifiers_finds_one_task_set_and_one_harness_in_the_package() -> None:
    module = vf.import_taskset(NAME)
    assert vf.task_type(NAME).__name__ == "CoderTask"
    assert vf.default_harness_id(NAME) == NAME
    assert vf.harness_config_type(NAME).__name__ == "CoderHarnessConfig"
    assert set(module.__all__) == {"CoderHarness", "CoderTaskset"}


def test_verifiers_scores_fifty_rollouts_as_the_service_does(
    folder: Path, server: RewardServer, outcomes: dict[str, RewardOutcome]
) -> None:
    every = tasks(folder, server, "train") + tasks(folder, server, "held_out")
    assert len(every) == 50
    replies = {row.message: completion for row, completion in adapted.asked()}
    traces = [trace_of(task, replies[task.data.prompt]) for task in every]

    async def score() -> None:
        await asyncio.gather(*(task.score(trace) for task, trace in zip(every, traces, strict=True)))

    asyncio.run(score())
    for task, trace in zip(every, traces, strict=True):
        outcome = outcomes[task.data.prompt]
        assert trace.reward == number(outcome)
        assert trace.metrics == {name: value for name, value in parts(outcome).items() if value is not None}


def test_a_rollout_without_a_number_has_an_error_and_no_reward(folder: Path, server: RewardServer) -> None:
    [task, *_] = tasks(folder, server, "train")
    trace = trace_of(task, "```python program.py\nclass ModelNew:\n    unknown = 1\n```\n")
    with pytest.raises(vf.TaskError, match="refused a completion"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"reward": None}
    [lost, *_] = tasks(folder, server, "train", endpoint=" ")
    lost.config.endpoint = ""
    with pytest.raises(vf.TaskError, match="no reward server is named"):
        asyncio.run(lost.score(trace))


def test_verifiers_own_command_takes_rollouts_from_a_model_to_rewards(
    folder: Path, server: RewardServer, outcomes: dict[str, RewardOutcome]
) -> None:
    replies = {row.message: completion for row, completion in adapted.asked()}

    def answer(request: Request, count: int) -> Any:
        system, user = request.body["messages"]
        assert system["content"] == "You write programs."
        return text(replies[user["content"]])

    with ScriptedEndpoint(answer) as endpoint:
        words = [
            *(sys.executable, "-c", "from verifiers.v1.cli.eval.main import main; main()"),
            *(NAME, "-m", "scripted", "-n", "4"),
            *("--client.base-url", endpoint.base_url, "--client.api-key-var", "SCRIPTED_KEY"),
            *("--env.taskset.data", str(folder / "data"), "--env.taskset.task.endpoint", server.address()),
            *("--env.taskset.task.token-file", str(folder / "token")),
            *("--env.agent.runtime.type", "subprocess", "--no-push", "--no-rich", "--output-dir", str(folder / "out")),
        ]
        paths = os.pathsep.join([str(PACKAGE), *filter(None, sys.path)])
        told = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "SCRIPTED_KEY": "none"},
            cwd=folder,
            timeout=200,
            check=False,
        )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    [written] = (folder / "out").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    assert len(episodes) == 4, told.stdout[-2000:]
    for episode in episodes:
        [trace] = episode["traces"]
        outcome = outcomes[trace["task"]["data"]["prompt"]]
        assert trace["ok"], trace["errors"]
        assert trace["rewards"]["reward"]["score"] == number(outcome)
        assert trace["metrics"]["correct"] == parts(outcome)["correct"]
