"""What verl itself makes of our files: its settings, its data set, its reward workers and its advantages.

Needs verl 0.9, which lives in an environment of its own; run it there (docs/training.md, "verl").
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is in an environment of its own; see docs/training.md")

import numpy as np
import torch

from stitchcuda.reward import BlockingService
from stitchcuda.reward.score import RewardOutcome
from stitchcuda.training.adapters.mapping import PARTS, number
from stitchcuda.training.adapters.scorer import open_service
from stitchcuda.training.adapters.server import RewardServer
from stitchcuda.training.adapters.verl import write_code, write_verl
from stitchcuda.training.config import make_config
from stitchcuda.training.engine_verl import command, environment
from stitchcuda.training.engine_verl_config import VerlFiles, hydra_file, verl_settings
from stitchcuda.training.engine_verl_settings import VerlSettings
from stitchcuda.training.presets import preset
from stitchcuda.training.rows import item_of
from tests.reward.test_service import CALM
from tests.training import adapted
from tests.training.tokens import tiny_model

core_algos: Any = importlib.import_module("verl.trainer.ppo.core_algos")
omegaconf: Any = importlib.import_module("omegaconf").OmegaConf
DataProto: Any = importlib.import_module("verl").DataProto


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, data and all that a training by verl is started with, but for the server's address."""
    place = tmp_path_factory.mktemp("verl")
    tiny_model(place / "model")
    adapted.write(place / "data")
    write_verl((row for row, _ in adapted.asked()), place / "verl" / "train.parquet")
    write_code(place / "verl")
    return place


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[BlockingService]:
    """A service that runs nothing."""
    with open_service(f"recorded:{folder / 'data'}", settings=CALM) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(service: BlockingService, folder: Path) -> Iterator[RewardServer]:
    """The same behind HTTP."""
    (folder / "verl" / "token").write_text("open sesame\n", encoding="utf-8")
    with RewardServer(service, token="open sesame") as serving:
        yield serving


@pytest.fixture(scope="module")
def outcomes(service: BlockingService) -> list[RewardOutcome]:
    """What the service says of the fifty completions itself."""
    return service.score_all([item_of(row, completion) for row, completion in adapted.asked()])


def written(folder: Path, endpoint: str, **verl: Any) -> VerlSettings:
    """verl's settings, as they are started with; their file is in ``folder``."""
    place = folder / "verl"
    files = VerlFiles(
        out=folder,
        train=place / "train.parquet",
        held_out=None,
        reward=place / "reward.py",
        manager=place / "manager.py",
        token=place / "token",
    )
    config = make_config(preset("qwen3-32b-lora"), {"verl": {"python": sys.executable, "gpus": 4, **verl}})
    told = verl_settings(config, str(folder / "model"), files, endpoint)
    (place / "stitchcuda.yaml").write_text(hydra_file(told), encoding="utf-8")
    return config.verl


def composed(folder: Path, endpoint: str, **verl: Any) -> Any:
    """The settings as verl's main composes them, in this process."""
    hydra: Any = importlib.import_module("hydra")
    written(folder, endpoint, reward_workers=1, **verl)
    verl_folder = Path(importlib.import_module("verl").__file__ or "").parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder / "verl"), version_base=None):
        return hydra.compose("stitchcuda", overrides=[f"hydra.searchpath=[file://{verl_folder}]"])


@pytest.fixture(scope="module")
def settings(folder: Path, server: RewardServer) -> Any:
    """verl's settings over the running reward server."""
    # What vLLM can sample with adapters of this rank, verl asks vLLM itself.
    there = importlib.util.find_spec("vllm") is not None
    return composed(folder, server.address(), more={} if there else {"actor_rollout_ref.model.lora_rank": 0})


def tokenizer(folder: Path) -> Any:
    hf_tokenizer = importlib.import_module("verl.utils").hf_tokenizer
    return hf_tokenizer(str(folder / "model"))


