"""The ten level-3 test tasks of KernelBench through ``stitchcuda optimize``, beside every stock option.

    python benchmarks/level3.py --root KERNELBENCH [--slice-seconds 480] [-- OPTIONS OF optimize]
    python benchmarks/level3.py --render

Results: benchmarks/results/level3.json and .md. A thin list over ``measure.py``, which does the work.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import measure

TASKS = (2, 18, 19, 21, 22, 23, 24, 32, 38, 39)
RESULTS = Path(__file__).parent / "results" / "level3.json"


def main() -> int:
    """Hand the list to ``measure.py`` with its defaults for this benchmark."""
    given = sys.argv[1:]
    results = [] if "--results" in given else ["--results", str(RESULTS)]
    if "--render" in given:
        return measure.main(["render", *results, *(a for a in given if a != "--render")])
    own, extra = (given[: given.index("--")], given[given.index("--") :]) if "--" in given else (given, ["--"])
    if "--model" not in extra:
        extra += ["--model", "recipes"]
    items = [f"kernelbench:3/{number}" for number in TASKS]
    title = ["--title", "KernelBench level 3, the ten test tasks"]
    return measure.main(["optimize", *items, *results, *title, *own, *extra])


if __name__ == "__main__":
    raise SystemExit(main())
