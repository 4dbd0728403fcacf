"""Time from ``stitchcuda --help`` (and ``--version``) to its output, in fresh processes.

    python benchmarks/cli_startup.py --write     # also updates benchmarks/results/cli_startup.{json,md}

Wall time needs a quiet machine; the processor time beside it, user and system, hardly depends on the load.
Exit status 1 when the median of ``--help`` is not below the limit. Not a test of what the help says.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from provenance import host_provenance, write_json, write_text

RESULTS = Path(__file__).parent / "results"
LIMIT_SECONDS = 0.5


def seconds_of(argument: str) -> tuple[float, float]:
    """Wall and processor seconds of one fresh ``python -m stitchcuda.cli.main ARGUMENT``, output read to its end."""
    command = [sys.executable, "-m", "stitchcuda.cli.main", argument]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "100"})
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(command)} printed nothing")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Wall seconds (median, smallest, largest) and median processor seconds by argument.

    One unmeasured call first fills the file cache.
    """
    table: dict[str, dict[str, float]] = {}
    for argument in ("--help", "--version"):
        seconds_of(argument)
        walls, processor = zip(*(seconds_of(argument) for _ in range(repeats)), strict=True)
        table[argument] = {
            "median": statistics.median(walls),
            "min": min(walls),
            "max": max(walls),
            "processor": statistics.median(processor),
            "n": repeats,
        }
    return table


def render(record: dict[str, object], table: dict[str, dict[str, float]]) -> str:
    """The Markdown page."""
    rows = [
        f"| `stitchcuda {argument}` | "
        + " | ".join(f"{t[key]:.3f}" for key in ("median", "min", "max", "processor"))
        + " |"
        for argument, t in table.items()
    ]
    head = ["# Time to first output of the command line", "", "Seconds, fresh process each.", ""]
    foot = ["", "`python benchmarks/cli_startup.py --write`: " + ", ".join(f"{k} {v}" for k, v in record.items())]
    return (
        "\n".join(
            [*head, "| command | wall, median | min | max | processor, median |", "|---|---|---|---|---|", *rows, *foot]
        )
        + "\n"
    )


def main() -> int:
    """Measure, print, and with ``--write`` keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="measured processes per command")
    parser.add_argument("--write", action="store_true", help="write the results files")
    options = parser.parse_args()
    table = measure(options.repeats)
    record = host_provenance()
    page = render(record, table)
    print(page)
    if options.write:
        write_json(RESULTS / "cli_startup.json", {"provenance": record, "seconds": table, "limit": LIMIT_SECONDS})
        write_text(RESULTS / "cli_startup.md", page)
    median = table["--help"]["median"]
    if median >= LIMIT_SECONDS:
        print(f"--help took {median:.3f} s, the limit is {LIMIT_SECONDS} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