def test_verls_main_composes_the_settings_with_its_own(folder: Path) -> None:
    chosen = written(folder, "http://10.0.0.1:4000", tensor_parallel=4)
    words = command(chosen, folder, "--cfg", "job", "--resolve")
    told = subprocess.run(words, capture_output=True, text=True, env=environment(chosen, folder), check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    found = omegaconf.create(told.stdout[told.stdout.index("model_engine") :])
    assert found.actor_rollout_ref.model.lora_rank == 128
    assert found.actor_rollout_ref.actor.optim.lr == 1e-6
    assert found.actor_rollout_ref.actor.clip_ratio_high == 0.28
    assert found.actor_rollout_ref.rollout.n == 6
    assert found.actor_rollout_ref.rollout.prompt_length == 8192
    assert found.actor_rollout_ref.rollout.response_length == 16384
    assert found.reward.custom_reward_function.reward_kwargs.endpoint == "http://10.0.0.1:4000"
    assert found.algorithm.adv_estimator == "stitchcuda_grpo"
    assert found.trainer.total_training_steps == 100


def test_verls_own_check_of_settings_passes(settings: Any) -> None:
    validate = importlib.import_module("verl.utils.config").validate_config
    utils = importlib.import_module("verl.trainer.ppo.utils")
    assert utils.need_reference_policy(settings)
    assert not utils.need_critic(settings)
    validate(settings, use_reference_policy=True, use_critic=False)
    as_class = importlib.import_module("verl.utils.config").omega_conf_to_dataclass
    for section in (settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.model):
        as_class(section)


def test_verls_data_set_gives_the_rows_in_their_order(folder: Path, settings: Any) -> None:
    make = importlib.import_module("verl.trainer.ppo.utils").create_rl_dataset
    data = make(settings.data.train_files, settings.data, tokenizer(folder), None)
    assert len(data) == 50
    collate = importlib.import_module("verl.utils.dataset.rl_dataset").collate_fn
    batch = collate([data[at] for at in range(len(data))])
    for at, (row, _) in enumerate(adapted.asked()):
        assert batch["raw_prompt"][at][1]["content"] == row.message
        assert batch["index"][at] == at
        assert batch["extra_info"][at]["skill"] == row.skill
        assert batch["data_source"][at] == f"stitchcuda/{row.skill}"


def batch_of(folder: Path) -> Any:
    """The fifty completions as verl's rollout hands them to its reward workers."""
    words = tokenizer(folder)
    make = importlib.import_module("verl.trainer.ppo.utils").create_rl_dataset
    data = make(
        [str(folder / "verl" / "train.parquet")], omegaconf.create({"filter_overlong_prompts": False}), words, None
    )
    responses = [[*words.encode(completion), words.eos_token_id] for _, completion in adapted.asked()]
    longest = max(map(len, responses))
    rows = [data[at] for at in range(len(data))]
    pad = words.pad_token_id
    tensors = {
        "prompts": torch.full((len(rows), 4), pad),
        "responses": torch.tensor([one + [pad] * (longest - len(one)) for one in responses]),
        "attention_mask": torch.tensor([[1] * 4 + [1] * len(one) + [0] * (longest - len(one)) for one in responses]),
    }
    others = {
        name: np.fromiter((row[name] for row in rows), dtype=object, count=len(rows))
        for name in ("data_source", "reward_model", "extra_info")
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=others)


def test_verls_reward_manager_gives_the_rewards_of_the_service(
    folder: Path, settings: Any, outcomes: list[RewardOutcome]
) -> None:
    load = importlib.import_module("verl.trainer.ppo.reward").load_reward_manager
    manager = load(settings, tokenizer(folder))
    data = batch_of(folder)

    async def every() -> list[Any]:
        return await asyncio.gather(*(manager.run_single(data[at : at + 1]) for at in range(len(data))))

    found = manager.loop.run_until_complete(every())
    assert [one["reward_score"] for one in found] == [number(outcome) for outcome in outcomes]
    for one in found:
        assert set(one["reward_extra_info"]) == {"score", *PARTS}


def test_verls_reward_workers_on_ray_give_them_too(folder: Path, settings: Any, outcomes: list[RewardOutcome]) -> None:
    ray: Any = importlib.import_module("ray")
    loop = importlib.import_module("verl.experimental.reward_loop")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        manager = loop.RewardLoopManager(settings)
        assert core_algos.get_adv_estimator_fn("stitchcuda_grpo") is not None, "the trainer's process knows it"
        told = manager.compute_rm_score(batch_of(folder))
        rewards = told.batch["rm_scores"].sum(dim=1)
        expected = torch.tensor([number(outcome) for outcome in outcomes])
        assert torch.allclose(rewards, expected)
        one = batch_of(folder)[:1]
        one.non_tensor_batch["extra_info"][0]["asked"] = '{"skill": "scratch", "task": "{}"}'
        with pytest.raises(ray.exceptions.RayTaskError, match="refused a completion"):
            ray.get(manager.reward_loop_workers[0].compute_score.remote(one))
    finally:
        ray.shutdown()


def test_verl_takes_the_advantages_with_a_floor(folder: Path, settings: Any) -> None:
    importlib.import_module("verl.trainer.ppo.reward").resolve_reward_manager_cls(settings)
    over = importlib.import_module("verl.trainer.ppo.v1.utils").compute_advantage_for_multi_trajectories
    rewards = torch.tensor([1.0, 1.02, 0.0, 2.0, 0.7])
    mask = torch.ones(5, 3)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards.unsqueeze(1) * torch.tensor([0.0, 0.0, 1.0]), "response_mask": mask},
        non_tensors={"uid": np.array(["a", "a", "b", "b", "c"], dtype=object)},
    )
    keys = [f"{uid}_{at}_0" for at, uid in enumerate("aabbc")]
    found = over(data, keys, settings.algorithm.adv_estimator, config=settings.algorithm).batch["advantages"]
    deviation = 2**0.5
    assert found[:, 0].tolist() == pytest.approx([-0.2, 0.2, -1 / deviation, 1 / deviation, 0.0], abs=1e-4)
