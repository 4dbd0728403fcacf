"""Runs the experiment in slices: `python benchmarks/coder_experiment/run.py slice --minutes 9 --state DIR --out DIR`.

Every command can be stopped and given again; it goes on where it was. See README.md for what runs where.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coder_experiment.session import USUAL_RATE, Session

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
LEFT, DONE, WRONG = 3, 0, 2
ENDING = (signal.SIGINT, signal.SIGTERM)
RATES, PILOT_STEPS = (5e-5, USUAL_RATE, 2e-4), 20


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("slice", "prepare, cold start, arms and tests, as far as the time goes"),
        ("calibrate", "measure tokens, evaluations and steps for about a minute; fixes nothing"),
        ("pilot", "20 steps at each of three learning rates, on a seed that no arm has"),
        ("analyse", "results as JSON, Markdown and figures, with intervals"),
        ("merge", "take in the arms that other GPUs have run from the same cold start"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("--state", type=Path, required=True, help="the run's folder")
        command.add_argument("--out", type=Path, help="where to put what leaves the machine")
        if name == "merge":
            command.add_argument("others", type=Path, nargs="+", help="folders of the same run from other GPUs")
            continue
        if name == "analyse":
            command.add_argument("--seed", type=int, default=20_260_101)
            continue
        command.add_argument("--parts", type=Path, help="a folder with the state's parts of an earlier slice")
        command.add_argument("--minutes", type=float, default=9.0)
        command.add_argument("--model", default=f"/tmp/{MODEL}", help="the .gguf, or 'tiny' for a random one")
        command.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
        command.add_argument("--steps", type=int, default=50, help="of every arm")
        command.add_argument("--seeds", type=int, default=2)
        command.add_argument("--only", default="", help="names of arms, or sft, with commas; all where empty")
        command.add_argument("--lr", type=float, help=f"of GRPO; the pilot's choice, or {USUAL_RATE:g} without one")
        command.add_argument("--prompts", type=int, default=16)
        command.add_argument("--group", type=int, default=16)
        command.add_argument("--micro", type=int, default=64)
        command.add_argument("--prompt-tokens", type=int, default=320)
        command.add_argument("--answer-tokens", type=int, default=192)
        command.add_argument("--test-samples", type=int, default=8)
        command.add_argument("--sft-epochs", type=float, default=2.0)
        command.add_argument("--stop-at", type=float, default=0.45, help="correct share at which the cold start ends")
        command.add_argument("--tasks", type=int, default=2000)
        command.add_argument("--validation", type=int, default=128)
        command.add_argument("--test", type=int, default=208)
        command.add_argument("--answers", type=int, default=2600)
        command.add_argument("--improve", type=int, default=1400)
        command.add_argument("--elements", type=int, default=0, help="of a timed matrix; 0: the back end's usual")
        command.add_argument("--data-seed", type=int, default=1)
    return parser.parse_args(given)


def slice_(session: Session) -> int:
    """As much of the experiment as the time allows."""
    from coder_experiment import arms
    from coder_experiment.arms import PARTIAL_SFT, Budget
    from coder_experiment.dataset import Sizes
    from coder_experiment.state import timed

    options, bench, folder = session.options, session.bench, session.folder
    budget = Budget(steps=options.steps, sft_epochs=options.sft_epochs, test_samples=options.test_samples)
    folder.settle(
        backend=options.backend,
        model=Path(options.model).name,
        data=asdict(Sizes(options.tasks, options.validation, options.test, options.answers, options.improve))
        | {"seed": options.data_seed, "elements": bench.evaluator.elements},
        tokens={"prompt": options.prompt_tokens, "answer": options.answer_tokens},
        cold_start={"stop_at": options.stop_at, "epochs": options.sft_epochs},
        test={"samples": options.test_samples, "rows": bench.generator.rows},
    )
    began = time.monotonic()
    data = session.data()
    say(f"data: {len(data.cold_start)} answers, {len(data.train)} requests, {time.monotonic() - began:.0f} s")
    say(f"generation: {bench.generator.recorded or 'eager'}")
    if not (folder.path / "sft.pt").exists():
        samples = max(1, budget.test_samples // 4)
        if not _test(session, data, "base", samples):
            return LEFT
        with timed(folder.arm(PARTIAL_SFT), "training", session.left) as clock:
            if not arms.supervise(bench, folder, data, budget, PARTIAL_SFT, clock, stop_at=options.stop_at):
                return LEFT
        say(f"cold start: {(folder.arm(PARTIAL_SFT) / 'done.json').read_text()}")
    arms.start_from_sft(bench, folder, session.base)
    if not _test(session, data, PARTIAL_SFT, budget.test_samples):
        return LEFT
    for arm in arms.wanted(options.only, options.seeds):
        if folder.result(arm.name).exists():
            continue
        if session.left() < 20:
            return LEFT
        # Not before, so that calibration and pilot can have a say.
        folder.settle(budget=asdict(budget), grpo=asdict(session.grpo))
        started = time.monotonic()
        if not _one(session, data, arm, budget):
            return LEFT
        say(f"{arm.name}: {time.monotonic() - started:.0f} s")
        session.pack()
    return DONE


def _one(session: Session, data: Any, arm: Any, budget: Any) -> bool:
    """An arm and its test."""
    import torch

    from coder_experiment import arms
    from coder_experiment.state import load_tensors, timed

    bench, folder = session.bench, session.folder
    finished = folder.arm(arm.name) / "changes.pt"
    if arm.kind == "supervised":
        with torch.no_grad():
            for name, value in session.base.items():
                bench.model.base[name].copy_(value)
        bench.model.begin(arms.SFT_RANK, 0)
    else:
        arms.start_from_sft(bench, folder, session.base)
    if finished.exists():
        bench.model.take({key: value.float() for key, value in load_tensors(finished).items()})
        bench.generator.refresh()
    else:
        with timed(folder.arm(arm.name), "training", session.left) as clock:
            if arm.kind == "supervised":
                done = arms.supervise(bench, folder, data, budget, arm.name, clock, stop_at=0.0)
            else:
                done = arms.run_arm(bench, folder, data, arm, session.grpo, budget, clock)
        if not done:
            return False
    return _test(session, data, arm.name, budget.test_samples)


def _test(session: Session, data: Any, name: str, samples: int) -> bool:
    """A model's test, where it did not take it."""
    from coder_experiment import arms
    from coder_experiment.state import timed

    if session.folder.result(name).exists():
        return True
    with timed(session.folder.arm(name), "test", session.left) as clock:
        return arms.test(session.bench, session.folder, data, name, samples, clock)


