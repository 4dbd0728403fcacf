"""TRL, verl and verifiers get equal rewards for equal completions, and none of them a number where there is none."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyarrow import parquet

from stitchcuda.benchmark import item as benchmark_item
from stitchcuda.errors import InfrastructureError, RecordMissing, RewardError, StitchError
from stitchcuda.reward import BlockingService, Reward, RewardService, Unscored
from stitchcuda.reward.model import DIMENSIONS
from stitchcuda.reward.score import RewardOutcome
from stitchcuda.reward.service_backends import RecordedEvaluations
from stitchcuda.training.adapters import mapping
from stitchcuda.training.adapters.mapping import ASKED, PARTS, asked_of, item_of_columns, number, parts, text_of
from stitchcuda.training.adapters.scorer import open_service
from stitchcuda.training.adapters.server import RewardServer, new_token
from stitchcuda.training.adapters.trl import trl_reward
from stitchcuda.training.adapters.verifiers import Here, Remote, reward_of, tasks_of
from stitchcuda.training.adapters.verl import write_code, write_verl
from stitchcuda.training.model import Row
from stitchcuda.training.rows import item_of, read_dataset
from tests.reward.test_service import CALM, Pool
from tests.training import adapted


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set of the fifty completions, with what was measured."""
    return adapted.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def service(data: Path) -> Iterator[BlockingService]:
    """A service that runs nothing."""
    with open_service(f"recorded:{data}", settings=CALM) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(service: BlockingService) -> Iterator[RewardServer]:
    """The same behind HTTP."""
    with RewardServer(service, token="open sesame") as serving:
        yield serving


@pytest.fixture(scope="module")
def outcomes(service: BlockingService) -> list[RewardOutcome]:
    """What the service says of the fifty completions itself."""
    return service.score_all([item_of(row, completion) for row, completion in adapted.asked()])


def token_file(folder: Path) -> str:
    """The server's token, as clients get it."""
    path = folder / "token"
    path.write_text("open sesame\n", encoding="utf-8")
    return str(path)


