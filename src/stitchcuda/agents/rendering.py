"""Templates of prompts filled in: the Jinja environment, and how figures, shapes and files are written in a prompt.

What a prompt holds is ``prompting``'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from stitchcuda.agents.plan import TensorContract
from stitchcuda.agents.roles import Room
from stitchcuda.evaluation.steadiness import doubt
from stitchcuda.profiling.digest import without_gain
from stitchcuda.program.model import MANIFEST, Program
from stitchcuda.task.model import Precision, TensorFacts


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stitchcuda.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )
    environment.filters.update(
        tensor=_tensor,
        contract=_contract,
        seconds=_seconds,
        bytes=_bytes,
        rate=_rate,
        count=_count,
        percent=lambda share: f"{100 * share:.1f} %",
        factor=lambda value: f"{value:.2f}x",
        short=_short,
        quoted=lambda text: _quoted(text.replace(_KEPT_NEWLINE, " ")),
        fit=lambda text, limit: _quoted(fit(text, limit)),
        simd=_simd,
        room=_room,
        doubt=doubt,
        without_gain=without_gain,
        listing=_listing,
        language=_language,
    )
    return environment


def render(template: str, **values: Any) -> str:
    """The text of a template with these values; ``kind`` and ``precision`` are the task's where they are not given."""
    kind = values["kind"] if "kind" in values else values["task"].target.kind
    precision = values["precision"] if "precision" in values else values["task"].precision if "task" in values else ""
    text = _environment().get_template(template).render({**values, "kind": kind, "precision": precision})
    text = re.sub(r"\n+(?=#{2,3} )", "\n\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).replace(_KEPT_NEWLINE, "\n").strip() + "\n"


_KEPT_NEWLINE = "\ue000"
"""Stands for the newlines of quoted files while blank lines are tidied: edits must find a file's exact text."""


def _quoted(text: str) -> str:
    return text.replace("\n", _KEPT_NEWLINE)


def fit(text: str, limit: int) -> str:
    """``text`` with its middle left out where it is longer than ``limit`` characters; the cut is marked."""
    if len(text) <= limit:
        return text.rstrip()
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(text) - head - tail
    return f"{text[:head].rstrip()}\n# [... {left_out:,} characters left out ...]\n{text[-tail:].lstrip()}"


def _listing(program: Program, limit: int) -> Iterator[tuple[str, str]]:
    """Files in reading order with their text, the manifest last, within ``limit`` characters together."""
    files = {path: text for path, text in program.files.items() if path != MANIFEST}
    share = max(2_000, limit // max(1, len(files)))
    spare = limit - sum(min(len(text), share) for text in files.values())
    for path in sorted(files, key=lambda name: (name != "program.py", name)):
        room = share + max(0, spare) if len(files[path]) > share else share
        yield path, _quoted(fit(files[path], room))
    if program.manifest is not None:
        yield MANIFEST, program.manifest.model_dump_json(exclude_defaults=True)


def _language(path: str) -> str:
    return {"py": "python", "cu": "cuda", "cuh": "cuda", "cpp": "cpp", "h": "cpp", "json": "json"}.get(
        path.rpartition(".")[2], ""
    )


def _tensor(item: TensorFacts | str) -> str:
    if isinstance(item, str):
        return f"the value {_short(item, 120)}"
    return f"{item.dtype} [{', '.join(map(str, item.shape))}]"


def _contract(item: TensorContract) -> str:
    return f"{item.name}: {item.dtype} [{', '.join(map(str, item.shape))}], {item.layout}"


def _short(text: str, limit: int) -> str:
    flat = " ".join(str(text).split()).replace("|", "/")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


_WIDTHS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("neon", 128), ("asimd", 128), ("sse4_2", 128))
"""Bits of a vector register by instruction set, the widest first."""


def _simd(features: list[str], precision: Precision) -> str:
    """The width of vectors, and the instruction sets that help a precision class."""
    sets = [name for name in features if re.match(r"(avx|fma|sse4|amx|neon|sve|asimd|f16c)", name)]
    if precision in ("fp32", "tf32"):
        sets = [name for name in sets if not re.search(r"amx|bf16|fp16|vnni|f16c", name)]
    bits = next((bits for name, bits in _WIDTHS if name in features), 0)
    width = f"SIMD vectors of {bits} bits, {bits // 32} float32 each; " if bits else ""
    return f"{width}instruction sets {', '.join(sets) or 'unknown'}"


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1.0 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError


def _rate(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000 or prefix == "P":
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    raise AssertionError


def _count(value: float) -> str:
    return _rate(value, "").strip()


def _room(room: Room) -> str:
    """What is left of the budget, in words."""
    left = [
        f"{room.candidates} program{'s' * (room.candidates != 1)} (repairs apart)"
        if room.candidates is not None
        else "",
        f"{room.seconds / 60:.0f} min" if room.seconds is not None else "",
        f"{room.tokens / 1000:,.0f}k tokens" if room.tokens is not None else "",
        f"${room.usd:.2f}" if room.usd is not None else "",
        f"{room.plans} further plan{'s' * (room.plans != 1)}" if room.plans is not None else "",
    ]
    told = ", ".join(filter(None, left))
    return f"Left of the budget: {told}." if told else ""
