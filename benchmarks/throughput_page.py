"""The tables of ``evaluation_throughput.py`` from its results file. Reads data, measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LABELS = {
    "native": "native (plain C ABI, nvcc)",
    "cached": "native, found in the cache",
    "own": "KernelBench-style through our headers",
    "own cached": "KernelBench-style, found in the cache",
    "torch": "KernelBench-style through PyTorch's headers",
    "load_inline": "torch's load_inline itself",
    "nvrtc": "NVRTC (device code alone)",
}
ALIKE = {
    "correct": "passes",
    "wrong_output": "fails",
    "build_failed": "does not compile",
    "crashed": "fails",
    "out_of_memory": "fails",
    "timed_out": "no verdict",
}
"""What KernelBench's harness would have to say where it agrees."""


def page(results: dict[str, Any]) -> str:
    """The whole Markdown page."""
    parts = ["# Evaluation throughput", ""]
    for name, make in (
        ("builds", _builds),
        ("compare", _compare),
        ("hundred", _hundred),
        ("workers", _workers),
        ("tune", _tune),
        ("cpu", _cpu),
        ("prepare", _prepare),
        ("cpu prepare", _prepare_cpu),
    ):
        if results.get(name):
            parts += [*make(results), "", *_machine(results, name), ""]
    return "\n".join(parts).rstrip() + "\n"


def _machine(results: dict[str, Any], name: str) -> list[str]:
    facts = results.get("provenance", {}).get(name, {})
    loads = [each["load"] for each in results[name].values() if isinstance(each, dict) and "load" in each]
    if loads:
        facts = facts | {"load": f"average {min(loads)} to {max(loads)} (the measurement's own included)"}
    order = ("gpu", "driver", "cuda", "torch", "python", "cpu", "cores", "load", "commit", "date")
    return [
        f"Measured by `benchmarks/evaluation_throughput.py --slice {name.split()[0]}`: "
        + ", ".join(f"{key} {facts[key]}" for key in order if facts.get(key))
        + "."
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [
        "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in (head, *rows)
    ]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def _builds(results: dict[str, Any]) -> list[str]:
    items = results["builds"]
    counts = sorted({int(name.rsplit(" x", 1)[1]) for name in items})
    slow = {count: items.get(f"torch x{count}", {}).get("seconds") for count in counts}
    rows = []
    for way, label in LABELS.items():
        cells = [label]
        for count in counts:
            seconds = items.get(f"{way} x{count}", {}).get("seconds")
            times = f" ({slow[count] / seconds:.0f}x)" if seconds and slow[count] and way != "torch" else ""
            cells.append("" if seconds is None else f"{seconds:.3g}{times}")
        if any(cells[1:]):
            rows.append(cells)
    head = ["build seconds", *(f"{count} kernel{'s' if count > 1 else ''}" for count in counts)]
    return ["## Builds", "", "In brackets: how many times faster than with PyTorch's headers.", "", *_table(head, rows)]


def _run(told: dict[str, Any]) -> str:
    device = told.get("device", {})
    bare = "" if told.get("stock_options", True) else " (the stock options not timed beside them)"
    text = f"{told['programs']} programs{bare} in {told['seconds']:.1f} s: **{told['per_minute']:.1f} a minute**"
    if device:
        text += (
            f"; the device was held for clocks {device['clock']:.0%} of the time, for starts {device['start']:.0%}, "
            f"for other work {device['work']:.0%}, by nobody {device['idle']:.0%}"
        )
    if told.get("kernel_utilisation") is not None:
        text += f"; a kernel ran in {told['kernel_utilisation']:.0%} of NVML's samples"
    return text + "."


def _chart(told: dict[str, Any]) -> list[str]:
    return ["", "```", told["chart"], "```"] if told.get("chart") else []


def _compare(results: dict[str, Any]) -> list[str]:
    lines = ["## Twenty programs, ours and KernelBench's harness", ""]
    ours = results["compare"].get("ours")
    compiled = results["compare"].get("kernelbench compile")
    judged = results.get("kernelbench", {})
    if ours:
        lines += [f"Ours: {_run(ours)}", ""]
    if ours and compiled and len(judged) == ours["programs"]:
        total = compiled["seconds"] + sum(each["seconds"] for each in judged.values())
        lines += [
            f"KernelBench's: {compiled['seconds']:.1f} s of compiling side by side, then "
            f"{total - compiled['seconds']:.1f} s of evaluating one after the other: "
            f"{60 * len(judged) / total:.1f} a minute. **Ours is {total / ours['seconds']:.1f}x faster.**",
            "",
        ]
    if ours:
        rows = []
        for name, each in ours["verdicts"].items():
            other = judged.get(name, {})
            same = "" if not other else "same" if ALIKE.get(each["status"]) == other.get("verdict") else "**differs**"
            ms, theirs = each.get("ms"), other.get("program_ms")
            rows.append(
                [
                    name,
                    each["status"],
                    f"{ms:.3g}" if ms else "",
                    str(other.get("verdict", "")),
                    f"{theirs:.3g}" if theirs and theirs > 0 else "",
                    same,
                    each["message"][:120] if each["status"] != "correct" else str(each.get("built_with", "")),
                ]
            )
        lines += _table(["program", "ours", "ms", "KernelBench's", "ms", "", "why"], rows)
        lines += _chart(ours)
    return lines


def _hundred(results: dict[str, Any]) -> list[str]:
    told = results["hundred"]["ours"]
    counts: dict[str, int] = {}
    for each in told["verdicts"].values():
        counts[each["status"]] = counts.get(each["status"], 0) + 1
    verdicts = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return ["## A hundred programs", "", _run(told), "", f"Verdicts: {verdicts}.", *_chart(told)]


def _workers(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            cores,
            f"{told['per_minute']:.1f}",
            f"{told['programs']}",
            " / ".join(f"{told['device'][part]:.0%}" for part in ("clock", "work", "start", "idle")),
            f"{told['kernel_utilisation']:.0%}" if told.get("kernel_utilisation") is not None else "",
            f"{told['lanes']} / {told['builders']}",
        ]
        for cores, told in sorted(results["workers"].items(), key=lambda item: int(item[0]))
    ]
    held = "device held for clocks / work / starts / by nobody"
    head = ["cores", "programs a minute", "programs", held, "NVML: a kernel runs", "lanes / builders"]
    return ["## Cores", "", *_table(head, rows)]


