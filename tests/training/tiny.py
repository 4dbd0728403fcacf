"""A model that fits a test: its words are whole replies, so that it writes programs from the first step on.

Four programs for one task are tokens of its own: a correct one, a slower one, a wrong one, one that does not compile.
"""

from __future__ import annotations

import asyncio
import json
import threading
from functools import cache
from pathlib import Path
from typing import Any

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.prompting import coder_prompt, coder_purpose
from stitchcuda.agents.roles import CodeRequest
from stitchcuda.evaluation.model import Evaluation, Timing
from stitchcuda.hardware.detect import detect
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import ENTRY, Argument, Launcher, Manifest, Program
from stitchcuda.reward.service_backends import Recorded
from stitchcuda.task.model import Task
from stitchcuda.training.checkpoint import Started, data_digest, write_started
from stitchcuda.training.checkpoint_model import origin_of
from stitchcuda.training.config import Kind, TrainConfig, make_config
from stitchcuda.training.model import Built, Part, Row
from stitchcuda.training.presets import preset
from stitchcuda.training.reply import reply_of
from stitchcuda.training.rows import write_dataset
from stitchcuda.workflow.bench import LocalBench
from tests.evaluation.conftest import QUICK
from tests.reward.samples import evaluation
from tests.workflow.world import FACTS, idea

SIZE = 64 * 64
SOURCE = """import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
ENTRY_SOURCE = """import torch
from torch import nn
from bindings import double_relu
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double_relu(x, y)
        return y
