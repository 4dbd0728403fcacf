"""Fingerprints and digests of failures, made by code: equal causes give equal fingerprints.

A second equal fingerprint ends the repair of a candidate, so numbers, addresses, paths and names of temporary
files must not count, and the kind of the first error must.
"""

from __future__ import annotations

import hashlib
import re

from stitchcuda.evaluation.model import Evaluation

_FIRST_ERROR = re.compile(r"(?im)^.*\b(?:fatal error|error|undefined reference|undefined symbol|exception)\b.*$")
_NOISE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "@"),
    (re.compile(r"(?:/[\w.+\-]+)+/"), ""),
    (re.compile(r"\(\d+\)|:\d+(?::\d+)?"), ""),
    (re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "#"),
    (re.compile(r"\s+"), " "),
)


def cause(evaluation: Evaluation) -> str:
    """The first thing that went wrong, one line; empty for a correct Program."""
    if evaluation.passed:
        return ""
    for finding in evaluation.findings:
        if finding.severity == "reject":
            return f"{finding.rule}: {finding.evidence}"
    if evaluation.status == "wrong_output" and evaluation.correctness is not None:
        bad = [output for output in evaluation.correctness.outputs if not output.ok]
        if bad:
            return f"output {bad[0].output}: {bad[0].detail or 'error above its budget'}"
    if match := _FIRST_ERROR.search(evaluation.log):
        return match.group(0).strip()
    return evaluation.message


def fingerprint(evaluation: Evaluation) -> str:
    """Twelve hex digits, equal for equal causes; empty for a correct Program."""
    if evaluation.passed:
        return ""
    text = cause(evaluation)
    for pattern, stand_in in _NOISE:
        text = pattern.sub(stand_in, text)
    return hashlib.sha256(f"{evaluation.status}|{text.strip().lower()}".encode()).hexdigest()[:12]


def digest(log: str, limit: int = 2_000) -> str:
    """``log`` without repeated lines, from its first error on, at most ``limit`` characters."""
    lines: list[str] = []
    seen: set[str] = set()
    for line in log.splitlines():
        plain = line.rstrip()
        if plain and plain in seen:
            continue
        seen.add(plain)
        lines.append(plain)
    text = "\n".join(lines).strip()
    if len(text) <= limit:
        return text
    match = _FIRST_ERROR.search(text)
    start = max(0, match.start() - 200) if match else 0
    cut = text[start : start + limit]
    return ("[...]\n" if start else "") + cut + ("\n[...]" if start + limit < len(text) else "")
