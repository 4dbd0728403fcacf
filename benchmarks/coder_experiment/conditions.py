"""Under which conditions results came about, as Markdown: machines, commands, settings, seeds, data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MACHINE = ("gpu", "driver", "torch", "cuda", "cpu", "cores", "python", "commit")
"""What two commands have to share to have been run under the same conditions."""


def heading(report: dict[str, Any]) -> str:
    """In a paragraph: when, where, from which commit, how long."""
    ended = [record for record in report["slices"] if "seconds" in record]
    commands = _commands(report)
    if not commands:
        return f"No command was recorded. {report['compositions']} test compositions."
    days = sorted({str(record.get("date", "?"))[:10] for record, _ in commands})
    machines = _machines(report)
    killed = sum(end is None for _, end in commands)
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {'; '.join(_said(machine) for machine in machines)}. "
        f"Commands run: {len(commands)} (killed: {killed}), {sum(r['seconds'] for r in ended) / 60:.1f} min in all "
        "without killed ones. "
        f"{report['compositions']} test compositions."
    )


def conditions(report: dict[str, Any]) -> list[str]:
    """Sections on commands, settings, seeds and data."""
    return [
        "## Commands that were run",
        *_table(report),
        "",
        "## Settings and seeds",
        *_settings(report),
        "",
        "## Data",
        *_data(report),
    ]


def sentence(start: str, parts: Sequence[str]) -> str:
    """What is listed, behind what it is."""
    return f"{start}: {', '.join(parts)}."


def _commands(report: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each command as it began (or ended, where its beginning is lost), and how it ended; None if it was killed."""
    waiting: dict[str, list[int]] = {}
    found: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    for record in report["slices"]:
        key = json.dumps([record.get(name) for name in ("command", "date", "visible", *MACHINE)])
        if "seconds" not in record:
            waiting.setdefault(key, []).append(len(found))
            found.append((record, None))
        elif waiting.get(key):
            found[waiting[key].pop(0)] = (record, record)
        else:
            found.append((record, record))
    return found


def _machines(report: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for record, _ in _commands(report):
        machine = {name: record.get(name, "") for name in MACHINE}
        if machine not in found:
            found.append(machine)
    return found


def _said(machine: dict[str, Any]) -> str:
    where = f"{machine['gpu']}, driver {machine['driver']}" if machine["gpu"] else "no GPU"
    cuda = f" (CUDA {machine['cuda']})" if machine["cuda"] else ""
    return (
        f"{where}, {machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}{cuda}, "
        f"Python {machine['python']}, commit {machine['commit']}"
    )


def _table(report: dict[str, Any]) -> list[str]:
    machines, commands = _machines(report), _commands(report)
    if not commands:
        return ["None was recorded."]
    text = [f"{chr(65 + at)}: {_said(machine)}." + "  " for at, machine in enumerate(machines)]
    text += [
        "",
        "| command | begun | where | visible GPUs | seconds | exit code | new evaluations | a minute | restarts |",
        "|---" * 9 + "|",
    ]
    for record, end in commands:
        where = chr(65 + machines.index({name: record.get(name, "") for name in MACHINE}))
        row = [record.get("command", "?"), record.get("date", "?"), where, record.get("visible") or "all"]
        names = ("seconds", "code", "evaluations", "evaluations_a_minute", "restarts")
        row += [end.get(name, "") for name in names] if end else ["killed", "", "", "", ""]
        text.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return [
        *text,
        "",
        "Exit code 0: all was done that was asked; 3: the time was up. Restarts: of the process that launches kernels.",
    ]


def _settings(report: dict[str, Any]) -> list[str]:
    text = [
        f"Seed of the tasks: {report['config'].get('data', {}).get('seed', '?')}; of the runs: the number in their "
        f"names; of the bootstrap: {report['bootstrap']['seed']}, {report['bootstrap']['draws']:,} draws. "
        f"Analysed at commit {report['analysed_at']}.",
        "",
        "| | |",
        "|---|---|",
    ]
    for name, value in report["config"].items():
        said = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else value
        text.append(f"| {name} | {said} |")
    runs = [
        f"{name} (seed {run['seed']}, {run['kind']}, paid by {run['scheme']}, {run['share_improve']:.0%} improve"
        f"{', shuffled' if run['shuffled'] else ''})"
        for name, run in report["runs"].items()
    ]
    if runs:
        text += ["", sentence("Runs", runs)]
    if report["pilot"]:
        tried = [f"{r['lr']:g}: reward {r['reward']:.3f}, correct {r['correct']:.3f}" for r in report["pilot"]]
        text += ["", f"Pilot, learning rates by validation: {'; '.join(tried)}."]
    return text


def _data(report: dict[str, Any]) -> list[str]:
    data = report["data"]
    if not data:
        return ["Not recorded."]
    text = [
        "| part | tasks | compositions | with columns that are not trained on | families |",
        "|---|---|---|---|---|",
    ]
    for part, audit in data["audit"].items():
        families = ", ".join(f"{name} {count}" for name, count in audit["families"].items())
        text.append(f"| {part} | {audit['tasks']} | {audit['compositions']} | {audit['unseen_cols']} | {families} |")
    cold = [f"{name} {count}" for name, count in sorted(data["cold_start"].items())]
    tokens = data["answer_tokens"]
    return [
        *text,
        "",
        sentence("Answers of the cold start", cold)
        + f" Their tokens: mean {tokens['mean']:g}, 95 % at most {tokens['p95']:g}, largest {tokens['largest']}. "
        f"Tasks left out because their baseline failed: {data['without_baseline']}.",
    ]
