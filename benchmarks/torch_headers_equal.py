"""The same C++ extensions through our own headers and through PyTorch's: verdicts of an evaluation, and results bit by
bit.

    python benchmarks/torch_headers_equal.py [--torch 26] [--jobs 2] [--only NAME,NAME]

The cases are those of ``tests/evaluation/torch_cases.py``. Each is evaluated as a KernelBench-style Program in a
confined runner, once as it is and, for the first ``--torch`` of them, once with an include that our headers lack, so
that it falls back to PyTorch's by itself (20 s of one core each). Then all cases together are built both ways, loaded
in a process of their own, and their results compared with ``torch.equal``. Runs on the CPU; writes
``benchmarks/results/torch_headers_equal.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from provenance import ROOT, host_provenance
from tests.evaluation.torch_cases import CASES, FUNCTIONS, SOURCE, Case

from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.torch_build import Headers, build_extensions
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Target, Task, TaskFacts

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
LACKING = "#include <c10/util/TypeSafeSignMath.h>\n"
"""A small header of PyTorch's that ours do not have."""

CPU = Target(kind="cpu", arch="native")
DEVICE = Device(target=CPU, name="cpu", multiprocessors=1, memory_bytes=1 << 33, cache_bytes=1 << 20)
SETTINGS = EvaluationSettings(baselines=False, trace_program=False, build_timeout_s=900)

COMPARE = """
import json, sys
import torch
from torch.nn import functional as F
sys.path[:0] = json.loads(sys.argv[1])
from stitchcuda.evaluation.torch_inline import _load
from tests.evaluation.torch_cases import CASES
ours, theirs = (_load(__import__("pathlib").Path(path), name) for name, path in zip(("ours", "theirs"), sys.argv[2:]))
for case in CASES:
    results = []
    for ext in (ours, theirs):
        torch.manual_seed(0)
        scope = {"torch": torch, "F": F, "ext": ext}
        scope |= dict(zip([name.strip() for name in case.arguments.split(",")], eval(case.inputs, scope)))
        result = eval(case.call, scope)
        results.append(result if isinstance(result, tuple) else (result,))
    print(json.dumps([case.name, all(torch.equal(a, b) for a, b in zip(*results, strict=True))]))
"""


def evaluated(case: Case, headers: Headers, cache: Path) -> Evaluation:
    """One case in a confined runner."""
    task = Task(name=case.name, origin="benchmark", source=HEAD + case.task, target=CPU)
    facts = TaskFacts(
        inputs=[],
        outputs=[],
        parameters=0,
        stochastic=False,
        seedable=False,
        training=True,
        mutates_state=False,
        eager_seconds=0.001,
    )
    source = case.program.replace('source = r"""', f'source = r"""{LACKING if headers == "torch" else ""}', 1)
    with Evaluator(task, facts, DEVICE, cache=cache, settings=SETTINGS) as evaluator:
        return evaluator.evaluate(Program(files={ENTRY: HEAD + source}))


def library(headers: Headers, cache: Path) -> Path:
    """All cases in one library."""
    call = f"load_inline(name='all', cpp_sources={SOURCE!r}, functions={FUNCTIONS!r})"
    program = Program(files={ENTRY: f"from torch.utils.cpp_extension import load_inline\next = {call}\n"})
    (extension,) = build_extensions(
        program, CPU, cache=BuildCache(cache), deadline=time.monotonic() + 900, headers=(headers,)
    ).each
    if extension.library is None:
        raise SystemExit(f"the cases do not build against {headers}: {extension.why} {extension.error}")
    return extension.library


def main() -> None:
    """Evaluate, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=int, default=0, help="cases that are also evaluated with PyTorch's headers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="names of cases")
    parser.add_argument("--cache", help="build cache; default: a new one")
    options = parser.parse_args()
    cache = Path(options.cache or tempfile.mkdtemp(prefix="stitchcuda-equal-"))
    chosen = [case for case in CASES if not options.only or case.name in options.only.split(",")]
    work: list[tuple[Case, Headers]] = [(case, "own") for case in chosen]
    work += [(case, "torch") for case in chosen[: options.torch]]
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        evaluations = list(pool.map(lambda each: evaluated(each[0], each[1], cache), work))
    verdicts: dict[str, dict[str, Any]] = {case.name: {} for case in chosen}
    for (case, headers), evaluation in zip(work, evaluations, strict=True):
        verdicts[case.name][headers] = {
            "status": evaluation.status,
            "message": evaluation.message if evaluation.status != "correct" else "",
            "extensions": evaluation.provenance["extensions"],
            "build_seconds": round(evaluation.seconds.get("build", 0.0), 2),
        }
    paths = [str(library("own", cache)), str(library("torch", cache))]
    folders = json.dumps([str(ROOT), str(ROOT / "src")])
    done = subprocess.run([sys.executable, "-c", COMPARE, folders, *paths], capture_output=True, text=True, check=True)
    for name, equal in map(json.loads, done.stdout.splitlines()):
        if name in verdicts:
            verdicts[name]["bitwise_equal"] = equal
    result = {
        "command": " ".join(["python benchmarks/torch_headers_equal.py", *sys.argv[1:]]),
        "provenance": host_provenance(),
        "cases": len(chosen),
        "correct_with_own": sum(each["own"]["status"] == "correct" for each in verdicts.values()),
        "evaluated_with_torch": sum("torch" in each for each in verdicts.values()),
        "correct_with_torch": sum(each.get("torch", {}).get("status") == "correct" for each in verdicts.values()),
        "bitwise_equal": sum(bool(each.get("bitwise_equal")) for each in verdicts.values()),
        "verdicts": verdicts,
    }
    (ROOT / "benchmarks" / "results" / "torch_headers_equal.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "verdicts"}, indent=1))
    for name, each in verdicts.items():
        print(name, json.dumps(each))


if __name__ == "__main__":
    main()
