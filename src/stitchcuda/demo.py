"""The demo: optimises every packaged example on this machine with recipes, and prints what each gained.

    python -m stitchcuda.demo [NAME ...] [--target auto|cuda|cpu] [--out DIR]

It goes through the command line as a user would. Exit status 1 when an example ends without a correct program; a
correct one that does not gain is printed as what it is (``no_gain``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
ROW = "{:<18} {:<16} {:>9} {:>10} {:>11} {:>8}  {}"


def examples_folder() -> Path:
    """The examples of the checkout that this package is part of, else those inside the installed package."""
    checkout = PACKAGE.parent.parent
    inside = PACKAGE / "examples"
    return checkout / "examples" if (checkout / "pyproject.toml").is_file() else inside


def examples() -> dict[str, Path]:
    """Task files by name."""
    return {path.stem: path for path in sorted(examples_folder().glob("*.py")) if not path.stem.startswith("_")}


def optimise(task: Path, out: Path, target: str) -> tuple[int, dict[str, Any], str]:
    """``stitchcuda optimize TASK --json``: exit status, its summary, and what it said on stderr."""
    command = [sys.executable, "-m", "stitchcuda.cli.main", "optimize", str(task), "--model", "recipes", "--json"]
    done = subprocess.run([*command, "--target", target, "--out", str(out)], capture_output=True, text=True)
    try:
        summary = json.loads(done.stdout)
    except json.JSONDecodeError:
        summary = {}
    return done.returncode, summary if isinstance(summary, dict) else {}, done.stderr


def row(name: str, summary: dict[str, Any], seconds: float) -> str:
    """One line of the table."""
    speed, census = summary.get("speedup") or {}, summary.get("census") or {}

    def times(key: str) -> str:
        return f"{speed[key]:.2f}x" if isinstance(speed.get(key), (int, float)) else "-"

    own = census.get("own")
    return ROW.format(
        name,
        str(summary.get("status", "failed")),
        times("over_best"),
        times("eager"),
        f"{own:.0%}" if isinstance(own, (int, float)) else "-",
        f"{seconds:.0f} s",
        _short(str(summary.get("run", ""))),
    )


def _short(path: str) -> str:
    """A path from here where it lies below, so that a row fits its line."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if path and Path(path).is_relative_to(here) else path


def _passing(words: str) -> None:
    """Show ``words`` on a terminal until the next line is printed; nowhere else, where lines stay."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m stitchcuda.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples to run; all when none is named")
    parser.add_argument("--target", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the run folders")
    options = parser.parse_args(arguments)
    found = examples()
    unknown = [name for name in options.names if name not in found]
    if unknown or not found:
        what = f"no example named {', '.join(unknown)}" if found else "no examples found"
        parser.error(f"{what} in {examples_folder()}; there are: {', '.join(found) or 'none'}")
    bad = 0
    print(ROW.format("example", "status", "over best", "over eager", "own kernels", "took", "run"), flush=True)
    chosen = options.names or list(found)
    for place, name in enumerate(chosen, 1):
        start = time.monotonic()
        _passing(f"optimising {name} ({place} of {len(chosen)}; a few minutes) ...")
        code, summary, errors = optimise(found[name], options.out, options.target)
        _passing("")
        print(row(name, summary, time.monotonic() - start), flush=True)
        bad += summary.get("status") not in ("correct", "no_gain")
        if summary.get("status") != "correct":
            told = str(summary.get("message") or "") or errors.strip()[-2000:] or f"exit status {code}"
            print(f"  {told}", flush=True)
    print(
        "over best: speedup over the fastest stock option of the same precision class;"
        " own kernels: share of the program's time in them",
        flush=True,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