"""
KERNEL = """#include <cstdint>
extern "C" int double_relu(const float* x, float* y, void*) {{
  for (int pass = 0; pass < {passes}; ++pass)
    for (int64_t i = 0; i < {size}; ++i) y[i] = {body};
  return 0;
}}
"""


def written(body: str = "x[i] > 0 ? 2 * x[i] : 0", passes: int = 1) -> Program:
    """A program with this as the body of its loop."""
    arguments = [
        Argument(name=name, kind="tensor", dtype="float32", role=role)
        for name, role in (("x", "input"), ("y", "output"))
    ]
    return Program(
        files={ENTRY: ENTRY_SOURCE, "kernel.cpp": KERNEL.format(passes=passes, size=SIZE, body=body)},
        manifest=Manifest(
            target="cpu", launchers=[Launcher(name="double_relu", source="kernel.cpp", arguments=arguments)]
        ),
    )


GOOD, SLOW = written(), written(passes=40)
WRONG, BROKEN = written("x[i] > 0 ? x[i] : 0"), written("x[i] > 0 ? 2 * x[i] : none")


@cache
def task(name: str = "double_relu") -> Task:
    """The task, for this machine."""
    return Task(name=name, origin=f"{name}.py", source=SOURCE, target=detect("cpu").target)


def row(previous: Program | None, part: Part = "train", name: str = "double_relu") -> Row:
    """A request with the good program as its answer: a draft, or what is made of an earlier program."""
    plan = idea("fuse")
    seen = None if previous is None else evaluation("build_failed" if previous is BROKEN else "wrong_output")
    said = Feedback(route="retry", diagnosis="a factor is missing", evidence="x", suggestion="multiply by two")
    request = CodeRequest(
        task=task(name),
        facts=FACTS,
        device=detect("cpu"),
        idea=plan,
        step=plan.steps[0],
        failed=previous,
        feedback=said if previous is not None else None,
        evaluation=seen,
    )
    prompt, (purpose, _) = coder_prompt(request), coder_purpose(request)
    return Row(
        task=task(name),
        facts=FACTS,
        skill="scratch" if previous is None else "improve",
        purpose=purpose,
        source="recipes" if previous is None else "worsened",
        step=plan.steps[0],
        instructions=prompt.instructions,
        message=prompt.message,
        completion=reply_of(GOOD, None, "cpu"),
        answer=GOOD,
        evaluation=evaluation(),
        previous=previous,
        previous_evaluation=seen,
        feedback=request.feedback,
        part=part,
    )


def write_rows(folder: Path, *, short: bool = False) -> Path:
    """A data set of both skills, three rows to train on and two that are held out; ``short`` cuts their prompts."""
    rows = [row(None), row(WRONG), row(BROKEN), row(None, "held_out", "other"), row(WRONG, "held_out", "other")]
    if short:
        rows = [
            one.model_copy(update={"instructions": "write", "message": f"{at} {one.message[-200:]}"})
            for at, one in enumerate(rows)
        ]
    write_dataset(rows, Built(rows=5, found=5, tasks=2, by={}, dropped={}, skipped={}), folder)
    return folder


def write_model(folder: Path) -> Path:
    """A randomly initialised model of Llama's architecture with a tokenizer whose words are the programs."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "well": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.add_tokens([AddedToken(reply_of(one, None, "cpu"), normalized=False) for one in (GOOD, SLOW, WRONG, BROKEN)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=1 << 20
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1 << 14,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_recorded(path: Path) -> Path:
    """Evaluations of the four programs of both tasks, for rewards without running anything."""
    seen = {
        GOOD.digest: evaluation(program=1e-3),
        SLOW.digest: evaluation(program=4e-3),
        WRONG.digest: evaluation("wrong_output"),
        BROKEN.digest: evaluation("build_failed"),
    }
    lines = [
        Recorded(task=task(name).digest, program=digest, evaluation=found).model_dump(mode="json")
        for name in ("double_relu", "other")
        for digest, found in seen.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


class QuickBackend:
    """Builds, checks and times programs for real, against eager alone: the compiler's modes take longer than a test."""

    def __init__(self, cache: Path) -> None:
        self._bench = LocalBench(cache, QUICK)
        self._one = threading.Lock()
        self._about: Task | None = None
        self._facts = FACTS
        self.built: list[str] = []
        """Digests of what was evaluated."""

    @property
    def stamp(self) -> str:
        """Of this machine."""
        return "quick"

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        """With eager's time as the only baseline."""
        return await asyncio.to_thread(self._evaluate, task, program)

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        """None."""
        return None

    def _evaluate(self, task: Task, program: Program) -> Evaluation:
        with self._one:
            if self._about != task:
                self._about, self._facts = task, self._bench.inspect(task)
                self._bench.use(task, self._facts, detect("cpu"))
            facts = self._facts
            found = self._bench.evaluate(program, "screen")
            self.built.append(program.digest)
        if not found.passed:
            return found
        eager = facts.eager_seconds
        ratio = eager / found.timings["program"].median
        return found.model_copy(
            update={
                "timings": {**found.timings, "eager": Timing(median=eager, p10=eager, p90=eager, n=1)},
                "speedup": {"eager": ratio, "over_best": ratio},
            }
        )

    def close(self) -> None:
        """End its processes."""
        self._bench.__exit__(None, None, None)


def settings(**changes: Any) -> TrainConfig:
    """Of the preset for a processor, for a model whose replies are a word or two; looking at held-out rows."""
    looks = {"every": 0, "rows": 2, "at_start": True, "at_end": True}
    return make_config(preset("tiny-cpu"), {"lengths": {"completion": 2}, "held_out": looks}, changes)


def started(kind: Kind, config: TrainConfig, data: Path, model: Path, compute: str = "local") -> Started:
    """As the command starts it."""
    origin = origin_of(str(model))
    return Started(
        kind=kind,
        config=config,
        base=origin.base,
        merged=list(origin.merged),
        data=str(data),
        data_digest=data_digest(data),
        compute=compute,
    )


def begun(folder: Path, started: Started) -> Path:
    """The folder with what it was started with."""
    folder.mkdir()
    write_started(folder, started)
    return folder


def samples(folder: Path, name: str = "samples.jsonl") -> list[dict[str, Any]]:
    """What came of each completion, of a process."""
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
