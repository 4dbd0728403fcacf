"""What ``stitchcuda dataset check`` says of several training sets, in one page.

    python benchmarks/dataset_check.py --root KERNELBENCH "generated"=tasks/train "public"=improve.parquet

Each set is a title and a path. Names, sources and graphs are compared with KernelBench's test split; ``--lanes`` worker
processes read the graphs. Runs on cpu.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from provenance import host_provenance, torch_versions, write_text

from stitchcuda.training.leaks import check
from stitchcuda.training.leaks_samples import held_back, training_samples


def main() -> int:
    """Check, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sets", nargs="+", metavar="TITLE=PATH")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "dataset_check.json")
    options = parser.parse_args()
    tests = held_back("kernelbench", options.root)
    provenance = {**host_provenance(), **torch_versions()}
    page = ["# Is KernelBench's test split in the training data?", ""]
    page += ["What is compared is described in `docs/training.md`.", ""]
    document: dict[str, object] = {"provenance": provenance}
    for entry in options.sets:
        title, _, path = entry.partition("=")
        report = check(training_samples(Path(path)), tests, lanes=options.lanes)
        document[title] = report.model_dump(mode="json")
        page += [f"## {title}", "", report.page()]
        bad = [leak for leak in report.leaks if leak.refused]
        print(
            f"{title}: {len(bad)} of {report.rows} rows refused, {len({leak.test for leak in bad})} test tasks",
            flush=True,
        )
    page += [f"- {name}: {value}" for name, value in provenance.items() if value]
    write_text(options.results, json.dumps(document, indent=1) + "\n")
    write_text(options.results.with_suffix(".md"), "\n".join(page) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
