"""GRPO of the small experiment on one GPU and with its prompts shared out over several: seconds of a step, and whether
the rewards are the same.

    python benchmarks/coder_experiment/parallel.py run --state /tmp/coder --gpus 2 --steps 20 --out OUT

Begins from a cold start that is there (`run.py slice --only sft`) and leaves it as it is. Two runs on one GPU each that
differ in their draws alone, side by side where there are two GPUs, say how far curves of equal training lie apart; then
one run on all GPUs with the same prompts in every step. Every process has its own GPU, an equal share of the machine's
cores and a copy of what was measured until then. Writes `grpo_parallel.json` and `.md`. What else `run.py slice` takes
(`--backend`, `--model`, `--prompts` ...) may follow. Exit status: 0 done, 1 a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lanes import Lane, gpu_count, shares_of_cores
from provenance import gpu_provenance, write_json, write_text

PROMPT_SEED = 300
"""Of the prompts of every run; no arm has it."""
DRAWS = (301, 302)
"""Seeds of the samples: the second is that of a run that repeats the first on one GPU."""
WARM = 3
"""Steps at the beginning that count for no time."""


def places_of(count: int, backend: str) -> list[Lane]:
    """A GPU (none on the CPU) and a share of the cores for each process."""
    return [Lane(at if backend == "cuda" else None, cores) for at, cores in enumerate(shares_of_cores(count))]


def one_rank(options: argparse.Namespace, given: list[str]) -> int:
    """A process of a run: it trains, and the first one writes down what each step gave."""
    from coder_experiment import arms, train
    from coder_experiment.arms import Arm
    from coder_experiment.ranks import Ranks
    from coder_experiment.run import arguments
    from coder_experiment.session import Session
    from coder_experiment.state import append

    settings = arguments(["slice", "--state", str(options.state), *given])
    memo = options.folder / f"memo-{options.rank}.jsonl"
    if (options.state / "memo.jsonl").exists():
        shutil.copy(options.state / "memo.jsonl", memo)
    session = Session(settings, time.monotonic(), world=options.world, memo=memo)
    ranks = Ranks()
    try:
        bench = session.bench
        data = session.data()
        arms.start_from_sft(bench, session.folder, session.base)
        if options.world > 1:
            ranks = Ranks.join(options.rank, options.world, options.port, bench.model.embedding.device)
        adam = train.optimiser(bench.model, session.grpo.lr)
        arm = Arm("parallel", "grpo", PROMPT_SEED)
        for step in range(options.steps):
            rows = arms.choose(data.train, arm, settings.prompts, step)
            began = time.monotonic()
            record = train.grpo_step(
                bench, adam, rows, session.grpo, "rubric", step=step, seed=options.draws, ranks=ranks
            )
            record |= {"step_seconds": time.monotonic() - began, "generation": bench.generator.recorded or "eager"}
            if options.rank == 0:
                append(options.folder / "metrics.jsonl", record)
        return 0
    finally:
        ranks.leave()
        session.close()


def start(run: dict[str, Any], options: argparse.Namespace, given: Sequence[str], places: Sequence[Lane]) -> list[Any]:
    """The processes of a run, each in a group of its own."""
    folder = options.state / "parallel" / run["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank, place in enumerate(places):
        command = [sys.executable, str(Path(__file__).resolve()), "rank", "--state", str(options.state)]
        command += ["--folder", str(folder), "--rank", str(rank), "--world", str(len(places)), "--port", str(port)]
        command += ["--draws", str(run["draws"]), "--steps", str(options.steps), *given]
        with open(folder / f"log-{rank}.txt", "w") as log:
            started.append(
                subprocess.Popen(
                    place.pinned(command),
                    env=place.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    return started


def wait(processes: Sequence[Any]) -> None:
    """Until all have ended. Where one fails the others would wait for it: then all are killed, and RuntimeError says
    which."""
    failed: list[int] = []
    try:
        while not failed and any(process.poll() is None for process in processes):
            time.sleep(0.1)
            failed = [at for at, process in enumerate(processes) if process.poll() not in (None, 0)]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if failed:
        raise RuntimeError(f"process {failed[0]} ended with status {processes[failed[0]].returncode}")


def run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """All runs, and what they showed."""
    from coder_experiment.run import arguments
    from coder_experiment.state import lines

    backend = given[given.index("--backend") + 1] if "--backend" in given else "cuda"
    if not (options.state / "sft.pt").exists():
        print(f"{options.state} holds no cold start; begin with `run.py slice --only sft --state {options.state}`")
        return 1
    if backend == "cuda" and gpu_count() < options.gpus:
        print(f"--gpus {options.gpus}: this machine has {gpu_count()}")
        return 1
    prompts = arguments(["slice", "--state", str(options.state), *given]).prompts
    if prompts % options.gpus:
        print(f"{prompts} prompts of a step cannot be shared out equally among {options.gpus} processes")
        return 1
    places = places_of(options.gpus, backend)
    alone = [{"name": f"one-{at}", "draws": draws} for at, draws in enumerate(DRAWS)]
    together = {"name": "all", "draws": DRAWS[0]}
    try:
        if len(places) > 1:
            wait(
                [
                    process
                    for each, place in zip(alone, places, strict=False)
                    for process in start(each, options, given, [place])
                ]
            )
        else:
            for each in alone:
                wait(start(each, options, given, places[:1]))
        wait(start(together, options, given, places))
    except RuntimeError as error:
        for log in sorted((options.state / "parallel").glob("*/log-*.txt")):
            text = log.read_text().strip()
            if text:
                print(f"{log.parent.name}/{log.name}: {text[-1500:]}")
        print(error)
        return 1
    runs = {
        each["name"]: lines(options.state / "parallel" / each["name"] / "metrics.jsonl") for each in (*alone, together)
    }
    report = {
        "provenance": gpu_provenance(),
        "backend": backend,
        "gpus": options.gpus,
        "cores_each": len(places[0].cores),
        "steps": options.steps,
        **compared(runs),
        "runs": runs,
    }
    write_json(options.out / "grpo_parallel.json", report)
    write_text(options.out / "grpo_parallel.md", page(report))
    print(page(report))
    return 0


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Median seconds of a step and of its phases, and distances between reward curves: root of the mean square over the
    steps. ``noise`` is that of the two runs on one GPU."""
    seconds = {}
    for name, records in runs.items():
        counted = records[WARM:] or records
        phases = {phase: [each["seconds"][phase] for each in counted] for phase in counted[0]["seconds"]}
        seconds[name] = {phase: round(statistics.median(values), 3) for phase, values in phases.items()}
        seconds[name]["step"] = round(statistics.median(each["step_seconds"] for each in counted), 3)
    rewards = {name: [record["reward"] for record in records] for name, records in runs.items()}
    one = statistics.mean(seconds[name]["step"] for name in ("one-0", "one-1"))
    return {
        "seconds": seconds,
        "speedup": round(one / seconds["all"]["step"], 3),
        "noise": _distance(rewards["one-0"], rewards["one-1"]),
        "apart": [_distance(rewards["all"], rewards[name]) for name in ("one-0", "one-1")],
        "mean_reward": {name: round(statistics.mean(values), 4) for name, values in rewards.items()},
        "last_reward": {name: round(statistics.mean(values[-5:]), 4) for name, values in rewards.items()},
    }


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    return round(statistics.mean((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5, 4)


def page(report: dict[str, Any]) -> str:
    """For readers."""
    where = report["provenance"]
    title = {"one-0": "one GPU", "one-1": "one GPU, other draws", "all": f"{report['gpus']} GPUs"}
    text = [
        "# GRPO of the small experiment with its prompts shared out",
        "",
        f"{where['date']}, {report['gpus']} x {where.get('gpu') or where['cpu']}, driver {where.get('driver') or '-'}, "
        f"torch {where['torch']}, commit {where['commit']}; {report['cores_each']} cores for each process. "
        f"{report['steps']} steps from the cold start, the same prompts in each; written by "
        "`coder_experiment/parallel.py`.",
        "",
        "| run | step, s | generate | evaluate | update | mean reward | of the last 5 steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, what in title.items():
        s = report["seconds"][name]
        text.append(
            f"| {what} | {s['step']:.2f} | {s['generate']:.2f} | {s['evaluate']:.2f} | {s['update']:.2f} "
            f"| {report['mean_reward'][name]:.3f} | {report['last_reward'][name]:.3f} |"
        )
    apart = " and ".join(f"{value:.3f}" for value in report["apart"])
    text += [
        "",
        f"A step on {report['gpus']} is {report['speedup']:.2f} times as fast (medians, without the first {WARM} "
        "steps; a phase's seconds are those of its slowest process).",
        f"Reward curves: {apart} from the two on one GPU, which are {report['noise']:.3f} from each other (root of the "
        "mean square over the steps).",
        "",
    ]
    return "\n".join(text)


def main(given: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("run", "all runs and the comparison"), ("rank", "one process of a run; `run` starts it")):
        command = commands.add_parser(name, help=about)
        command.add_argument("--state", type=Path, required=True, help="a run's folder with a cold start")
        command.add_argument("--steps", type=int, default=20)
        if name == "run":
            command.add_argument("--gpus", type=int, default=2)
            command.add_argument("--out", type=Path, required=True)
        else:
            command.add_argument("--folder", type=Path, required=True)
            for number in ("rank", "world", "port", "draws"):
                command.add_argument(f"--{number}", type=int, required=True)
    options, rest = parser.parse_known_args(given)
    options.state = options.state.resolve()
    if options.command == "rank":
        os.environ.setdefault("OMP_NUM_THREADS", "4")
        return one_rank(options, rest)
    options.out.mkdir(parents=True, exist_ok=True)
    return run(options, rest)


if __name__ == "__main__":
    sys.exit(main())
