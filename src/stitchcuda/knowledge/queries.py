"""Queries for the retriever from what the agents have at hand: a step, a bottleneck, an error text.

Plain strings in, plain strings out, so that no room before or after this one is needed. Not for ranking.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_QUERIES = 6
_LONGEST = 240
_LONGEST_LINE = 1000
_TELLING = re.compile(
    r"error|exception|fatal|undefined|unresolved|not permitted|illegal|misaligned|invalid|unsupported|timed out|"
    r"mismatch|nan\b|race|hazard|out of memory|assert|too many|no kernel image|cannot|failed",
    re.IGNORECASE,
)
_COUNT = re.compile(r"^\s*(?:fatal error: )?\d+ (?:errors?|warnings?) (?:detected|generated)|^\s*ninja: build stopped")
"""Lines that count what the lines before them said."""
_FRAME = re.compile(r"^\s*(?:File \"|at |#\d+ |\^+\s*$|~+|\|)|^Traceback")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:/[\w.+-]+){2,}|[\w./-]+\.(?:cuh?|cpp|h|hpp|py|so|o)\b")
_NOISE = re.compile(
    r"\(\d+(?:,\s*\d+)?\)|^[\s:]*\d+:(?:\d+:)?|0x[0-9a-fA-F]+|\b\d{5,}\b|\bline \d+\b|[=*]{3,}|\[[^\]]*\d+;?\d*m"
)


def _clean(line: str) -> str:
    """A line without places, addresses and decoration: what another program would print for the same cause."""
    line = _NOISE.sub(" ", _PATH.sub(" ", line))
    return " ".join(line.strip(" :|>-").split())[:_LONGEST]


def from_error(log: str, *, limit: int = 3) -> list[str]:
    """The telling lines of a compiler's, sanitizer's or run's messages, the first of each kind, at most ``limit``."""
    found: dict[str, str] = {}
    for whole in log.splitlines():
        line = whole[:_LONGEST_LINE]  # a program chooses what it prints: no line may cost more than a message does
        if _FRAME.match(line) or _COUNT.match(line) or not _TELLING.search(line):
            continue
        query = _clean(line)
        kind = re.sub(r"\W|\d", "", query).lower()[:60]
        if len(query) >= 8 and kind not in found:
            found[kind] = query
            if len(found) == limit:
                break
    return list(found.values())


def from_mismatch(detail: str) -> list[str]:
    """A query from how wrong values lie in an output: the pattern in the last parentheses of ``detail``, without its
    figures; empty where there is none."""
    patterns: list[str] = re.findall(r"\(([^()]+)\)", detail)
    words = " ".join(re.sub(r"\d+,?|\.\.\.", " ", patterns[-1]).split()) if patterns else ""
    return [f"wrong values: {words}"] if words else []


def from_step(title: str, operators: Sequence[str] = (), *, fusion: str = "", host: str = "") -> list[str]:
    """Queries for one step of a plan: what is to be written, for which operators, under which orchestration."""
    named = ", ".join(dict.fromkeys(operators))
    queries = [title, f"{named} kernel" if named else "", fusion, host]
    return unique(queries)


def from_operators(operators: Sequence[str]) -> list[str]:
    """Queries for a whole program by its operators' canonical names, as ``fingerprint.operators_of`` gives them."""
    named = list(dict.fromkeys(operators))
    attention = "attention kernel" if {"matmul", "softmax"} <= set(named) else ""
    return unique([attention, f"{', '.join(named[:6])} fused kernel" if named else ""])


def from_bottleneck(*findings: str) -> list[str]:
    """Queries from what profiles say: one a finding, figures kept, since metrics are symbols in the index."""
    return unique(findings)


def unique(queries: Iterable[str]) -> list[str]:
    """The queries that say something, cut to length, each once, at most ``MAX_QUERIES``."""
    cleaned = (" ".join(query.split())[:_LONGEST] for query in queries)
    return list(dict.fromkeys(q for q in cleaned if len(q) > 2))[:MAX_QUERIES]


_ADVICE = {
    "memory_bound": "memory bound kernel: coalesced vector loads, one pass over memory, fused elementwise chain",
    "compute_bound": "compute bound kernel: tensor cores, tiling, register blocking, split precision",
    "latency_bound": "latency bound kernel: occupancy, instruction-level parallelism, dependent loads",
    "launch_bound": "many short kernels, gaps between launches: CUDA graph, fusion, persistent kernel",
    "sync_bound": "synchronisation stalls the device: host waits, events, streams",
    "copy_bound": "host to device copies dominate: pinned memory, overlap of copy and compute on streams",
    "host_bound": "the host is slower than the device: launch overhead, CUDA graph, framework overhead",
}


def advice_on(bottleneck: str) -> str:
    """A profile's label as a question for what helps against it; empty for a label that says nothing."""
    return _ADVICE.get(bottleneck, "")
