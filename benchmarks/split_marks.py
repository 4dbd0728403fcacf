"""The marks of KernelBench's test tasks, in every version that the benchmark's history holds, for ``dataset check``.

    python benchmarks/split_marks.py CLONE

CLONE is a clone of KernelBench with its history, bare or not. Its first release had the same tasks at smaller sizes,
and public training data is made of both. Writes ``src/stitchcuda/training/test_split.json``: digests, no source.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from provenance import ROOT, write_text

from stitchcuda.benchmark.split import TEST, in_test_split, plain
from stitchcuda.training.leaks_samples import KNOWN
from stitchcuda.training.leaks_source import SourceMarks, source_marks

_TASK = re.compile(r"KernelBench/(?:[^/]+/)*level(\d+)/([^/]+\.py)")


def versions(clone: Path, revision: str) -> dict[str, list[SourceMarks]]:
    """Different marks of each test task, by ``LEVEL/NAME``, newest first, over all commits up to a revision."""
    blobs: dict[tuple[str, str], None] = {}
    for commit in _git(clone, "rev-list", revision).split():
        for line in _git(clone, "ls-tree", "-r", "-z", commit).split("\0"):
            described, _, path = line.partition("\t")
            found = _TASK.fullmatch(path)
            if found and plain(found[2]) in in_test_split(int(found[1])):
                blobs[f"{found[1]}/{plain(found[2])}", described.split()[2]] = None
    marks: dict[str, list[SourceMarks]] = {}
    for key, blob in blobs:
        mark = source_marks(_git(clone, "cat-file", "blob", blob))
        if mark not in marks.setdefault(key, []):
            marks[key].append(mark)
    return marks


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True).stdout.decode()


def main() -> int:
    """Read, compare with the split's names, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("--revision", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "stitchcuda" / "training" / KNOWN)
    options = parser.parse_args()
    found = versions(options.clone, options.revision)
    wanted = {f"{level}/{plain(name)}" for level, names in TEST.items() for name in names}
    if missing := sorted(wanted - set(found)):
        print(f"no version of {', '.join(missing)} in {options.clone}; is it a whole clone of KernelBench?")
        return 1
    document = {
        "kernelbench": _git(options.clone, "rev-parse", options.revision).strip(),
        "tasks": {key: [vars(mark) for mark in found[key]] for key in sorted(found)},
    }
    write_text(options.out, json.dumps(document, indent=1) + "\n")
    print(f"{sum(map(len, found.values()))} versions of {len(found)} tasks in {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
