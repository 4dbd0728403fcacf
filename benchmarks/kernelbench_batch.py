"""One program through one step of KernelBench's own batch evaluation: its pre-compilation, or its evaluation against
the cache that this left. As its ``scripts/eval_from_generations.py`` does it, in a process for each.

    python benchmarks/kernelbench_batch.py compile --root CHECKOUT --program P.py --build DIR --answer A.json
    python benchmarks/kernelbench_batch.py judge --root CHECKOUT --program P.py --build DIR --answer A.json --task T.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from kernelbench_verdict import CHECKS, TRIALS, import_harness


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("compile", "judge"))
    for name in ("root", "program", "build", "answer"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--task", type=Path)
    parser.add_argument("--arch", default="9.0")
    options = parser.parse_args()
    os.environ["TORCH_CUDA_ARCH_LIST"] = options.arch
    began = time.monotonic()
    harness = import_harness(options.root)
    source = options.program.read_text()
    answer: dict[str, Any]
    if options.step == "compile":
        compiled, _, error = harness.build_compile_cache(
            custom_model_src=source, verbose=False, build_dir=options.build
        )
        answer = {"compiled": bool(compiled), "message": str(error or "")[-500:]}
    else:
        answer = judge(harness, options.task.read_text(), source, options.build)
    options.answer.write_text(json.dumps(answer | {"seconds": time.monotonic() - began}))
    return 0


def judge(harness: Any, task: str, source: str, build: Path) -> dict[str, Any]:
    """Its verdict; what it raises is one too."""
    import torch

    try:
        result = harness.eval_kernel_against_ref(
            original_model_src=task,
            custom_model_src=source,
            num_correct_trials=CHECKS,
            num_perf_trials=TRIALS,
            measure_performance=True,
            timing_method="cuda_event",
            build_dir=build,
            device=torch.device("cuda:0"),
            backend="cuda",
            precision=torch.float32,
        )
    except Exception as error:
        return {"verdict": "no verdict", "message": f"{type(error).__name__}: {error}"[:500]}
    if result is None:
        return {"verdict": "no verdict", "message": "the harness asks for another try"}
    told = {key: str(value)[:300] for key, value in result.metadata.items()}
    reasons = [told[key] for key in ("compilation_error", "runtime_error", "correctness_issue") if key in told]
    verdict = "passes" if result.correctness else "fails" if result.compiled else "does not compile"
    return {
        "verdict": verdict,
        "message": reasons[0] if reasons else "",
        "program_ms": result.runtime,
        "reference_ms": result.ref_runtime,
    }


if __name__ == "__main__":
    raise SystemExit(main())
