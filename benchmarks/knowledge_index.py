"""Speed and memory of the knowledge index, without embeddings.

    python benchmarks/knowledge_index.py [--sizes 2000 100000] [--write]   # updates results/knowledge_index.json

Synthetic Markdown with a Zipf vocabulary: words drawn from the shipped notes and the installed CUDA headers, plus
rare symbols, in files of about 20 passages, added through ``add_source`` as a user's folder is (reading process,
tokens, SQLite). Queries mix common words, rare words and symbols; they are asked in a process of their own, whose peak
memory is what is printed. Times are wall time, with the processor time of all processes beside it: on a busy machine
the second is the one to compare. Exit status 1 when a limit is missed: 2 s for 2,000 passages, 90 s for 100,000, 20 ms
for the 95th percentile of queries.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from provenance import host_provenance, write_json

RESULTS = Path(__file__).parent / "results" / "knowledge_index.json"
LIMITS = {2_000: 2.0, 100_000: 90.0}
"""Seconds to index so many passages, on 2 cores."""
QUERY_LIMIT_MS = 20.0
PASSAGES_A_FILE = 20
QUERIES = 300


def vocabulary() -> list[str]:
    """Words by falling frequency: the notes', then the runtime header's where there is one, then made-up symbols."""
    import re
    from collections import Counter

    from stitchcuda.knowledge.notes_loader import load_notes
    from stitchcuda.knowledge.toolkit import toolkit_roots

    text = "\n".join(note.body for note in load_notes())
    for root in toolkit_roots()[:1]:
        text += (root / "include" / "cuda_runtime_api.h").read_text(errors="replace")
    counts = Counter(re.findall(r"[A-Za-z_][\w.]+", text))
    made_up = [
        f"cuMade{a}{b}Async" for a in ["Alpha", "Beta", "Gamma", "Delta", "Tile", "Copy", "Graph"] for b in range(2000)
    ]
    return [word for word, _ in counts.most_common()] + made_up


def write_documents(folder: Path, passages: int, rng: random.Random) -> None:
    """Markdown files whose sections make one passage each."""
    words = vocabulary()
    weights = [1 / (rank + 3) for rank in range(len(words))]
    cumulative: list[float] = []
    total = 0.0
    for weight in weights:
        total += weight
        cumulative.append(total)
    for number in range(0, passages, PASSAGES_A_FILE):
        parts = [f"# Document {number}\n"]
        for section in range(min(PASSAGES_A_FILE, passages - number)):
            heading = " ".join(rng.choices(words, cum_weights=cumulative, k=4))
            body = " ".join(rng.choices(words, cum_weights=cumulative, k=90))
            parts.append(f"## {heading} {section}\n\n{body}\n")
            if section % 4 == 0:
                code = " ".join(rng.choices(words, cum_weights=cumulative, k=25))
                parts.append(f"```cuda\n{code}\n```\n")
        path = folder / f"{number // 10_000:03d}" / f"{number:07d}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(parts), encoding="utf-8")


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    chosen = {"median": len(ordered) // 2, "p95": int(len(ordered) * 0.95), "max": len(ordered) - 1}
    return {f"{name}_{key}_ms": round(ordered[at] * 1e3, 2) for key, at in chosen.items()}


def processor_seconds() -> float:
    """Processor time of this process and of the children it has waited for."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def ask(index: Path, seed: int) -> dict[str, float]:
    """Ask ``QUERIES`` queries of an index; milliseconds and this process's peak memory in MiB."""
    from stitchcuda.knowledge.search import Searcher
    from stitchcuda.knowledge.store import Store

    rng = random.Random(seed)
    words = vocabulary()
    cumulative: list[float] = []
    total = 0.0
    for rank in range(len(words)):
        total += 1 / (rank + 3)
        cumulative.append(total)
    searcher = Searcher(Store(index, read_only=True))
    queries = [" ".join(rng.choices(words, cum_weights=cumulative, k=rng.randint(2, 10))) for _ in range(QUERIES)]
    queries += ["bank conflicts in shared memory", "cudaMallocAsync", "the device memory of the stream"] * 5
    searcher.search(queries[0])
    wall, processor = [], []
    for query in queries:
        start, used = time.perf_counter(), time.process_time()
        searcher.search(query, limit=5)
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return {
        "queries": len(queries),
        **percentiles("wall", wall),
        **percentiles("processor", processor),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def measure(passages: int) -> dict[str, Any]:
    """Index ``passages`` passages, then query; figures."""
    from stitchcuda.knowledge.ingest import add_source
    from stitchcuda.knowledge.store import Store

    with tempfile.TemporaryDirectory() as scratch:
        folder, index = Path(scratch) / "documents", Path(scratch) / "index.sqlite"
        folder.mkdir()
        write_documents(folder, passages, random.Random(7))
        store = Store(index)
        start, used = time.perf_counter(), processor_seconds()
        report = add_source(store, str(folder))
        seconds, used = time.perf_counter() - start, processor_seconds() - used
        start = time.perf_counter()
        add_source(store, str(folder))
        again = time.perf_counter() - start
        chunks, length = store.totals()
        store.close()
        asked = subprocess.run(
            [sys.executable, __file__, "--ask", str(index)], capture_output=True, text=True, check=True
        )
        return {
            "passages": chunks,
            "mean_tokens": round(length, 1),
            "index_seconds": round(seconds, 2),
            "index_processor_seconds": round(used, 2),
            "add_again_seconds": round(again, 2),
            "index_mib": round(sum(p.stat().st_size for p in index.parent.glob("index.sqlite*")) / 2**20, 1),
            "indexing_peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "refused": len(report.refused),
            "search": json.loads(asked.stdout),
        }


def main() -> int:
    """Measure each size and print one JSON object."""
    parser = argparse.ArgumentParser(description="Speed and memory of the knowledge index.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--write", action="store_true", help="update the results file")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        print(json.dumps(ask(arguments.ask, 11)))
        return 0
    provenance = host_provenance() | {"sqlite": sqlite3.sqlite_version, "load_average": round(os.getloadavg()[0], 1)}
    results = [measure(size) for size in arguments.sizes]
    print(json.dumps({"provenance": provenance, "results": results}, indent=1))
    if arguments.write:
        write_json(RESULTS, {"provenance": provenance, "results": results})
    missed = [
        size
        for size, r in zip(arguments.sizes, results, strict=True)
        if r["index_seconds"] > LIMITS.get(size, float("inf")) or r["search"]["wall_p95_ms"] > QUERY_LIMIT_MS
    ]
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
