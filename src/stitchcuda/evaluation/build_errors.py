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
_UNDECLARED = re.compile(
    r"^(?P<file>[^:]+):(?P<line>\d+): error: (?:identifier \"(?P<name>\w+)\" is undefined"
    r"|['‘](?P<name2>\w+)['’] was not declared in this scope)"
)
_VARIABLE = re.compile(r"(?!k[A-Z])(?!\w*_t$)(?!std(?:in|out|err)$)(?!errno$)[a-z][a-z0-9_]*")
_FOREIGN = re.compile(r"\busing\s+namespace\s+(?!std\b)")
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


def certain_error(log: str, sources: Mapping[str, str]) -> str:
    """The line of a digest that no other set of headers can help with; empty when there is none.

    That is a plain variable that is not declared: headers bring functions, types, macros and constants, but no lower
    case variables outside of namespaces. Anything that may be one of those is not certain.
    """
    for line in log.splitlines():
        found = _UNDECLARED.match(line)
        if found is None or found["file"] not in sources:
            continue
        name, text = found["name"] or found["name2"], sources[found["file"]]
        lines = text.splitlines()
        number = int(found["line"])
        if not 1 <= number <= len(lines) or not _VARIABLE.fullmatch(name) or _FOREIGN.search(text):
            continue
        uses = list(re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text))
        here = re.search(rf"[-+/=\[,?]\s*{re.escape(name)}\s*[-+/;\],?]", lines[number - 1])
        if here and not any(_otherwise(text, use.start(), use.end()) for use in uses):
            return line
    return ""


def _otherwise(text: str, start: int, end: int) -> bool:
    """Whether a name is used as a member, a type, a template or a function, or declared."""
    before, after = text[:start].rstrip(), text[end:].lstrip()
    if before.endswith((".", "->", "::")) or re.match(r"[\w(<{:*&]", after):
        return True
    word = re.search(r"\w+$", before)  # a declaration, in a part that the preprocessor has left out
    return word is not None and word[0] not in ("return", "else", "case", "throw", "co_return")


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
