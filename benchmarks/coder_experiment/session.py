"""What a command of ``run`` works with: the model, the evaluator, the data and the time that is left. Which commands
there are is none of its business.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

USUAL_RATE = 1e-4
"""Of GRPO, where neither the command line nor a pilot says another."""


class Session:
    """Everything that a command works with. ``began``: on the monotonic clock, before what takes long was imported."""

    def __init__(self, options: argparse.Namespace, began: float, *, world: int = 1, memo: Path | None = None) -> None:
        """``world``: processes that share a step's prompts; ``memo``: what was measured, if not the folder's."""
        import torch

        from coder_experiment import llama, state
        from coder_experiment.arms import SFT_RANK
        from coder_experiment.evaluate import Evaluator
        from coder_experiment.generate import Generator
        from coder_experiment.tokens import Characters, Tokenizer
        from coder_experiment.train import Bench, Grpo

        self.options, self.began = options, began
        self.end = began + 60 * options.minutes
        if options.parts is not None:
            state.unpack(options.parts, options.state)
        self.folder = state.Folder(options.state)
        cuda = options.backend == "cuda"
        # cuDNN's attention makes a plan for each new shape, and nearly every batch has one of its own.
        torch.backends.cuda.enable_cudnn_sdp(False)
        device = torch.device("cuda" if cuda else "cpu")
        dtype = torch.bfloat16 if cuda else torch.float32
        tokenizer: Tokenizer
        if options.model == "tiny":
            model, tokenizer = llama.Llama(llama.TINY, SFT_RANK, device, dtype), Characters()
            model.randomise(0)
        else:
            model, tokenizer = llama.load(Path(options.model), SFT_RANK, device, dtype)
        self.base = {name: value.detach().clone() for name, value in model.base.items()}
        generator = Generator(
            model,
            tokenizer.end,
            rows=options.prompts * options.group // world,
            prompt=options.prompt_tokens,
            answer=options.answer_tokens,
        )
        memo = memo or self.folder.path / "memo.jsonl"
        evaluator = Evaluator(options.backend, memo=memo, elements=options.elements, left=self.left)
        self.bench = Bench(model, tokenizer, generator, evaluator, {})
        rate = options.lr or float(self.folder.config().get("pilot_lr", USUAL_RATE))
        self.grpo = Grpo(prompts=options.prompts, group=options.group, lr=rate, micro=options.micro)

    def left(self) -> float:
        """Seconds until the limit, less what packing takes."""
        return float(self.end - time.monotonic() - 10)

    def data(self) -> Any:
        """The data sets, made where they are not there."""
        from coder_experiment import dataset

        options, bench = self.options, self.bench
        found = dataset.load(self.folder.path / "data")
        if found is None:
            sizes = dataset.Sizes(options.tasks, options.validation, options.test, options.answers, options.improve)
            length = lambda text: len(bench.tokenizer.encode(text))  # noqa: E731
            found = dataset.prepare(
                bench.evaluator, options.data_seed, sizes, options.answer_tokens - 1, length, options.prompt_tokens
            )
            dataset.save(found, self.folder.path / "data")
        bench.baselines = found.baselines
        return found

    def pack(self) -> list[Path]:
        """Put the state where it can leave the machine."""
        from coder_experiment import state

        return state.pack(self.folder.path, self.options.out) if self.options.out is not None else []

    def close(self) -> None:
        """End the evaluator."""
        self.bench.evaluator.close()