def loaded(path: Path) -> ModuleType:
    """A file as verl loads it: by its path, under a name of its own."""
    spec = importlib.util.spec_from_file_location("somewhere_else", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_order(folder: Path, name: str = "prompt") -> list[dict[str, Any]]:
    """Columns of the data set's rows, in the order of ``adapted.asked``."""
    found = [
        columns
        for part in ("train", "held_out")
        for columns in parquet.read_table(folder / f"{part}.parquet").to_pylist()
    ]
    by_program = {(columns["task_digest"], columns["program_digest"], columns["skill"]): columns for columns in found}
    return [by_program[row.task.digest, row.answer.digest, row.skill] for row, _ in adapted.asked()]


def as_trl(
    reward: Any, columns: Sequence[dict[str, Any]], completions: Sequence[str], **more: Any
) -> list[float | None]:
    """Rewards as GRPOTrainer asks for them: completions as messages, and every other column as a list."""
    told = {name: [row[name] for row in columns] for name in columns[0] if name not in ("prompt", "completion")}
    return asyncio.run(
        reward(
            prompts=[row["prompt"] for row in columns],
            completions=[[{"role": "assistant", "content": text}] for text in completions],
            completion_ids=[[1, 2]] * len(completions),
            trainer_state=None,
            **told,
            **more,
        )
    )


async def as_verl(
    module: ModuleType, rows: Sequence[dict[str, Any]], completions: Sequence[str], **kw: Any
) -> list[Any]:
    """Answers as verl's reward worker asks for them: each by itself, all at once, with what its dataset class adds."""
    calls = [
        module.compute_score(
            data_source=row["data_source"],
            solution_str=completion,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info={**row["extra_info"], "num_turns": 2, "rollout_reward_scores": {}},
            **kw,
        )
        for row, completion in zip(rows, completions, strict=True)
    ]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_the_three_adapters_give_equal_rewards_for_fifty_completions(
    data: Path, service: BlockingService, server: RewardServer, outcomes: list[RewardOutcome], tmp_path: Path
) -> None:
    expected = [number(outcome) for outcome in outcomes]
    texts = [completion for _, completion in adapted.asked()]
    kinds = {outcome.status for outcome in outcomes if isinstance(outcome, Reward)}
    assert kinds >= {"correct", "wrong_output", "no_program"}
    assert len({value for value in expected if value}) > 15, "rewards differ, or equality says little"
    assert any(outcome.hack for outcome in outcomes if isinstance(outcome, Reward))

    of_trl = as_trl(trl_reward(service), in_order(data), texts)

    assert write_verl((row for row, _ in adapted.asked()), tmp_path / "train.parquet") == 50
    rows = parquet.read_table(tmp_path / "train.parquet").to_pylist()
    module = loaded(write_code(tmp_path)[0])
    told = {"endpoint": server.address(), "token_file": token_file(tmp_path)}
    of_verl = asyncio.run(as_verl(module, rows, texts, **told))

    tasks = {task["prompt"]: task for part in ("train", "held_out") for task in tasks_of(data, part)}
    mine = [tasks[row.message] for row, _ in adapted.asked()]

    async def of_tasks(answers: Any) -> list[tuple[float, dict[str, float]]]:
        pairs = zip(mine, texts, strict=True)
        return await asyncio.gather(*(reward_of(answers, task["asked"], text) for task, text in pairs))

    far = asyncio.run(of_tasks(Remote(told["endpoint"], told["token_file"])))
    near = asyncio.run(of_tasks(Here(RewardService(RecordedEvaluations(data), CALM))))

    assert of_trl == expected
    assert [answer["score"] for answer in of_verl] == expected
    assert [score for score, _ in far] == expected
    assert far == near
    for answer, (_, found), outcome in zip(of_verl, far, outcomes, strict=True):
        assert {name: answer[name] for name in PARTS} == parts(outcome)
        assert found == {name: value for name, value in parts(outcome).items() if value is not None}


@pytest.mark.parametrize("in_thought", [False, True])
def test_thoughts_that_never_end_are_no_reply_for_any_of_them(
    in_thought: bool, service: BlockingService, tmp_path: Path
) -> None:
    row, completion = row_and_completion()
    endless = completion if in_thought else f"\n<think>\nPerhaps so:\n{completion}\nOr rather"
    texts = [endless, f"{endless}\n</think>\n\n{completion}"]
    write_verl([row, row], tmp_path / "rows.parquet")
    rows = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    module = loaded(write_code(tmp_path)[0])
    asked = json.dumps(asked_of(row))
    of_trl = as_trl(trl_reward(service, in_thought=in_thought), [{"prompt": "", **asked_of(row)}] * 2, texts)
    with RewardServer(service, in_thought=in_thought) as server:
        of_verl = asyncio.run(as_verl(module, rows, texts, endpoint=server.address()))
        of_verifiers = [asyncio.run(reward_of(Remote(server.address()), asked, text))[0] for text in texts]
    assert of_trl == [0.0, number(service.score_all([item_of(row, completion)])[0])]
    assert of_trl == [answer["score"] for answer in of_verl] == of_verifiers


def test_columns_of_a_file_say_the_same_as_the_row_they_were_written_from(data: Path) -> None:
    for (row, completion), columns in zip(adapted.asked(), in_order(data), strict=True):
        expected = item_of(row, completion)
        assert item_of_columns(columns, completion).digest == expected.digest
        assert item_of_columns(asked_of(row), completion).digest == expected.digest
    rows = [*read_dataset(data, "train"), *read_dataset(data, "held_out")]
    assert {item_of(row, "x").digest for row in rows} == {item_of(row, "x").digest for row, _ in adapted.asked()}


def test_parts_are_always_the_same_names_and_say_what_a_reward_was_made_of(outcomes: list[RewardOutcome]) -> None:
    for outcome in [*outcomes, Unscored(kind="infrastructure", reason="gone", tries=3)]:
        found = parts(outcome)
        assert tuple(found) == PARTS
        assert all(value is None or isinstance(value, float) for value in found.values())
        if number(outcome):
            assert found["correct"] == 1.0
            assert found["base"] is not None
            assert found["multiplier"] is not None
            assert number(outcome) == pytest.approx(min(found["base"] * found["multiplier"], 3.0))
            assert found["marks_total"] == sum(found[name] or 0.0 for name in DIMENSIONS)
    assert mapping.PARTIAL_HACK == benchmark_item.PARTIAL_HACK
    shares = mapping.averages(outcomes)
    assert (
        0 < shares["partial_hack"] < shares["correct"] < shares["built"] <= shares["readable"] < shares["scored"] == 1
    )


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("text", "text"),
        ([{"role": "assistant", "content": "text"}], "text"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "text"}], "text"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}]}], "text"),
        ([{"role": "assistant", "content": None}], ""),
    ],
)
def test_a_completion_is_a_text_or_messages(completion: Any, expected: str) -> None:
    assert text_of(completion) == expected


def broken(columns: dict[str, Any], **changes: Any) -> Callable[[], Any]:
    return lambda: item_of_columns({**columns, **changes}, "x")


def test_columns_that_are_no_rows_are_refused_and_named() -> None:
    columns = asked_of(adapted.asked()[0][0])
    for changes, said in (
        ({"task": None}, "no task"),
        ({"skill": "verse"}, "'verse'"),
        ({"task": "{}"}, "not valid"),
        ({"step": "[]"}, "not valid"),
    ):
        with pytest.raises(RewardError, match=said):
            broken(columns, **changes)()
    with pytest.raises(RewardError, match="a completion is a int"):
        text_of(3)
    with pytest.raises(RewardError, match=ASKED[1]):
        asyncio.run(trl_reward(RewardService(Pool()))(prompts=["p"], completions=["c"]))


def gone(what: str, count: int) -> None:
    """The machine fails, always."""
    raise InfrastructureError("worker_lost: three workers died")


def row_and_completion() -> tuple[Row, str]:
    return next(pair for pair in adapted.asked() if pair[0].skill == "scratch")


