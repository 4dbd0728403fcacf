"""Rows in the order and form that trainers take them: measured with the model's tokenizer, both skills interleaved.

Nothing here knows a trainer; texts come from the rows as they are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcuda.errors import TrainingError
from stitchcuda.reward.model import Skill
from stitchcuda.training.config import Lengths
from stitchcuda.training.model import Part, Row
from stitchcuda.training.rows import read_dataset

PLAIN_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""For a base model, whose tokenizer brings none."""
THINK, THOUGHT = "<think>", "</think>"
"""What a reasoning model's thoughts begin and end with; the reply is what follows."""


@dataclass(frozen=True)
class Fitted:
    """Rows of one part that fit the model, and how many do not."""

    rows: list[Row]
    left_out: dict[str, int]
    """Reason and count."""


def prompt_of(row: Row) -> list[dict[str, str]]:
    """The request as messages."""
    return [{"role": "system", "content": row.instructions}, {"role": "user", "content": row.message}]


def answer_of(row: Row) -> list[dict[str, str]]:
    """The verified answer as messages."""
    return [{"role": "assistant", "content": row.completion}]


def reply_text(completion: str | Sequence[dict[str, Any]], *, in_thought: bool = False) -> str:
    """The Coder's reply in a trainer's completion, a text or messages, without a reasoning model's thoughts.

    Thoughts that never end are all there is, and no reply. ``in_thought``: the prompt has begun them already, as
    ``opens_thought`` says of a chat template.
    """
    text = completion if isinstance(completion, str) else "".join(str(part.get("content") or "") for part in completion)
    if THOUGHT in text:
        text = text.rpartition(THOUGHT)[2].lstrip("\n")
    elif in_thought:
        return ""
    return "" if text.lstrip().startswith(THINK) else text


def opens_thought(tokenizer: Any, options: dict[str, Any]) -> bool:
    """Whether the chat template begins the reply's thoughts itself, so that a completion holds their end alone."""
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": "-"}], add_generation_prompt=True, tokenize=False, **_template(tokenizer, options)
    )
    return text.rstrip().endswith(THINK)


def fitted(
    folder: Path, part: Part, tokenizer: Any, lengths: Lengths, options: dict[str, Any], *, answers: bool
) -> Fitted:
    """The rows that fit; with ``answers`` the answer must fit too, without it rows of equal requests are one.

    Raises TrainingError when there are rows and none fits, StitchError when the folder is no data set.
    """
    kept: list[Row] = []
    dropped: Counter[str] = Counter()
    seen: set[tuple[str, str, str]] = set()
    for row in read_dataset(folder, part):
        key = (row.skill, row.message, row.completion if answers else "")
        if key in seen:
            dropped["duplicate"] += 1
            continue
        seen.add(key)
        prompt = len(tokens_of(tokenizer, prompt_of(row), options))
        if prompt > lengths.prompt:
            dropped["prompt too long"] += 1
        elif answers and len(tokenizer(row.completion)["input_ids"]) >= lengths.completion:
            dropped["answer too long"] += 1
        else:
            kept.append(row)
    if dropped and not kept:
        told = ", ".join(f"{name}: {count}" for name, count in dropped.items())
        raise TrainingError(
            f"no row of {folder / part}.parquet fits ({told}); raise lengths.prompt ({lengths.prompt}) or "
            f"lengths.completion ({lengths.completion}), or build shorter rows"
        )
    return Fitted(kept, dict(dropped))


def tokens_of(tokenizer: Any, messages: list[dict[str, str]], options: dict[str, Any]) -> list[int]:
    """A prompt's tokens with the template around it, the plain one where the tokenizer has none."""
    found = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, **_template(tokenizer, options)
    )
    ids: list[int] = found["input_ids"]
    return ids


def _template(tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    return options if tokenizer.chat_template is not None else {"chat_template": PLAIN_TEMPLATE, **options}


def interleaved(rows: Sequence[Row], improve_share: float, seed: int) -> Iterator[int]:
    """Positions in ``rows`` without end: both skills evenly spread by share, each skill's rows in passes that are
    shuffled anew. The beginning does not depend on how much is taken.

    Raises TrainingError where a skill that is asked for has no row.
    """
    of_skill: dict[Skill, list[int]] = {
        "scratch": [at for at, row in enumerate(rows) if row.skill == "scratch"],
        "improve": [at for at, row in enumerate(rows) if row.skill == "improve"],
    }
    wanted: dict[Skill, bool] = {"scratch": improve_share < 1, "improve": improve_share > 0}
    for skill, places in of_skill.items():
        if wanted[skill] and not places:
            other = "1" if skill == "scratch" else "0"
            raise TrainingError(
                f"the data has no row of the skill '{skill}' that fits; build some, or train the other alone with "
                f"--set grpo.improve_share={other}"
            )
    cycles = {skill: _passes(places, seed, skill) for skill, places in of_skill.items()}
    return _spread(cycles, improve_share)


def _spread(cycles: dict[Skill, Iterator[int]], share: float) -> Iterator[int]:
    at = 0
    while True:
        improve = int((at + 1) * share + 1e-9) > int(at * share + 1e-9)
        yield next(cycles["improve" if improve else "scratch"])
        at += 1


def _passes(places: list[int], seed: int, skill: str) -> Iterator[int]:
    draw = random.Random(f"{seed} {skill}")
    while True:
        order = list(places)
        draw.shuffle(order)
        yield from order


def held_out_rows(rows: Sequence[Row], count: int) -> list[Row]:
    """The rows that are looked at, equal for every training on the data: both skills in turn, by their digests."""
    by_skill = [
        sorted((row for row in rows if row.skill == skill), key=lambda row: (row.answer.digest, row.task.digest))
        for skill in ("scratch", "improve")
    ]
    turns = [row for pair in zip(*by_skill, strict=False) for row in pair]
    shorter = min(map(len, by_skill))
    return [*turns, *(row for part in by_skill for row in part[shorter:])][:count]