def _tune(results: dict[str, Any]) -> list[str]:
    told = results["tune"]["variants"]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in told["outcomes"].items())
    text = f"{told['variants']} variants in {told['seconds']:.1f} s: **{told['per_minute']:.0f} a minute**; {outcomes}."
    return ["## Variants of a kernel by NVRTC", "", f"{text} Best: {told['best']}."]


def _cpu(results: dict[str, Any]) -> list[str]:
    lines = ["## The CPU path", ""]
    for way, told in results["cpu"].items():
        lines += [f"{way.capitalize()}: {_run(told)}", ""]
    ways = [told["verdicts"] for told in results["cpu"].values()]
    if len(ways) == 2:
        statuses = [{n: v if isinstance(v, str) else v["status"] for n, v in way.items()} for way in ways]
        differing = [name for name in statuses[0] if statuses[0][name] != statuses[1].get(name)]
        lines.append(f"Verdicts that differ between the two: {', '.join(differing) or 'none'}.")
    for told in results["cpu"].values():
        lines += _chart(told)
    return lines


def _prepare(results: dict[str, Any], name: str = "prepare") -> list[str]:
    rows = [
        [task, f"{each['seconds']:.0f}", ", ".join(f"{option} {ms:.3g}" for option, ms in each["ms"].items())]
        for task, each in results[name].items()
    ]
    return ["## Once per task", "", *_table(["task", "seconds", "stock options, ms"], rows)]


def _prepare_cpu(results: dict[str, Any]) -> list[str]:
    return _prepare(results, "cpu prepare")