def test_what_cannot_be_scored_is_none_for_trl_and_a_failure_for_the_others(tmp_path: Path) -> None:
    row, completion = row_and_completion()
    write_verl([row], tmp_path / "one.parquet")
    rows = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    module = loaded(write_code(tmp_path)[0])
    seen: list[RewardOutcome] = []
    with BlockingService(Pool(trouble=gone), CALM) as service:
        assert as_trl(trl_reward(service, watch=seen.extend), [{"prompt": "", **asked_of(row)}], [completion]) == [None]
        with RewardServer(service) as server:
            [failure] = asyncio.run(as_verl(module, rows, [completion], endpoint=server.address()))
            with pytest.raises(InfrastructureError, match="it is no zero"):
                asyncio.run(reward_of(Remote(server.address()), json.dumps(asked_of(row)), completion))
    assert isinstance(seen[0], Unscored)
    assert isinstance(failure, RuntimeError)
    assert "three workers died" in str(failure)


def test_trl_logs_means_over_those_completions_that_have_a_part(service: BlockingService, data: Path) -> None:
    metrics: dict[str, float] = {}
    extra: dict[str, list[Any]] = {}
    texts = [completion for _, completion in adapted.asked()]
    rewards = as_trl(
        trl_reward(service), in_order(data), texts, log_metric=metrics.__setitem__, log_extra=extra.__setitem__
    )
    verdicts = extra["stitchcuda_verdict"]
    assert len(verdicts) == 50
    assert metrics["stitchcuda/hack"] == verdicts.count("dishonest") / 50
    assert verdicts.count("correct") == sum(bool(value) for value in rewards)
    earned = [value for value in rewards if value]
    assert metrics["stitchcuda/base"] * metrics["stitchcuda/multiplier"] > 0
    assert len(earned) / 50 <= metrics["stitchcuda/correct"] < 1
    assert trl_reward(service, name="mine").__name__ == "mine"


def test_a_question_without_a_record_is_the_callers_mistake_and_is_not_asked_again(
    server: RewardServer, tmp_path: Path
) -> None:
    row, _ = row_and_completion()
    write_verl([row], tmp_path / "one.parquet")
    rows = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    module = loaded(write_code(tmp_path)[0])
    other = "```python program.py\nclass ModelNew:\n    pass\n```\n"
    [failure] = asyncio.run(
        as_verl(module, rows, [other], endpoint=server.address(), token_file=token_file(tmp_path), patience_s=60.0)
    )
    assert "refused a completion (400)" in str(failure)
    assert "none of this task" in str(failure) or "other programs only" in str(failure)


def post(server: RewardServer, path: str, body: bytes, token: str = "open sesame") -> tuple[int, dict[str, Any]]:
    """A raw request to the server."""
    request = urllib.request.Request(server.address() + path, data=body or None)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_server_scores_for_those_who_know_its_token_only(server: RewardServer) -> None:
    row, completion = row_and_completion()
    question = json.dumps({"asked": asked_of(row), "completion": completion}).encode()
    assert post(server, "/score", question, "guess")[0] == 401
    assert post(server, "/health", b"", "guess")[0] == 401
    status, answer = post(server, "/score", question)
    assert (status, answer["verdict"]) == (200, "correct")
    status, health = post(server, "/health", b"")
    assert status == 200
    assert health["scored"] >= 1
    assert health["stamp"].startswith("recorded:")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"asked": 3}', b'{"asked": {}, "completion": "x"}', b"\xff"])
def test_the_server_says_what_is_wrong_with_a_question(server: RewardServer, body: bytes) -> None:
    status, answer = post(server, "/score", body)
    assert status == 400
    assert answer["error"]
    assert post(server, "/elsewhere", body)[0] == 404


def test_a_server_that_comes_late_is_waited_for_and_one_that_never_does_is_named(
    service: BlockingService, tmp_path: Path
) -> None:
    row, completion = row_and_completion()
    write_verl([row], tmp_path / "one.parquet")
    rows = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    module = loaded(write_code(tmp_path)[0])
    with RewardServer(service) as first:
        port = first.port

    async def late() -> Any:
        asking = asyncio.create_task(
            as_verl(module, rows, [completion], endpoint=f"http://127.0.0.1:{port}", patience_s=120.0)
        )
        await asyncio.sleep(0.2)
        with RewardServer(service, port=port):
            return (await asking)[0]

    answer = asyncio.run(late())
    assert answer["score"] > 0
    [failure] = asyncio.run(as_verl(module, rows, [completion], endpoint=f"http://127.0.0.1:{port}", patience_s=0.1))
    assert "gave no answer" in str(failure)


def test_a_token_is_new_each_time_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "token"
    first = new_token(path)
    assert new_token(path) != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(StitchError, match="no rows"):
        write_verl([], tmp_path / "train.parquet")
    with pytest.raises(RecordMissing), open_service(f"recorded:{adapted.write(tmp_path)}", settings=CALM) as opened:
        opened.score_all([item_of(row_and_completion()[0], "```python program.py\nclass ModelNew: ...\n```")])
