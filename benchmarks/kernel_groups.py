"""The command line that checks of hand-written kernels share: compile everything, then run one group of cases after the
other, each in a process of its own and bounded in time, and keep what is finished.

Not a benchmark: ``kernel_check`` and ``split_gemm_check`` say what is built, run and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import gpu_provenance, write_json

MARK = "RESULT "
"""Begins each line on which a group's process tells one result."""
LEAST_SECONDS = 8
"""A group is not started with less time than this."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One script's groups of cases."""

    script: Path
    about: str
    groups: Callable[[str], list[str]]
    """Those that ``--only`` names; the usual ones for an empty string"""
    builds: Callable[[list[str], Path, str], dict[str, Callable[[], object]]]
    """What the groups need compiled, by name, for a folder and an architecture"""
    cases: Callable[[str, Path, str], Iterable[Record]]
    """A group's results, in its process"""
    table: Callable[[list[Record]], str]
    group_seconds: float
    """At most so long for one group"""


def run(check: Check) -> None:
    """Build everything, run the groups one after the other, print the table and write the JSON."""
    name = check.script.stem
    parser = argparse.ArgumentParser(description=check.about)
    parser.add_argument("--out", type=Path, default=Path(f"{name}.json"), help="where the JSON goes")
    parser.add_argument("--build", type=Path, default=Path("/tmp") / name, help="folder of the compiled kernels")
    parser.add_argument("--arch", default="90a", help="architecture, without sm_")
    parser.add_argument("--seconds", type=float, default=95, help="everything ends by then")
    parser.add_argument("--only", default="", help="comma-separated groups, or all")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    if options.group:
        _tell(check, options.group, options.build, options.arch)
        return
    start = time.monotonic()
    facts = gpu_provenance()
    groups = check.groups(options.only)
    records: list[Record] = []

    def build(item: tuple[str, Callable[[], object]]) -> None:
        try:
            item[1]()
        except Exception as problem:
            records.append({"group": "build", "case": item[0], "ok": False, "problem": str(problem)[-600:]})

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, check.builds(groups, options.build, options.arch).items()))
    print(f"built in {time.monotonic() - start:.1f} s", flush=True)
    for group in [] if options.build_only else groups:
        left = options.seconds - (time.monotonic() - start)
        if left < LEAST_SECONDS:
            records.append({"group": group, "case": group, "ok": False, "problem": "no time left"})
            continue
        arguments = ["--group", group, "--build", str(options.build), "--arch", options.arch]
        records += _collect(check.script, group, arguments, min(left, check.group_seconds))
        write_json(options.out, {"provenance": facts, "records": records})
    write_json(options.out, {"provenance": facts, "records": records})
    print(check.table(records))
    print(f"all in {time.monotonic() - start:.1f} s")


def _tell(check: Check, group: str, folder: Path, arch: str) -> None:
    """One group's cases in this process, a JSON line each."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    with torch.no_grad():
        for record in check.cases(group, folder, arch):
            print(MARK + json.dumps({"group": group, **record}), flush=True)


def _collect(script: Path, group: str, arguments: list[str], limit: float) -> list[Record]:
    command = [sys.executable, str(script), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        text, _ = process.communicate(timeout=limit)
        ended = "" if process.returncode == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        ended = f"no end within {limit:.0f} s"
    lines = text.splitlines()
    records: list[Record] = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if ended:
        last = " | ".join([line for line in lines if not line.startswith(MARK)][-4:])
        records.append({"group": group, "case": group, "ok": False, "problem": f"{ended}: {last}"[:500]})
    return records
