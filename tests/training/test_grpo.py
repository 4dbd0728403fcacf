"""GRPO for real on a processor: programs are compiled and timed, groups are scaled by more than noise, both skills are
trained, and what a step cost is written down."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch

from stitchcuda.errors import InfrastructureError, TrainingError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward.formula import reward
from stitchcuda.reward.service import ServiceSettings
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.task.model import Task
from stitchcuda.training.adapters.mapping import asked_of
from stitchcuda.training.checkpoint import Result, read_result
from stitchcuda.training.checkpoint_model import load_model, load_tokenizer, origin_of
from stitchcuda.training.grpo import grpo_arguments, run_grpo
from stitchcuda.training.grpo_advantage import advantages
from stitchcuda.training.grpo_reward import Rewarder
from stitchcuda.training.metrics import read_metrics
from stitchcuda.training.prompts_rl import interleaved, opens_thought, reply_text
from stitchcuda.training.reply import reply_of
from stitchcuda.training.sft import run_sft
from tests.reward.samples import evaluation, marks
from tests.training import tiny

# Advantages


def test_differences_within_the_noise_are_not_blown_up() -> None:
    noise = torch.full((4,), 0.1)
    alike = advantages(torch.tensor([1.00, 1.01, 0.99, 1.00]), noise, 4)
    apart = advantages(torch.tensor([0.0, 2.0, 1.0, 1.0]), noise, 4)
    assert alike.floored == 1
    assert float(alike.values.abs().max()) == pytest.approx(0.1, rel=1e-3)  # 0.01 / 0.1, not 1.2 deviations
    assert apart.floored == 0
    assert float(apart.values.std()) == pytest.approx(1.0)


def test_the_floor_is_what_the_noise_of_the_whole_group_would_give() -> None:
    found = advantages(torch.tensor([1.0, 1.2, 3.0, 3.0]), torch.tensor([0.3, math.nan, 0.0, 0.4]), 2)
    assert found.floor.tolist() == pytest.approx([math.sqrt(0.09 / 2), math.sqrt(0.16 / 2)])
    assert advantages(torch.ones(2), torch.zeros(2), 2, least=0.05).floor.tolist() == pytest.approx([0.05])


def test_a_completion_without_a_reward_leaves_its_group() -> None:
    found = advantages(torch.tensor([0.0, 2.0, math.nan, math.nan, math.nan, 1.0]), torch.zeros(6), 3)
    half = 1 / math.sqrt(2)
    assert found.values.tolist() == pytest.approx([-half, half, 0, 0, 0, 0], rel=1e-4)
    assert found.scored.tolist() == [2, 1]
    assert found.alike == 0.5


def test_equal_rewards_teach_nothing_and_unscaled_ones_keep_their_unit() -> None:
    assert advantages(torch.full((4,), 0.7), torch.zeros(4), 4).values.tolist() == [0.0] * 4
    found = advantages(torch.tensor([0.0, 3.0]), torch.zeros(2), 2, scale="none")
    assert found.values.tolist() == pytest.approx([-1.5, 1.5])


def test_a_reward_says_how_much_of_it_the_clocks_may_have_made() -> None:
    found = reward(evaluation(program=1e-3, compiled=1.5e-3, spread=0.02), marks(3), "scratch")
    # Both intervals reach 2 % each way, 1.02 % standard error each, of a speedup of 1.5 with a multiplier of 1.
    assert found.noise == pytest.approx(1.5 * math.sqrt(2) * 0.02 / 1.96)
    assert reward(evaluation(spread=None), marks(3), "scratch").noise is None
    assert reward(evaluation(program=1e-4), marks(5), "scratch").noise == 0  # capped, whatever the clocks say
    assert reward(evaluation("wrong_output"), None, "scratch").noise is None


# Prompts


def test_both_skills_take_turns_by_their_share() -> None:
    rows = [tiny.row(None), tiny.row(tiny.WRONG), tiny.row(tiny.BROKEN)]
    for share, improved in ((0.5, 10), (0.25, 5), (0.0, 0), (1.0, 20)):
        order = interleaved(rows, share, 1)
        assert [rows[next(order)].skill for _ in range(20)].count("improve") == improved
    first, again = interleaved(rows, 0.5, 3), interleaved(rows, 0.5, 3)
    assert [next(first) for _ in range(12)] == [next(again) for _ in range(12)]
    with pytest.raises(TrainingError, match=r"no row of the skill 'improve'.*improve_share=0"):
        interleaved(rows[:1], 0.5, 1)


def test_thoughts_are_no_part_of_a_reply() -> None:
    assert reply_text("<think>\n```python program.py\nold\n```\n</think>\n\nnew") == "new"
    assert reply_text([{"role": "assistant", "content": "new"}]) == "new"


def test_thoughts_that_never_end_are_no_reply() -> None:
    draft = "```python program.py\nold\n```\nor rather"
    assert reply_text(f" \n<think>\n{draft}") == ""
    assert reply_text(f"<think>done</think>\n<think>{draft}") == ""
    assert reply_text(f"{draft}: I think <think> so") == f"{draft}: I think <think> so"
    assert reply_text(draft, in_thought=True) == ""
    assert reply_text(f"{draft}\n</think>\n\nnew", in_thought=True) == "new"


def test_a_template_that_begins_the_thoughts_is_known(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(origin_of(str(tiny.write_model(tmp_path / "model"))))
    assert not opens_thought(tokenizer, {})
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% if quick %}\n</think>\n{% endif %}{% endif %}"
    assert opens_thought(tokenizer, {})
    assert not opens_thought(tokenizer, {"quick": True})


def test_a_step_that_processes_cannot_share_is_refused() -> None:
    config = tiny.settings(grpo={"prompts": 3, "group": 3, "optimizer": {"micro_batch": 2}})
    with pytest.raises(TrainingError, match="a step of GRPO is 9 sequences, which 1 processes with 2 at once"):
        grpo_arguments(config, Path("out"), looks=False)


def test_chunks_that_would_cut_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.settings(grpo={"prompts": 4, "group": 4, "chunks": 2, "optimizer": {"micro_batch": 2}})
    world = [2]
    monkeypatch.setattr("stitchcuda.training.grpo.processes", lambda: world[0])
    grpo_arguments(config, Path("out"), looks=False)
    world[0] = 4
    with pytest.raises(TrainingError, match=r"samples 4 completions.*chunks=2 parts.*expected a multiple of 8: raise"):
        grpo_arguments(config, Path("out"), looks=False)


# Rewards


class Takes:
    """Takes its time with every program, or fails."""

    def __init__(self, seconds: float = 0.0, *, fails: bool = False) -> None:
        self.seconds, self.fails, self.evaluated = seconds, fails, 0

    stamp = "takes"

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        self.evaluated += 1
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise InfrastructureError("no disk")
        return evaluation()

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        return None


def rewarder(backend: Takes, **more: Any) -> Rewarder:
    return Rewarder(BlockingService(backend, ServiceSettings(tries=1)), **more)


def test_a_draft_in_thoughts_that_the_template_began_is_not_measured() -> None:
    backend = Takes()
    scorer = rewarder(backend, in_thought=True)
    draft = reply_of(tiny.GOOD, None, "cpu")
    rewards, _ = ask(scorer, [draft, f"so\n</think>\n{draft}"])
    assert rewards[0] == 0
    assert rewards[1]
    assert backend.evaluated == 1


def ask(scorer: Rewarder, texts: list[str]) -> tuple[list[float | None], dict[str, float]]:
    """The rewards of completions of one request, and what was logged, the last value of each."""
    logged: dict[str, float] = {}
    columns = {name: [value] * len(texts) for name, value in asked_of(tiny.row(None)).items()}
    told = {"prompts": [""] * len(texts), "log_metric": logged.__setitem__, **columns}
    return asyncio.run(scorer.function()(completions=texts, **told)), logged


def test_what_is_measured_while_others_are_sampled_is_not_measured_again() -> None:
    backend = Takes(0.2)
    scorer = rewarder(backend)
    text = tiny.row(None).completion
    scorer.begin_early([asked_of(tiny.row(None))], [text])
    asyncio.run(asyncio.sleep(0.1))
    numbers, logged = ask(scorer, [text, text])
    assert numbers[0] == numbers[1]
    assert numbers[0]
    assert backend.evaluated == 1
    assert logged["overlap/seconds"] >= 0.1
    assert logged["reward/distinct"] == 0.5
    assert logged["scratch/correct"] == 1
    scorer.close()


def test_a_machine_that_keeps_failing_is_a_reason_to_stop() -> None:
    backend = Takes()
    scorer = rewarder(backend, unscored_limit=0.4)
    good, other = tiny.row(None).completion, "nothing"
    assert ask(scorer, [good, other])[0][1] == 0  # no program is the model's fault
    before = scorer.failing
    backend.fails = True
    slower = reply_of(tiny.SLOW, None, "cpu")
    assert ask(scorer, [slower, slower])[0] == [None, None]
    assert (before, scorer.failing) == (False, True)
    assert all(math.isnan(value) for value in scorer.noise())
    scorer.close()


# A whole training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tiny.QuickBackend, Result, Result]]:
    """Three steps of SFT, then three of GRPO from its result, with programs that are compiled and run."""
    folder = tmp_path_factory.mktemp("training")
    data, model = tiny.write_rows(folder / "data"), tiny.write_model(folder / "model")
    first = tiny.started("sft", tiny.settings(), data, model)
    sft = run_sft(first, tiny.begun(folder / "sft", first))
    backend = tiny.QuickBackend(folder / "cache")
    config = tiny.settings(grpo={"group": 8, "kl": 0.03, "chunks": 2, "optimizer": {"micro_batch": 8}})
    second = tiny.started("grpo", config, data, folder / "sft")
    try:
        yield folder, backend, sft, run_grpo(second, tiny.begun(folder / "grpo", second), backend=backend)
    finally:
        backend.close()


def test_sft_then_grpo_on_both_skills_with_real_compilation(
    trained: tuple[Path, tiny.QuickBackend, Result, Result],
) -> None:
    folder, backend, sft, grpo = trained
    assert (sft.stopped, sft.step, grpo.stopped, grpo.step) == ("done", 3, "done", 3)
    lines = read_metrics(folder / "grpo")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert {tiny.GOOD.digest, tiny.SLOW.digest} & set(backend.built)
    assert {tiny.WRONG.digest, tiny.BROKEN.digest} & set(backend.built)
    seen = {(line["skill"], line["verdict"]) for line in tiny.samples(folder / "grpo")}
    assert {skill for skill, _ in seen} == {"scratch", "improve"}
    assert {"correct", "no_program"} <= {verdict for _, verdict in seen}
    assert any(line["reward"] > 0 and line["group/deviation"] > 0 for line in lines)
    for line in lines:
        assert {"scratch/reward", "improve/reward", "reward/built", "reward/hack", "reward/partial_hack"} <= line.keys()
        assert {"entropy", "clip_ratio/region_mean", "completions/clipped_ratio", "kl", "group/floor"} <= line.keys()
    assert any(abs(line["loss"]) > 0 for line in lines)


def test_weights_begin_with_those_of_sft_and_change(trained: tuple[Path, tiny.QuickBackend, Result, Result]) -> None:
    folder, *_ = trained
    origin = origin_of(str(folder / "grpo"))
    assert [Path(path).parent.name for path in origin.merged] == ["sft", "grpo"]
    config = tiny.settings()
    after = load_model(origin, config).state_dict()
    before = load_model(origin_of(str(folder / "sft")), config).state_dict()
    at_first = load_model(origin_of(str(folder / "model")), config).state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(after[name], before[name])
    assert not torch.equal(before[name], at_first[name])


def test_seconds_and_memory_are_booked_by_phase(trained: tuple[Path, tiny.QuickBackend, Result, Result]) -> None:
    folder, _, _, grpo = trained
    assert {"generate", "reward", "update", "optimizer", "save", "evaluate/reward", "load"} <= grpo.seconds.keys()
    assert grpo.seconds["reward"] > 0.1  # a compiler ran
    assert grpo.peak_bytes["update"] > 1 << 26
    line = read_metrics(folder / "grpo")[0]
    assert line["overlap/seconds"] > 0
    assert line["seconds/generate"] > 0
    assert read_result(folder / "grpo") == grpo


def test_held_out_rows_are_looked_at_before_and_after(trained: tuple[Path, tiny.QuickBackend, Result, Result]) -> None:
    folder, *_ = trained
    assert [line["step"] for line in read_metrics(folder / "grpo", "eval")] == [0, 3]
    assert "eval_reward/correct" in read_metrics(folder / "grpo", "eval")[0]
    losses = [line["eval_loss"] for line in read_metrics(folder / "sft", "eval")]
    assert losses[1] < losses[0]


def test_the_loss_of_sft_is_on_the_answer_alone(trained: tuple[Path, tiny.QuickBackend, Result, Result]) -> None:
    folder, *_ = trained
    # Two tokens an answer, near the logarithm of eight words; a prompt's unknown words would be learned at once.
    losses = [line["loss"] for line in read_metrics(folder / "sft")]
    assert losses[0] == pytest.approx(math.log(8), abs=0.3)
    assert losses[-1] < losses[0]


def test_samples_keep_the_text_of_what_was_correct(trained: tuple[Path, tiny.QuickBackend, Result, Result]) -> None:
    folder, *_ = trained
    lines = tiny.samples(folder / "grpo")
    assert len(lines) == 3 * 16 + 2 * 2
    for line in lines:
        assert ("text" in line) == (line["verdict"] == "correct")
    assert json.dumps(lines)
