"""How many public KernelBench solutions build through our own headers, and how long that takes.

    python benchmarks/torch_headers_coverage.py --programs NAME=FOLDER --json NAME=FILE:FIELD \
        [--jobs 16] [--sample 100] [--fallback all] [--seconds 500] [--cache FOLDER]

FOLDER is searched for ``*.py`` files that call ``load_inline``; FILE holds a JSON list, or one object a line, with
source text under FIELD. Equal programs count once. Every program is built as an evaluation builds it, for ``--arch``
and without a GPU; ``--fallback N|all`` builds that many of those that our headers refuse against PyTorch's, a minute
each. What was measured is kept in ``--state`` after each program, and a later run goes on with it unless our headers
have changed. Only counts, compilers' complaints in one line and names of functions are kept, no source text. Writes
``benchmarks/results/torch_headers_coverage.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from provenance import ROOT, host_provenance

from stitchcuda.evaluation import torch_build
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.torch_calls import inline_calls
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Target

NAMES = re.compile(r"\b(?:torch|at|c10|pybind11|py)::[A-Za-z_:]+|\b(?:TORCH|AT|C10|PYBIND11)_[A-Z_0-9]+\b")
"""What counts as use of PyTorch's C++ interface."""

BROKEN = "functions "
"""How the reason begins why a call builds with no headers at all."""

MISSING = "cublas_v2.h: No such file"
"""In the reason where the CUDA toolkit of this machine has no cuBLAS."""


def folder(path: Path) -> Iterator[str]:
    """Programs in a folder."""
    for file in sorted(path.rglob("*.py")):
        yield file.read_text(encoding="utf-8", errors="replace")


def records(path: Path, field: str) -> Iterator[str]:
    """Programs in a JSON list or in JSON lines."""
    text = path.read_text(encoding="utf-8")
    found = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    yield from (str(record.get(field) or "") for record in found)


