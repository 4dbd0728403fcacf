"""How many generated tasks are worth training on: the audit of the generator, by family and by reason for dropping.

    python benchmarks/task_generator.py --count 2000 --seed 1 --lanes 2 --results benchmarks/results/task_generator.json

Writes the JSON and a Markdown table beside it. With ``--memory FILE`` a run that was stopped goes on where it was.
``--tasks DIR`` also writes the tasks themselves, as ``stitchcuda dataset tasks`` does. Runs on cpu.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from provenance import host_provenance, write_text

from stitchcuda.training.generator_audit import audited, table, write_tasks


def main() -> int:
    """Audit, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "task_generator.json")
    options = parser.parse_args()
    began = time.monotonic()

    def tell(valid: int, tried: int) -> None:
        if tried % 100 == 0:
            print(f"{valid} of {tried} valid, {time.monotonic() - began:.0f} s", flush=True)

    found = audited(options.seed, options.count, lanes=options.lanes, memory=options.memory, tell=tell)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    provenance = host_provenance()
    document = {
        "command": f"python benchmarks/task_generator.py --count {options.count} --seed {options.seed}",
        "seed": options.seed,
        "valid": len(found.valid),
        "held_out": sum(task.held_out for task in found.valid),
        "dropped": found.reasons,
        "dropped_tasks": {task.name: reason for task, reason in found.dropped},
        "distinct_compositions": len({task.expression for task in found.valid}),
        "tasks_sha256": hashlib.sha256("\n".join(t.model_dump_json() for t in found.valid).encode()).hexdigest(),
        "provenance": provenance,
    }
    page = [
        "# Generated tasks and their audit",
        "",
        f"The first {len(found.valid):,} valid tasks of seed {options.seed}: each runs, is distinct in its "
        "composition, is passed by no trivial answer, is well-conditioned and deterministic, and holds no part that "
        "does nothing. What is looked at is described in `docs/training.md`.",
        "",
        table(found),
        "",
        f"- command: `{document['command']}`",
        *(f"- {name}: {value}" for name, value in provenance.items() if value),
    ]
    if options.memory is None:
        document["processor_seconds_of_workers"] = round(usage.ru_utime + usage.ru_stime, 1)
        page.append(f"- processor time of the workers: {document['processor_seconds_of_workers']} s")
    write_text(options.results, json.dumps(document, indent=1) + "\n")
    write_text(options.results.with_suffix(".md"), "\n".join(page) + "\n")
    if options.tasks is not None:
        write_tasks(found, options.tasks)
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
