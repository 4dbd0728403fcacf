"""What KernelBench's own harness says about one program: its ``eval_kernel_against_ref``, as it is, in this process.

    python benchmarks/kernelbench_verdict.py --root CHECKOUT --task TASK.py --program PROGRAM.py --answer ANSWER.json
    python benchmarks/kernelbench_verdict.py --root CHECKOUT --probe      # can it be imported here?

Settings are those of its scripts: five checks, a hundred timed trials, CUDA events, fp32. Packages that it imports
for other purposes (clients of language models and the like) and that are not installed are replaced by empty ones.
The program runs in this process, as it does there: start it in a process that may die, and believe the answer file
only as far as the harness can be believed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

UNUSED = ("dotenv", "openai", "litellm", "tqdm", "requests", "datasets")
"""Top-level packages that KernelBench imports and an evaluation does not call."""
CHECKS, TRIALS = 5, 100
"""As in its ``scripts/run_and_check.py``."""


class _Absent(types.ModuleType):
    """A package that is not installed: every name is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: None


def import_harness(root: Path) -> Any:
    """KernelBench's ``eval`` module from a checkout. Raises SystemExit when ``root`` is none."""
    source = root / "src"
    if not (source / "kernelbench" / "eval.py").is_file():
        raise SystemExit(f"{root} is not a checkout of KernelBench: src/kernelbench/eval.py is not there")
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _Absent(name)
    sys.path.insert(0, str(source))
    importlib.import_module("kernelbench.utils")
    return importlib.import_module("kernelbench.eval")


def static_errors(source: str) -> list[str]:
    """What KernelBench's static checker refuses; its runtime harness does not call it."""
    checker = importlib.import_module("kernelbench.kernel_static_checker")
    _, errors, _ = checker.validate_kernel_static(source, backend="cuda", precision="fp32")
    return [str(error) for error in errors]


def verdict(harness: Any, task: str, program: str) -> dict[str, Any]:
    """Run it: ``verdict`` (passes, fails, no verdict), claimed ``speedup``, ``flagged``, ``message``."""
    import torch

    if not torch.cuda.is_available():
        return {"verdict": "no verdict", "message": "KernelBench's harness needs a GPU, and there is none"}
    try:
        result = harness.eval_kernel_against_ref(
            original_model_src=task,
            custom_model_src=program,
            num_correct_trials=CHECKS,
            num_perf_trials=TRIALS,
            measure_performance=True,
            timing_method="cuda_event",
            backend="cuda",
            precision=torch.float32,
            device=torch.device("cuda:0"),
        )
    except Exception as error:
        return {"verdict": "no verdict", "message": f"{type(error).__name__}: {error}"[:500]}
    if result is None:
        return {"verdict": "no verdict", "message": "the harness asks for another try"}
    metadata = {key: str(value)[:300] for key, value in result.metadata.items()}
    told = next((metadata[k] for k in ("compilation_error", "runtime_error", "correctness_issue") if k in metadata), "")
    answer: dict[str, Any] = {
        "verdict": "passes" if result.correctness else "fails",
        "compiled": bool(result.compiled),
        "flagged": "excessive_speedup" in metadata,
        "message": told,
        "program_ms": result.runtime,
        "reference_ms": result.ref_runtime,
    }
    if result.correctness and result.runtime > 0 and result.ref_runtime > 0:
        answer["speedup"] = result.ref_runtime / result.runtime
    return answer


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="checkout of KernelBench")
    parser.add_argument("--probe", action="store_true", help="import the harness and say so")
    parser.add_argument("--task", type=Path, help="reference, a .py file")
    parser.add_argument("--program", type=Path, help="program, a single .py file")
    parser.add_argument("--answer", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    harness = import_harness(options.root)
    if options.probe:
        print(f"imported {harness.__file__}; static checker: {static_errors('class ModelNew: pass')[:1]}")
        return 0
    if not (options.task and options.program and options.answer):
        parser.error("--task, --program and --answer are needed")
    program = options.program.read_text()
    answer = {"static_errors": static_errors(program)} | verdict(harness, options.task.read_text(), program)
    options.answer.write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