def corpora(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Source text by digest, by corpus; a program that several corpora hold counts in the first."""
    seen: set[str] = set()
    found: dict[str, dict[str, str]] = {}
    for given in [*options.programs, *options.json]:
        name, _, place = given.partition("=")
        path, _, field = place.partition(":")
        texts = records(Path(path), field) if field else folder(Path(path))
        for text in texts:
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            if "load_inline" in text and "ModelNew" in text and key not in seen:
                seen.add(key)
                found.setdefault(name, {})[key] = text
    return found


def built(text: str, headers: torch_build.Headers, options: argparse.Namespace) -> dict[str, Any]:
    """One program built against one set of headers."""
    began = time.monotonic()
    extensions = torch_build.build_extensions(
        Program(files={ENTRY: text}),
        Target(kind="cuda", arch=options.arch),
        cache=BuildCache(Path(options.cache)),
        deadline=began + 600,
        headers=(headers,),
    )
    seconds = round(time.monotonic() - began, 2)
    ok = bool(extensions.each) and all(each.headers == headers for each in extensions.each)
    why = next((each.error or each.why for each in extensions.each if each.headers != headers), "")
    if not extensions.each:
        why = "no call of load_inline was found"
    return {"ok": ok, "why": " ".join(why.split())[:200], "seconds": seconds, "cached": extensions.cached}


def used(text: str) -> set[str]:
    """Names of PyTorch's C++ interface in a program's sources."""
    sources = [
        source
        for call in inline_calls(Program(files={ENTRY: text}))
        if call.request is not None
        for source in (*call.request["cpp"], *call.request["cuda"])
    ]
    return set(NAMES.findall("\n".join(sources)))


def measure(
    work: list[tuple[str, str]], headers: torch_build.Headers, state: dict[str, Any], options: argparse.Namespace
) -> None:
    """Build what is not in ``state`` yet, until time is up; ``state`` is written after each program."""
    until = options.until
    todo = [(key, text) for key, text in work if key not in state]
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        left = iter(todo)
        running = {}
        for key, text in left:
            running[pool.submit(built, text, headers, options)] = key
            if len(running) < options.jobs:
                continue
            _collect(running, state, options)
            if time.monotonic() > until:
                break
        while running:
            _collect(running, state, options)


def _collect(running: dict[Any, str], state: dict[str, Any], options: argparse.Namespace) -> None:
    done = next(as_completed(running))
    state[running.pop(done)] = done.result()
    Path(options.state).write_text(json.dumps(options.all_state))


def median(values: list[float]) -> float | None:
    """None for an empty list."""
    return round(sorted(values)[len(values) // 2], 2) if values else None


def summary(texts: dict[str, str], own: dict[str, Any], torch: dict[str, Any]) -> dict[str, Any]:
    """Counts of one corpus."""
    tried = {key: own[key] for key in texts if key in own}
    broken = [key for key, result in tried.items() if result["why"].startswith(BROKEN)]
    missing = [key for key, result in tried.items() if MISSING in result["why"]]
    refused = [key for key, result in tried.items() if not result["ok"] and key not in (*broken, *missing)]
    after = [torch[key] for key in refused if key in torch]
    reasons = Counter(_class(tried[key]["why"]) for key in refused)
    works = [key for key in refused if key in torch and torch[key]["ok"]]
    judged = len(tried) - len(broken) - len(missing)
    fine = judged - len(refused)
    return {
        "programs": len(texts),
        "tried": len(tried),
        "broken": len(broken),
        "own": fine,
        "no_toolkit": len(missing),
        "share": round(fine / judged, 4) if judged else None,
        "fallback_tried": len(after),
        "fallback_builds": len(works),
        "neither": len(after) - len(works),
        "share_of_those_that_build": round(fine / (fine + len(works)), 4)
        if fine and len(after) == len(refused)
        else None,
        "seconds_median": median(
            [result["seconds"] for result in tried.values() if result["ok"] and not result["cached"]]
        ),
        "fallback_seconds_median": median([result["seconds"] for result in after if not result["cached"]]),
        "reasons": dict(reasons.most_common(25)),
        "reasons_that_build_by_fallback": dict(Counter(_class(tried[key]["why"]) for key in works).most_common(25)),
        "neither_because": dict(Counter(_class(result["why"]) for result in after if not result["ok"]).most_common(15)),
    }


def _class(why: str) -> str:
    """A complaint without its place."""
    return re.sub(r"^\S+?:\d+: error: ", "", why)[:110]


def page(result: dict[str, Any]) -> str:
    """The same for people."""
    columns = (
        "programs, tried, broken, no toolkit, own headers, share, fall-back tried, of these build, share of what builds"
    )
    rows = [" | ".join(["| corpus", *columns.split(", ")]) + " |", "|---" * 10 + "|"]
    for name, each in result["corpora"].items():
        shares = [
            f"{100 * each[key]:.1f} %" if each[key] is not None else ""
            for key in ("share", "share_of_those_that_build")
        ]
        cells = [
            name,
            *(each[key] for key in ("programs", "tried", "broken", "no_toolkit", "own")),
            shares[0],
            each["fallback_tried"],
        ]
        rows.append(" | ".join(["", *map(str, [*cells, each["fallback_builds"], shares[1]]), ""]).strip())
    names = [f"`{name}` {count}" for name, count in list(result["used"].items())[:60]]
    origin = result["provenance"]
    return "\n".join(
        [
            "# Public KernelBench solutions through our own headers",
            "",
            f"`{result['command']}`, {origin['date']}, commit {origin['commit']}, {origin['cpu']}, "
            f"{origin['cores']} cores.",
            "",
            *rows,
            "",
            "Broken: a name in `functions` that the C++ sources do not mention, or `functions` beside a module of its",
            "own, which no headers can build. No toolkit: it includes cuBLAS, whose headers are not on this machine.",
            "Both are left out of the share. What else our headers refuse is built against PyTorch's, where that was",
            "tried.",
            "",
            "What they use of PyTorch's C++ interface, in programs: " + ", ".join(names) + ".",
            "",
        ]
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--json", action="append", default=[], metavar="NAME=FILE:FIELD")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--sample", type=int, help="programs of each corpus, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fallback", default="0", help="refused programs to build against PyTorch's headers, or 'all'")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting new builds after so long")
    parser.add_argument("--cache", default=".corpus/cache", help="build cache")
    parser.add_argument("--state", default=".corpus/coverage_state.json", help="what earlier runs measured")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "torch_headers_coverage"))
    options = parser.parse_args()
    options.until = time.monotonic() + options.seconds
    identity = torch_build._identity("own")
    known = json.loads(Path(options.state).read_text()) if Path(options.state).is_file() else {}
    options.all_state = {
        "identity": identity,
        "own": known.get("own", {}) if known.get("identity") == identity else {},
        "torch": known.get("torch", {}),
    }
    Path(options.cache).mkdir(parents=True, exist_ok=True)
    found = corpora(options)
    if options.sample is not None:
        found = {
            name: dict(random.Random(options.seed).sample(sorted(texts.items()), min(options.sample, len(texts))))
            for name, texts in found.items()
        }
    work = [(key, text) for texts in found.values() for key, text in texts.items()]
    measure(work, "own", options.all_state["own"], options)
    own, torch = options.all_state["own"], options.all_state["torch"]
    refused = [(key, text) for key, text in work if key in own and not own[key]["ok"]]
    refused = [
        (key, text)
        for key, text in refused
        if not own[key]["why"].startswith(BROKEN) and MISSING not in own[key]["why"]
    ]
    count = len(refused) if options.fallback == "all" else int(options.fallback)
    measure(refused[:count], "torch", torch, options)
    names = Counter(name for _, text in work for name in used(text))
    result = {
        "command": " ".join(["python benchmarks/torch_headers_coverage.py", *sys.argv[1:]]),
        "provenance": host_provenance(),
        "arch": options.arch,
        "headers": identity,
        "corpora": {name: summary(texts, own, torch) for name, texts in found.items()},
        "used": dict(names.most_common(200)),
    }
    Path(f"{options.out}.json").write_text(json.dumps(result, indent=1) + "\n")
    Path(f"{options.out}.md").write_text(page(result))
    print(json.dumps(result["corpora"], indent=1))


if __name__ == "__main__":
    main()
