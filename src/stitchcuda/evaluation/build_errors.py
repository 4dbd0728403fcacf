"""A compiler's output reduced to what its reader can act on: the first error of each file with its source lines."""

from __future__ import annotations

import re
from collections.abc import Mapping

LIMIT = 2000
"""Characters of a digest."""

_LOCATED = (
    re.compile(r"^(?P<file>[^\s:()][^:()]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$"),
    re.compile(
        r"^(?P<file>[^\s:()][^:()]*)\((?P<line>\d+)\): (?:catastrophic )?error(?:\s*#[\w-]+)?\s*: (?P<text>.*)$"
    ),
    re.compile(r"^ptxas (?P<file>[^,\s]+), line (?P<line>\d+); error\s*: (?P<text>.*)$"),
)
_UNDEFINED = re.compile(r"undefined reference to [`'‘]?(?P<symbol>[^'’`]+)")
_DUPLICATE = re.compile(r"multiple definition of [`'‘]?(?P<symbol>[^'’`;]+)")
_LOOSE = re.compile(r"(?i)\b(fatal|error)\b")


def digest(output: str, sources: Mapping[str, str], folder: str = "") -> str:
    """The first error of each file, five source lines around it, and the linker's complaints.

    ``sources`` are the Program's files by relative path; ``folder`` is where they lay, removed from the text.
    At most LIMIT characters. An output without a recognisable error gives its last lines.
    """
    if folder:
        output = output.replace(folder.rstrip("/") + "/", "")
    first: dict[str, tuple[int, str]] = {}
    counts: dict[str, int] = {}
    for line in output.splitlines():
        for pattern in _LOCATED:
            if match := pattern.match(line.strip()):
                name = _own_name(match["file"], sources)
                counts[name] = counts.get(name, 0) + 1
                first.setdefault(name, (int(match["line"]), match["text"].strip()))
                break
    parts = []
    for name, (number, text) in first.items():
        more = f" ({counts[name] - 1} more in this file)" if counts[name] > 1 else ""
        parts.append(f"{name}:{number}: error: {text[:400]}{more}\n{_context(sources.get(name, ''), number)}".rstrip())
    undefined = sorted({match["symbol"] for match in _UNDEFINED.finditer(output)})
    if undefined:
        parts.append(f"undefined at link time: {', '.join(undefined[:8])}{', ...' if len(undefined) > 8 else ''}")
    duplicate = sorted({match["symbol"] for match in _DUPLICATE.finditer(output)})
    if duplicate:
        parts.append(f"defined more than once: {', '.join(duplicate[:8])}")
    if not parts:
        lines = [line.rstrip() for line in output.splitlines() if line.strip()]
        parts = [line[:300] for line in lines if _LOOSE.search(line)][:5] or [line[:300] for line in lines[-10:]]
    return cut("\n".join(parts))


def cut(text: str, limit: int = LIMIT) -> str:
    """``text`` within ``limit`` characters, cut at the end of a line where it can be."""
    if len(text) <= limit:
        return text
    head = text[: limit - 6]
    return head[: head.rfind("\n") if "\n" in head[limit // 2 :] else len(head)] + "\n[...]"


def _own_name(path: str, sources: Mapping[str, str]) -> str:
    path = path.removeprefix("./")
    if path in sources:
        return path
    ends = [name for name in sources if path.endswith(f"/{name}")]
    return ends[0] if ends else path.rsplit("/", 1)[-1]


def _context(source: str, number: int) -> str:
    lines = source.splitlines()
    if not 1 <= number <= len(lines):
        return ""
    start = max(1, number - 2)
    shown = range(start, min(len(lines), number + 2) + 1)
    return "\n".join(f"{'>' if n == number else ' '} {n:4d} | {lines[n - 1][:160]}" for n in shown)
