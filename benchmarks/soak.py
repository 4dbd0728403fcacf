"""Many evaluations in a row, honest, cheating and crashing: what is left behind, and is the last verdict the first?

    python benchmarks/soak.py [--target cuda [--shared]] [--count 200] [--write]

After each evaluation the descriptors, threads, child processes and temporary files of this process may be no more than
they were after the second, with the process that waits for the next Program (which is not there after every one), and
on cuda no more device memory may be in use, give or take 64 MiB. Exit status 1 otherwise, or when a
program's verdict changes. Not a measurement of speed; other users of the device disturb the count of its memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from provenance import gpu_provenance, write_json

from stitchcuda.evaluation import sandbox
from stitchcuda.evaluation.build_cache import release_leases
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

RESULTS = Path(__file__).parent / "results"
SLACK_MIB = 64
OTHERS_S = 600.0
"""How long the last look at a shared device waits for others to finish."""

HEAD = "import torch\nfrom torch import nn\n"
SOURCE = HEAD + (
    "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) * 2\n"
    "def get_inputs():\n    return [torch.randn(256, 512)]\n"
    "def get_init_inputs():\n    return []\n"
)
CALL = HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        {}\n        return torch.relu(x) * 2\n"
PROGRAMS = {
    "honest": CALL.format("pass"),
    "honest, holds memory": CALL.format("self.kept = getattr(self, 'kept', []) + [torch.empty_like(x)]"),
    "wrong": CALL.format("x = x + 1e-3"),
    "caches by address": CALL.format("self.c = getattr(self, 'c', {}); return self.c.setdefault(x.data_ptr(), x * 2)"),
    "changes its input": CALL.format("y = torch.relu(x) * 2; x.add_(1); return y"),
    "never returns": CALL.format("while True: pass"),
    "dies": CALL.format("import os; os.kill(os.getpid(), 11)"),
    "says that all is well": CALL.format("import os; os._exit(0)"),
    "leaves a process": CALL.format("import os, time; os.fork() or (os.setsid(), time.sleep(600))"),
    "leaves files": CALL.format("open('left', 'wb').write(bytes(1 << 20)); open('/dev/shm/left', 'wb').write(b'x')"),
    "does not parse": "class ModelNew(nn.Module:\n",
    "takes all memory": CALL.format("torch.empty(1 << 46, dtype=torch.uint8, device=x.device)"),
}


def device_mib() -> int:
    """Memory in use on the first GPU that this process sees, MiB; 0 where there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if first := os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip():
        query.append(f"--id={first}")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
        return int(done.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 0


def quiet(memory: int, seconds: float) -> int:
    """Memory in use once it is what it was, or after so many seconds, in which others finish."""
    until = time.monotonic() + seconds
    while (used := device_mib()) > memory + SLACK_MIB and time.monotonic() < until:
        time.sleep(1.0)
    return used


def held() -> dict[str, int]:
    """What this process and the machine hold on its behalf, but for leases of the build cache: those are bounded."""
    release_leases()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(sandbox.descendants(os.getpid())),
        "files": len(list(Path(tempfile.gettempdir()).rglob("*"))),
    }


def steady() -> dict[str, int]:
    """What is held once two looks in a row agree: what is dying is no allowance."""
    last, now = {}, held()
    while now != last:
        time.sleep(1.0)
        last, now = now, held()
    return now


def settled(most: dict[str, int]) -> dict[str, int]:
    """What is held once nothing is more than it may be, or after ten seconds: the dying need a moment."""
    until = time.monotonic() + 10
    while over(now := held(), most) and time.monotonic() < until:
        time.sleep(0.05)
    return now


def over(now: dict[str, int], most: dict[str, int]) -> bool:
    """Whether more of anything is held than may be."""
    return any(now[kind] > most[kind] for kind in most)


def main() -> int:
    """Evaluate, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument(
        "--shared", action="store_true", help="others use the device: its memory counts at the end only"
    )
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    device = detect(given.target)
    task = Task(name="soak", origin="benchmark", source=SOURCE, target=device.target)
    facts = TaskFacts(
        inputs=[],
        outputs=[],
        parameters=0,
        stochastic=False,
        seedable=False,
        training=True,
        mutates_state=False,
        eager_seconds=1e-4,
    )
    settings = EvaluationSettings(
        baselines=False,
        static_rules=False,
        screen_calls=5,
        screen_min_calls=3,
        call_timeout_s=8,
        call_timeout_factor=1.1,
    )
    verdicts: dict[str, list[str]] = {}
    problems: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as cache, tempfile.TemporaryDirectory(prefix="soak-tmp-") as own:
        tempfile.tempdir = own
        with Evaluator(task, facts, device, cache=Path(cache), settings=settings) as evaluator:
            first: dict[str, int] = {}
            memory = 0
            for number, (name, source) in enumerate(itertools.islice(itertools.cycle(PROGRAMS.items()), given.count)):
                if time.monotonic() - began > given.seconds:
                    break
                evaluation = evaluator.evaluate(Program(files={"program.py": source}))
                verdicts.setdefault(name, []).append(evaluation.status)
                # A process that waits for the next Program counts from the second on.
                if number == 1:
                    first, memory = steady(), device_mib()
                elif number > 1:
                    now = settled(first)
                    if over(now, first):
                        problems.append(f"after {number + 1} ({name}): {now}, was {first}")
                    if given.target == "cuda" and not given.shared and device_mib() > memory + SLACK_MIB:
                        problems.append(f"after {number + 1} ({name}): {device_mib()} MiB on the device, was {memory}")
            used = quiet(memory, OTHERS_S if given.shared else 0.0)
            if given.target == "cuda" and used > memory + SLACK_MIB:
                problems.append(f"at the end: {used} MiB on the device, was {memory}")
        tempfile.tempdir = None
    for name, statuses in verdicts.items():
        changed = "" if len(set(statuses)) == 1 else f"  CHANGES: {statuses}"
        problems += [f"{name}: {statuses}"] if changed else []
        print(f"{name}: {statuses[0]} x{len(statuses)}{changed}")
    count = sum(map(len, verdicts.values()))
    print(f"{count} evaluations in {time.monotonic() - began:.0f} s; {len(problems)} problems", *problems, sep="\n")
    if given.write:
        record = gpu_provenance() | {"target": given.target, "count": count, "problems": problems}
        record |= {"verdicts": {name: sorted(set(statuses)) for name, statuses in verdicts.items()}}
        write_json(RESULTS / f"soak_{given.target}.json", record)
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