def calibrate(session: Session) -> int:
    """Tokens a second, evaluations a minute and seconds of a step; on a small data set of its own."""
    import torch

    from coder_experiment import dataset, train
    from coder_experiment.arms import Arm, choose

    bench, options = session.bench, session.options
    length = lambda text: len(bench.tokenizer.encode(text))  # noqa: E731
    count = max(16, min(400, options.tasks))
    began = time.monotonic()
    sizes = dataset.Sizes(count, 8, 8, count, count // 2)
    data = dataset.prepare(bench.evaluator, 77, sizes, options.answer_tokens - 1, length, options.prompt_tokens)
    bench.baselines = data.baselines
    spent = time.monotonic() - began
    record: dict[str, Any] = {
        "generation": bench.generator.recorded or "eager",
        "prepare_seconds": round(spent, 1),
        "evaluations": bench.evaluator.evaluated,
        "evaluations_a_minute": round(60 * bench.evaluator.evaluated / max(bench.evaluator.seconds, 1e-9)),
        "restarts": bench.evaluator.lane.restarts,
    }
    adam = train.optimiser(bench.model, 1e-3)
    count = 4 * options.prompts
    at, times, loss = 0, list[float](), float("nan")
    while session.left() > 0.45 * 60 * options.minutes and at < 40:
        rows = [data.cold_start[(at * count + k) % len(data.cold_start)] for k in range(count)]
        started = time.monotonic()
        loss = train.sft_step(bench, adam, rows, 1e-3)["loss"]
        times.append(time.monotonic() - started)
        at += 1
    record |= {"sft_steps": at, "sft_step_seconds": round(min(times, default=0.0), 3), "sft_loss": round(loss, 3)}
    bench.generator.refresh()
    adam = train.optimiser(bench.model, 1e-4)
    phases: list[dict[str, Any]] = []
    arm = Arm("calibrate", "grpo", 99)
    while session.left() > 3 and len(phases) < 6:
        rows = choose(data.train, arm, options.prompts, len(phases))
        before = bench.generator.steps, bench.generator.seconds, bench.evaluator.evaluated
        step = train.grpo_step(bench, adam, rows, session.grpo, "rubric", step=len(phases), seed=99)
        tokens = (bench.generator.steps - before[0]) * bench.generator.rows
        phases.append(
            {
                **{name: round(value, 3) for name, value in step["seconds"].items()},
                "tokens_a_second": round(tokens / max(bench.generator.seconds - before[1], 1e-9)),
                "new_evaluations": bench.evaluator.evaluated - before[2],
                "correct": round(step["correct"], 3),
                "length": round(step["length"], 1),
            }
        )
    record |= {"steps": phases, "restarts_after": bench.evaluator.lane.restarts}
    if torch.cuda.is_available():
        record["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    say(json.dumps(record, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "calibrate.json").write_text(json.dumps(record, indent=1))
    return DONE


def pilot(session: Session) -> int:
    """Validation reward after 20 steps at three learning rates; the arms take the best. A rate that was cut off begins
    anew."""
    from coder_experiment import arms, train
    from coder_experiment.arms import Arm
    from coder_experiment.state import append, lines

    bench, folder, options = session.bench, session.folder, session.options
    if not (folder.path / "sft.pt").exists() or "grpo" in folder.config():
        say("a pilot comes after the cold start ('slice --only sft') and before the first arm; nothing was done")
        return WRONG
    data = session.data()
    file = folder.path / "pilot.jsonl"
    known = {record["lr"] for record in lines(file)}
    asked = arms.some(data.validation, 64, 11)
    longest = 0.0
    for lr in (rate for rate in RATES if rate not in known):
        arms.start_from_sft(bench, folder, session.base)
        adam = train.optimiser(bench.model, lr)
        for step in range(PILOT_STEPS):
            if session.left() < max(5.0, 3 * longest):
                return LEFT
            began = time.monotonic()
            rows = arms.choose(data.train, Arm("pilot", "grpo", 100), options.prompts, step)
            train.grpo_step(bench, adam, rows, replace(session.grpo, lr=lr), "rubric", step=step, seed=100)
            longest = max(longest, time.monotonic() - began)
        found = train.rollouts(bench, asked, 4, "rubric", 990_000)
        record = {"lr": lr, **train.summary(found, 4)}
        append(file, record)
        say(json.dumps({key: record[key] for key in ("lr", "reward", "correct", "partial_hack_of_correct")}))
    best = max(lines(file), key=lambda record: (record["reward"], record["lr"] == USUAL_RATE))
    folder.settle(pilot_lr=best["lr"])
    return DONE


def table(folder: Any) -> str:
    """A short one of what is there."""
    from coder_experiment.state import lines

    rows = ["model                 n      reward  rule    correct  hack   partial"]
    for path in sorted(folder.path.glob("results/*.jsonl")):
        records = [r for r in lines(path) if not r.get("dropped")]
        n, correct = max(len(records), 1), max(sum(r["correct"] for r in records), 1)
        rows.append(
            f"{path.stem:<20} {n:>5} {sum(r['reward'] for r in records) / n:>9.3f}"
            f" {sum(r['rule_reward'] for r in records) / n:>7.3f} {sum(r['correct'] for r in records) / n:>8.3f}"
            f" {sum(r['hack'] for r in records) / n:>6.3f} {sum(r['partial_hack'] for r in records) / correct:>8.3f}"
        )
    return "\n".join(rows)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def main(given: list[str] | None = None) -> int:
    """Run a command: 0 done, 2 wrong use, 3 something is left. Whatever ends it but a kill, the state is packed."""
    began = time.monotonic()
    options = arguments(given)
    if options.command == "analyse":
        from coder_experiment.analyse import NothingTested, write

        try:
            write(options.state, options.out or options.state, options.seed)
        except NothingTested as error:
            say(str(error))
            return WRONG
        say((options.out or options.state).joinpath("coder_experiment.md").read_text())
        return DONE
    if options.command == "merge":
        from coder_experiment import state

        for other in options.others:
            try:
                say(f"{other}: {', '.join(state.merge(options.state, other)) or 'nothing new'}")
            except state.OtherExperiment as error:
                say(str(error))
                return WRONG
        if options.out is not None:
            state.pack(options.state, options.out)
        return DONE
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    # Whoever limits a command's time sends these before the kill: the state is packed then.
    for number in ENDING:
        signal.signal(number, _end)
    from coder_experiment.arms import UnknownArm, wanted
    from coder_experiment.evaluate import OutOfTime

    try:
        wanted(options.only, options.seeds)
    except UnknownArm as error:
        say(f"--only: {error}")
        return WRONG
    session = Session(options, began)
    try:
        if options.command == "calibrate":
            try:
                return calibrate(session)
            except OutOfTime as error:
                say(f"{error}; give more --minutes")
                return LEFT
        return recorded(session, {"slice": slice_, "pilot": pilot}[options.command])
    finally:
        session.close()


def _end(number: int, _: object) -> None:
    """End the command. What is packed then is not cut off by another signal but the kill."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def recorded(session: Session, command: Callable[[Session], int]) -> int:
    """Run a command, write down that it was begun and how it ended, and pack the state."""
    from provenance import gpu_provenance

    from coder_experiment import state
    from coder_experiment.evaluate import OutOfTime

    file, name = session.folder.path / "slices.jsonl", session.options.command
    # Commands that begin in the same second on two GPUs of a machine are told apart by what each of them sees.
    provenance = gpu_provenance() | {"visible": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    state.append(file, {"command": name, "begun": True} | provenance)
    code: int | str = "failed"
    evaluator = session.bench.evaluator
    try:
        try:
            code = command(session)
        except OutOfTime as error:
            say(str(error))
            code = LEFT
        except state.OtherExperiment as error:
            say(str(error))
            code = WRONG
        return code
    finally:
        seconds = round(time.monotonic() - session.began, 1)
        rate = round(60 * evaluator.evaluated / max(evaluator.seconds, 1e-9))
        facts = {"evaluations": evaluator.evaluated, "evaluations_a_minute": rate, "restarts": evaluator.lane.restarts}
        state.append(file, {"command": name, "seconds": seconds, "code": code} | facts | provenance)
        for part in session.pack():
            say(f"{part.name}: {part.stat().st_size >> 20} MiB")
        say(table(session.folder))
        left = "something is left; give the same command again"
        say("done" if code == DONE else left if code == LEFT else f"ended: {code}")


if __name__ == "__main__":
    sys.exit(main())
