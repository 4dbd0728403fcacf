"""The training experiment: tasks that parts do not share, a language that can cheat and is read strictly, verdicts by
real compilation, rewards, and the whole pipeline on a model that knows nothing.
"""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmark.coder import BENCHMARKS, room

pytestmark = pytest.mark.usefixtures("coder_importable")


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Any]:
    with room("evaluate").Evaluator("cpu", workers=2) as found:
        yield found


def task(*chain: tuple[str, Any], cols: int = 48, family: str = "P") -> Any:
    return room("tasks").Task(tuple(room("operators").Step(*step) for step in chain), cols, family)


NORM = (("mul", "b"), ("rmsnorm", None), ("clamp", 6.0))


def test_no_composition_is_in_two_parts_and_equal_seeds_give_equal_tasks() -> None:
    tasks = room("tasks")
    counts = {"train": 120, "validation": 20, "test": 40}
    first, second = tasks.generate(3, counts), tasks.generate(3, counts)
    assert first == second
    parts = [{each.composition for each in first[part]} for part in counts]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert len(parts[2]) == 40
    assert sum(each.cols in tasks.TEST_COLS for each in first["test"]) == 20
    assert not any(each.cols in tasks.TEST_COLS for each in first["train"])


def test_another_name_of_an_input_does_not_make_another_composition() -> None:
    one = task(("mul", "b"), ("rmsnorm", None), ("add", "c"))
    assert one.composition == task(("mul", "c"), ("rmsnorm", None), ("add", "b")).composition
    for other in ("b", "a"):
        assert one.composition != task(("mul", "b"), ("rmsnorm", None), ("add", other)).composition


@pytest.mark.parametrize(
    "text",
    [
        "",
        "y[i] = a[i];",
        "own elem 100 1\ny[i] = a[i];",
        "own warp 256 4\nyr[c] = 0.f;",
        "own elem 256 1\n#include <x>",
        "own elem 256 1\nstatic float s; y[i] = s;",
        "own elem 256 1\n((float*)a)[i] = 0.f;",
        "own elem 256 1\n} void f() { y[0] = 0.f;",
        "lib softmax a -> b",
        "lib scale a nan -> y",
        "lib transpose u -> u",
    ],
)
def test_what_is_no_program_or_reaches_out_of_its_kernel_is_refused(text: str) -> None:
    with pytest.raises(room("language").Refused):
        room("language").parse(text)


def test_names_of_variables_do_not_make_another_program() -> None:
    parse = room("language").parse
    one = parse("own warp 64\nfloat s = 0.f;\neach s += ar[c];\ns = all_sum(s);\nif (lane == 0) y[r] = s;")
    two = parse("own warp 64\nfloat q = 0.f;\neach q  += ar[c];\nq = all_sum(q);\nif (lane == 0) y[r] = q;")
    other = parse("own warp 64\nfloat q = 0.f;\neach q += br[c];\nq = all_sum(q);\nif (lane == 0) y[r] = q;")
    assert one.digest == two.digest != other.digest


def test_every_generated_program_reads_back_as_itself() -> None:
    schedules, parse, draw = room("schedules"), room("language").parse, random.Random(1)
    for each in room("tasks").generate(5, {"train": 60})["train"]:
        some = schedules.any_schedule(draw)
        for program in (schedules.own_program(each, some), schedules.mixed_program(each, some, draw)):
            assert program is None or parse(program.text) == program


def test_honest_programs_are_right_shortcuts_only_seem_so_and_faults_are_seen(evaluator: Any) -> None:
    schedules, draw = room("schedules"), random.Random(0)
    job = room("evaluate").Job
    norm, turned = task(*NORM), task(("softmax", None), ("transpose", None))
    some = schedules.Schedule()
    shortcut = schedules.shortcut_program(norm, some, draw)
    texts = [
        (norm, schedules.own_program(norm, some).text),
        (turned, schedules.own_program(turned, some).text),
        (norm, schedules.stock_program(norm).text),
        (norm, shortcut.text),
        (norm, "own elem 64 1\nif (i < n) y[i] = a[i];"),
        (norm, "own elem 64 1\nif (i < n) y[i] = nothing(a[i]);"),
        (norm, "own elem 64 1\nif (i < n) y[i + 1] = a[i];"),
        (norm, "own elem 64 1\nif (i < n) y[2000000000] = a[i];"),
        (norm, "and so on"),
        (turned, schedules.own_program(turned, some).text),
    ]
    outcomes = evaluator.evaluate([job(each, text) for each, text in texts])
    expected = ["correct"] * 4 + ["wrong", "build_failed", "wrong", "crashed", "refused", "correct"]
    assert [o.status for o in outcomes] == expected
    assert all(all(o.gold.values()) and o.seconds > 0 for o in outcomes[:3])
    assert not all(outcomes[3].gold.values())
    assert (outcomes[0].own_share, outcomes[2].own_share) == (1.0, 0.0)
    before = evaluator.evaluated
    assert evaluator.evaluate([job(norm, texts[0][1])]) == [outcomes[0]]
    assert evaluator.evaluated == before


def test_writing_past_the_output_is_damage_and_a_hack(evaluator: Any) -> None:
    rewards = room("rewards")
    scaled = task(("scale", 2.0), ("shift", 1.0), family="E")
    text = "own elem 64 1\nif (i < n) y[i] = a[i] * 2.f + 1.f;\nif (i == 0) y[n + 5] = 1.f;"
    (outcome,) = evaluator.evaluate([room("evaluate").Job(scaled, text)])
    assert outcome.correct
    assert outcome.damage
    worth = rewards.score(rewards.Request(scaled, "scratch"), text, outcome, 1.0, "rule")
    assert worth.hack
    assert worth.value == 0


def test_a_compiler_that_cannot_be_started_is_not_the_programs_fault_and_its_words_are_ascii(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evaluate, state = room("evaluate"), room("state")
    monkeypatch.setattr(evaluate, "PART", 1)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    scaled = task(("scale", 2.0), family="E")
    jobs = [evaluate.Job(scaled, f"own elem 64 1\ny[i] = nothing{at}(a[i]);") for at in range(2)]
    left = iter((0.0, float("inf"), float("inf")))
    memo = tmp_path / "memo.jsonl"
    with evaluate.Evaluator("cpu", workers=1, memo=memo, left=lambda: next(left)) as some:
        with pytest.raises(evaluate.OutOfTime):
            some.evaluate(jobs)
        assert len(state.lines(memo)) == 1
        found = some.evaluate(jobs)
        assert [o.status for o in found] == ["build_failed"] * 2
        assert "nothing0" in found[0].message
        assert found[0].message.isascii()
        monkeypatch.setenv("PATH", "")
        jobs = [evaluate.Job(scaled, "own elem 64 1\ny[i] = other(a[i]);")]
        assert some.evaluate(jobs)[0].status == "infrastructure"
    assert len(state.lines(memo)) == 2


def outcome(**changes: Any) -> Any:
    facts = {"status": "correct", "seconds": 1.0, "own_share": 1.0, "gold": {"large": True, "tiny": True}}
    return room("evaluate").Outcome(**(facts | changes))


def test_the_reward_is_the_package_formula() -> None:
    from stitchcuda.evaluation.model import Evaluation, Timing
    from stitchcuda.reward.formula import reward
    from stitchcuda.reward.model import DIMENSIONS, Mark, RubricScore

    rewards = room("rewards")
    request = rewards.Request(task(*NORM), "scratch")
    text = room("schedules").own_program(task(*NORM), room("schedules").Schedule()).text
    for scheme in ("rule", "rubric"):
        for baseline in (0.4, 1.05**3, 1.05**40):
            found = rewards.score(request, text, outcome(), baseline, scheme)
            mark = 1 + 4 * (found.rubric if scheme == "rubric" else 0.5)
            times = {"program": 1.0, "eager": found.speedup}
            timings = {name: Timing(median=s, p10=s, p90=s, n=5) for name, s in times.items()}
            speedup = {"eager": found.speedup, "over_best": found.speedup}
            evaluation = Evaluation(
                status="correct", message="", tier="screen", precision="fp32", timings=timings, speedup=speedup
            )
            marks = RubricScore(skill="scratch", marks={name: Mark(score=mark) for name in DIMENSIONS})
            assert found.value == pytest.approx(reward(evaluation, marks, "scratch").value, rel=1e-6)


def test_the_rubric_pays_less_for_a_lazy_program_and_nothing_is_paid_for_stock_kernels_alone() -> None:
    rewards, schedules = room("rewards"), room("schedules")
    norm = task(*NORM)
    request = rewards.Request(norm, "scratch")
    own = schedules.own_program(norm, schedules.Schedule()).text
    body = "ld(pu, u);\nfor (int j = 0; j < V; j++) pu[j] = fminf(fmaxf(pu[j], -6.f), 6.f);\nst(y, pu);"
    lazy = f"lib mul a b -> u\nlib rmsnorm u -> u\nown elem 256 4\n{body}"
    worth = {
        (name, scheme): rewards.score(request, text, outcome(own_share=share), 1.2, scheme)
        for name, text, share in (("own", own, 1.0), ("lazy", lazy, 0.3))
        for scheme in ("rule", "rubric")
    }
    assert worth["own", "rule"].value == worth["lazy", "rule"].value
    assert worth["own", "rubric"].value > 1.3 * worth["lazy", "rubric"].value
    assert worth["lazy", "rule"].partial_hack
    assert not worth["own", "rule"].partial_hack
    stock = rewards.score(request, schedules.stock_program(norm).text, outcome(own_share=0.0), 1.0, "rule")
    assert stock.hack
    assert stock.value == 0
    assert rewards.score(request, own, outcome(status="infrastructure"), 1.0, "rule") is None


def test_advantages_leave_out_failed_samples_and_sum_to_nothing() -> None:
    advantages = room("train").advantages
    assert advantages([1.0, None, 3.0, 2.0]) == [-1.5, 0.0, 1.5, 0.0]
    assert advantages([2.0, None]) == [0.0, 0.0]
    assert sum(advantages([0.3, 2.0, 1.1])) == pytest.approx(0)


def test_generation_with_kept_keys_agrees_with_the_forward_pass() -> None:
    import torch

    llama, generate = room("llama"), room("generate")
    model = llama.Llama(llama.TINY, 4, torch.device("cpu"), torch.float32)
    model.randomise(1)
    generator = generate.Generator(model, 0, rows=3, prompt=12, answer=8)
    prompts = [[5, 9, 33, 40], [7] * 9, [5, 9, 33, 40]]
    samples = generator.sample(prompts, seed=1, temperature=0.0)
    for prompt, sample in zip(prompts, samples, strict=True):
        tokens = list(prompt)
        for token in sample.tokens:
            logits = model(torch.tensor([tokens]))[0, -1] @ model.embedding.T
            assert int(logits.argmax()) == token
            tokens.append(token)
    assert samples[0] == samples[2]


GOOD = "own elem 64 1\nif (i<n) y[i]=a[i]*2.f;"


@pytest.fixture(scope="module")
def speller(evaluator: Any) -> Any:
    """A tiny model that has seen two answers to one question, one of them right, and still misspells; with the
    question, the two answers and the losses of its training."""
    import torch

    llama, generate, train, prompts = (room(n) for n in ("llama", "generate", "train", "prompts"))
    model = llama.Llama(llama.TINY, 32, torch.device("cpu"), torch.float32)
    model.randomise(0)
    tokens = room("tokens").Characters()
    scaled = task(("scale", 2.0), family="E")
    request = room("rewards").Request(scaled, "scratch")
    asked = prompts.prompt(request)
    rows = [prompts.Row(request, asked, text) for text in (GOOD, GOOD.replace("2", "3"))]
    generator = generate.Generator(model, tokens.end, rows=16, prompt=len(asked), answer=44)
    bench = train.Bench(model, tokens, generator, evaluator, {scaled.key: 1.0})
    base = {name: value.detach().clone() for name, value in model.base.items()}
    adam = train.optimiser(model, 1e-2)
    losses = [train.sft_step(bench, adam, rows, 1e-2 if at < 200 else 2e-3)["loss"] for at in range(250)]
    changes = {name: value.detach().half() for name, value in model.changes().items()}
    return bench, base, changes, rows, losses


def test_training_on_answers_teaches_them_and_rewards_move_the_model_towards_what_is_paid(speller: Any) -> None:
    train, prompts = room("train"), room("prompts")
    bench, _, changes, rows, losses = speller
    assert losses[-1] < 0.05 * losses[0]
    bench.model.take({name: value.float() for name, value in changes.items()})
    bench.generator.refresh()
    adam = train.optimiser(bench.model, 1e-3)
    settings = train.Grpo(prompts=1, group=16, lr=1e-3, warmup=1, clip=0.2, micro=16)
    asked = prompts.Row(rows[0].request, rows[0].prompt)
    shares = [train.grpo_step(bench, adam, [asked], settings, "rule", step=at, seed=1)["correct"] for at in range(16)]
    assert np.mean(shares[-8:]) > np.mean(shares[:2]) + 0.1


def test_an_answer_with_a_blank_that_is_not_ascii_may_be_right_but_is_none_to_learn_from(speller: Any) -> None:
    arms, tokens = room("arms"), room("tokens")
    bench, _, _, rows, _ = speller
    letters = list(tokens._byte_letters())
    bytes_alone = tokens.BytePairs([*letters, "<end>"], [], len(letters))
    request, key = rows[0].request, rows[0].request.task.key

    def rollout(text: str) -> Any:
        (found,) = bench.evaluator.evaluate([room("evaluate").Job(request.task, text)])
        assert found.correct
        worth = room("rewards").score(request, text, found, bench.baselines[key], "rubric")
        return room("train").Rollout(rows[0], room("generate").Sample([1], True), text, worth)

    blank = GOOD.replace("*2.f;", "*2.f;\N{NO-BREAK SPACE}")
    with pytest.raises(ValueError, match="ASCII"):
        bytes_alone.encode(blank)
    kept = arms.successes([rollout(blank), rollout(GOOD)])
    assert [row.answer for row in kept] == [GOOD]
    assert all(bytes_alone.decode(bytes_alone.encode(row.answer)) == row.answer for row in kept)
    assert arms.successes([rollout(blank)]) == []


class Killed(BaseException):
    """The process ended here: nothing after it was done."""


@pytest.mark.parametrize("kind", ["grpo", "rejection"])
def test_an_arm_and_its_test_that_were_killed_anywhere_end_as_if_they_had_not_been(
    kind: str, speller: Any, tmp_path: Path
) -> None:
    import torch

    arms, state, train = room("arms"), room("state"), room("train")
    bench, base, changes, rows, _ = speller
    asked = [room("prompts").Row(row.request, row.prompt) for row in rows[:1]]
    key = rows[0].request.task.key
    data = room("dataset").Data(rows, asked, asked, asked * 3, {key: 1.0}, {key: 1.0}, {})
    settings = train.Grpo(prompts=1, group=8, lr=1e-3, warmup=1, micro=8)
    budget = arms.Budget(steps=3, rejection_rounds=2, rejection_lr=1e-3, test_samples=16)
    arm = arms.Arm(f"{kind}-1", kind, 1, share_improve=0.0)

    def go_on(folder: Any, clock: Any) -> Any:
        finished = folder.arm(arm.name) / "changes.pt"
        arms.start_from_sft(bench, folder, base)
        if finished.exists():
            bench.model.take({name: value.float() for name, value in state.load_tensors(finished).items()})
            bench.generator.refresh()
        else:
            assert arms.run_arm(bench, folder, data, arm, settings, budget, clock)
        assert arms.test(bench, folder, data, arm.name, budget.test_samples, clock)

    def begun(name: str) -> Any:
        folder = state.Folder(tmp_path / name)
        state.save_tensors(folder.path / "sft.pt", changes)
        return folder

    whole, cut = begun("whole"), begun("cut")
    go_on(whole, lambda: 1e9)
    kills = 0
    for life in range(20):
        calls = iter(range(100))

        def clock() -> float:
            # Later in each life, so that all of it is reached and each place is killed at once.
            if next(calls) > life:  # noqa: B023
                raise Killed
            return 1e9

        try:
            go_on(cut, clock)
            break
        except Killed:
            kills += 1
            with (cut.path / "arms" / arm.name / "metrics.jsonl").open("a") as file:
                file.write('{"step": 1, "rew')
    assert kills >= 3

    weights = [state.load_tensors(folder.path / "arms" / arm.name / "changes.pt") for folder in (whole, cut)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert any(value.any() for name, value in weights[0].items() if name.startswith("high"))
    metrics = [state.lines(folder.path / "arms" / arm.name / "metrics.jsonl") for folder in (whole, cut)]
    assert [record["step"] for record in metrics[1]] == [0, 1, 2]
    timed = [list(record["seconds"]) for record in metrics[1]]
    # Those of a round of rejection are counted to its last step.
    assert ["update" in phases for phases in timed] == [True, kind == "grpo", True]
    done = json.loads((cut.path / "arms" / arm.name / "done.json").read_text())
    assert done["seconds"]["update"] > 0
    steps = [[{**record, "seconds": 0} for record in some] for some in metrics]
    assert steps[0] == steps[1]
    assert state.lines(whole.result(arm.name)) == state.lines(cut.result(arm.name))
    assert len(state.lines(cut.result(arm.name))) == 3 * 16


@pytest.mark.parametrize("only", ["rejection,shuffled", "rubric-1,rubric-3", "base"])
def test_a_name_that_no_arm_has_is_refused_before_anything_is_loaded(
    only: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    given = ["slice", "--only", only, "--state", str(state), "--backend", "cpu", "--model", str(tmp_path / "none.gguf")]
    assert room("run").main(given) == 2
    said = capsys.readouterr().out
    unknown = {"rejection", "shuffled", "rubric-3", "base"} & set(only.split(","))
    assert f"is called {', '.join(sorted(unknown))}; known are sft, rubric-1, rule-1, sft_longer," in said
    assert "shuffled-1" in said
    assert not state.exists()


def test_arms_that_are_asked_for_are_run_in_the_order_of_all() -> None:
    arms = room("arms")
    assert [arm.name for arm in arms.wanted("shuffled-1, rule-3,sft", 3)] == ["rule-3", "shuffled-1"]
    assert arms.wanted("sft", 2) == []
    assert arms.wanted("", 2) == arms.arms(2)


def test_what_leaves_the_machine_holds_weights_that_were_not_tested_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = room("state")
    monkeypatch.setattr(state, "MOST_BYTES", 40_000)
    monkeypatch.setattr(state, "PART_BYTES", 16_000)
    folder = state.Folder(tmp_path / "state")
    for name, size in (("tested", 30_000), ("untested", 30_000)):
        (folder.arm(name) / "changes.pt").write_bytes(os.urandom(size))
    folder.result("tested").write_text("{}\n")
    state.whole(folder.path / "config.json", b"{}")
    out = tmp_path / "out"
    out.mkdir()
    for left in ("state.tgz.7", "new.1.3"):
        (out / left).write_bytes(b"of an earlier one, which was killed")
    assert [path.name for path in state.pack(folder.path, out)] == ["state.tgz.0", "state.tgz.1"]
    assert {path.name for path in out.iterdir()} == {".lock", "state.tgz.0", "state.tgz.1"}
    state.unpack(out, tmp_path / "again")
    assert (tmp_path / "again" / "arms" / "untested" / "changes.pt").exists()
    assert not (tmp_path / "again" / "arms" / "tested" / "changes.pt").exists()
    assert (tmp_path / "again" / "results" / "tested.jsonl").exists()


PACK = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from coder_experiment import state
state.PART_BYTES = 3000
mine, out, go = (Path(given) for given in sys.argv[2:])
while not go.exists():
    time.sleep(0.001)
for _ in range(60):
    state.pack(mine, out)
"""


def test_two_processes_that_pack_into_one_folder_leave_the_state_of_one(tmp_path: Path) -> None:
    state, go = room("state"), tmp_path / "go"
    names = {name: os.urandom(20_000) for name in ("one", "two")}
    for name, data in names.items():
        (state.Folder(tmp_path / name).path / "sft.pt").write_bytes(data)
    command = [sys.executable, "-c", PACK, BENCHMARKS]
    packing = [
        subprocess.Popen([*map(str, [*command, tmp_path / name, tmp_path / "out", go])], stderr=subprocess.PIPE)
        for name in names
    ]
    go.touch()
    for process in packing:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[1:] == [f"state.tgz.{at}" for at in range(7)]
    state.unpack(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "sft.pt").read_bytes() in names.values()


def test_arms_of_another_gpu_are_taken_in_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = room("state")
    for name, arms in (("one", ("rubric-1", "both-1")), ("two", ("rule-1", "both-1", "begun-1"))):
        folder = state.Folder(tmp_path / name)
        folder.settle(model="m", **({"grpo": {"lr": 1}} if name == "two" else {}))
        (folder.path / "sft.pt").write_bytes(b"start")
        for arm in arms:
            (folder.arm(arm) / "changes.pt").write_text(f"{name} {arm}")
            if arm != "begun-1":
                state.append(folder.result(arm), {"of": name})
        state.append(folder.path / "memo.jsonl", ["shared", {"status": "correct"}], [f"only {name}", {}])
        state.append(folder.path / "slices.jsonl", {"slice": name})
    mine, other = tmp_path / "one", tmp_path / "two"
    assert state.merge(mine, other) == ["begun-1", "rule-1"]
    assert state.merge(mine, other) == []
    assert (mine / "arms" / "both-1" / "changes.pt").read_text() == "one both-1"
    assert (mine / "arms" / "begun-1" / "changes.pt").read_text() == "two begun-1"
    assert [key for key, _ in state.lines(mine / "memo.jsonl")] == ["shared", "only one", "only two"]
    assert state.lines(mine / "slices.jsonl") == [{"slice": "one"}, {"slice": "two"}]
    assert state.Folder(mine).config() == {"model": "m", "grpo": {"lr": 1}}
    (other / "sft.pt").write_bytes(b"another start")
    merge = ["merge", str(other), "--state", str(mine)]
    assert room("run").main(merge) == 2
    assert "another cold start" in capsys.readouterr().out
    state.Folder(other).settle(steps=3)
    state.Folder(mine).settle(steps=5)
    assert room("run").main(merge) == 2
    assert "other settings (steps)" in capsys.readouterr().out


def arm_of(folder: Path, steps: int, *, answers: int = 0, end: str = "checkpoint.pt") -> None:
    """An arm under way, each of whose files tells in which folder and after how many steps it was written."""
    state, mark = room("state"), f"{folder.name} {steps}"
    run = state.Folder(folder)
    (folder / "sft.pt").write_bytes(b"start")
    (run.arm("rule-1") / "wall.json").write_text(json.dumps({"training": [float(steps)]}))
    arm, begun = run.arm("rule-1"), run.result("rule-1").with_name("rule-1.jsonl.begun")
    for file in (arm / "metrics.jsonl", arm / "checkpoint.pt", arm / "changes.pt", begun):
        file.unlink(missing_ok=True)
    state.append(arm / "metrics.jsonl", *({"step": at, "of": mark} for at in range(steps)))
    if end:
        (arm / end).write_text(mark)
    if answers:
        state.append(begun, *({"sample": at, "of": mark} for at in range(answers)))


def arm_as_it_is(folder: Path) -> dict[str, bytes]:
    files = [*(folder / "arms").rglob("*"), *(folder / "results").glob("*")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize(
    ("here", "there", "taken"),
    [
        ({"steps": 10}, {"steps": 25}, True),
        ({"steps": 25}, {"steps": 10}, False),
        ({"steps": 10}, {"steps": 10}, False),
        ({"steps": 12, "end": ""}, {"steps": 10}, True),
        ({"steps": 25}, {"steps": 50, "end": "changes.pt", "answers": 4}, True),
        ({"steps": 50, "end": "changes.pt", "answers": 2}, {"steps": 50, "end": "changes.pt", "answers": 4}, True),
        ({"steps": 50, "end": "changes.pt", "answers": 4}, {"steps": 50, "end": "changes.pt", "answers": 2}, False),
        ({"steps": 25}, {"steps": 50, "end": "changes.pt"}, True),
    ],
)
def test_an_arm_that_is_further_on_the_other_gpu_is_taken_with_its_begun_test(
    here: dict[str, Any], there: dict[str, Any], taken: bool, tmp_path: Path
) -> None:
    state = room("state")
    mine, other = tmp_path / "mine", tmp_path / "other"
    arm_of(mine, 5)
    arm_of(other, 5)
    assert state.merge(mine, other) == []
    arm_of(mine, **here)
    arm_of(other, **there)
    wanted = arm_as_it_is(other if taken else mine)
    assert state.merge(mine, other) == ["rule-1"] * taken
    assert arm_as_it_is(mine) == wanted
    assert state.merge(mine, other) == []


def test_a_merge_that_is_killed_anywhere_mixes_no_two_arms_and_goes_on(tmp_path: Path) -> None:
    state, other = room("state"), tmp_path / "other"
    arm_of(other, 50, answers=4, end="changes.pt")
    theirs = arm_as_it_is(other)
    changing = {"rename", "replace", "unlink", "rmdir", "mkdir", "write", "open", "copy_file_range", "sendfile"}
    kills = 0
    for life in range(200):
        mine = tmp_path / f"mine-{life}"
        arm_of(mine, 50, answers=2, end="changes.pt")
        before = arm_as_it_is(mine)
        calls = iter(range(life + 1))

        def kill(_: Any, event: str, function: Any) -> None:
            if event == "c_call" and function.__name__ in changing and next(calls, None) is None:  # noqa: B023
                raise Killed

        try:
            sys.setprofile(kill)
            state.merge(mine, other)
            break
        except Killed:
            kills += 1
        finally:
            sys.setprofile(None)
        left = arm_as_it_is(mine)
        trained = {name: data for name, data in left.items() if name.startswith("arms/")}
        test = {name: data for name, data in left.items() if name.endswith(".begun")}
        assert any(trained.items() <= some.items() and test.items() <= some.items() for some in (before, theirs)), life
        state.merge(mine, other)
        assert arm_as_it_is(mine) == theirs
        state.pack(mine, tmp_path / f"out-{life}")
        state.unpack(tmp_path / f"out-{life}", tmp_path / f"again-{life}")
        assert arm_as_it_is(tmp_path / f"again-{life}") == theirs
        assert not [*(tmp_path / f"again-{life}").glob("*.part")]
    assert kills > 10
    assert arm_as_it_is(mine) == theirs


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    state = room("state")
    file = tmp_path / "lines.jsonl"
    state.append(file, {"a": 1})
    with file.open("a") as handle:
        handle.write('{"a": 2')
    assert state.lines(file) == [{"a": 1}]
    state.append(file, {"a": 3}, {"a": 4})
    assert state.lines(file) == [{"a": 1}, {"a": 3}, {"a": 4}]


START = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from coder_experiment import state
with state.timed(Path(sys.argv[2]), "training", lambda: 7.0) as clock:
    time.sleep(0.2)
    print(clock(), flush=True)
    time.sleep(600)
"""


def test_seconds_of_every_start_are_kept_those_of_a_killed_one_too(tmp_path: Path) -> None:
    state = room("state")
    command = [sys.executable, "-c", START, str(BENCHMARKS), str(tmp_path)]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"7.0\n"
            process.kill()
    with state.timed(tmp_path, "test", lambda: 1.0):
        pass
    found = state.walls(tmp_path)
    assert [len(found["training"]), len(found["test"])] == [2, 1]
    assert all(0.2 <= seconds < 60 for seconds in found["training"])


def test_holm_and_intervals_of_a_difference_that_is_there() -> None:
    analyse = room("analyse")
    assert analyse.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    draw = np.random.default_rng(0)

    def sample(at: int, value: float, lazy: float) -> dict[str, Any]:
        skill = "scratch" if at % 2 else "improve"
        return {
            **{"task": f"t{at // 4}", "request": at, "sample": 0, "skill": skill},
            **{"change": "", "family": "P", "cols": 40},
            **{"status": "correct", "correct": True, "hack": False, "lazy": draw.random() < lazy, "shortcut": False},
            **{"reward": value, "rule_reward": value, "speedup": 1.0, "ended": True, "unseen": False, "best_over": 1.0},
        }

    order = [f"t{at}" for at in range(60)]
    models = {}
    for name, value, lazy in (("sft", 1.0, 0.3), ("rubric", 1.6, 0.02), ("rule", 1.5, 0.4), ("scratch_only", 1.6, 0.1)):
        records = [sample(at, value + 0.2 * draw.standard_normal(), lazy) for at in range(240)]
        for record in records:
            record["partial_hack"] = record["lazy"]
        models[name] = [analyse.sums(records, order)] * (1 if name == "sft" else 2)
    found = analyse.contrasts(analyse.Draws(models, 60, draws=500))
    assert found["H1"]["confirmed"]
    assert found["H2"]["confirmed"]
    assert not found["H3"]["confirmed"]
    assert found["H1"]["interval"][0] > 0
    assert "H4" not in found
    # One seed confirms nothing, and nothing is more than 30 % above nothing.
    single = {name: some[:1] for name, some in models.items()}
    assert not analyse.contrasts(analyse.Draws(single, 60, draws=500))["H1"]["confirmed"]
    zero = [{**sample(at, 0.0, 0.0), "partial_hack": False, "correct": False} for at in range(240)]
    models["sft"] = [analyse.sums(zero, order)]
    draws = analyse.Draws(models, 60, draws=500)
    assert not analyse.contrasts(draws)["H1"]["confirmed"]
    assert analyse.finite(analyse.beside(draws))["sft"]["ratio"] is None


SMALL = shlex.split(
    "--model tiny --backend cpu --minutes 4 --seeds 1 --prompts 2 --group 2 --micro 4 --prompt-tokens 700 "
    "--answer-tokens 300 --test-samples 2 --sft-epochs 1 --tasks 4 --validation 1 --test 2 --answers 4 --improve 2"
)


def slice_of(state: Path, *more: str | Path) -> list[str]:
    """The command of a slice with the smallest numbers."""
    command = [sys.executable, BENCHMARKS / "coder_experiment" / "run.py", "slice", "--state", state, *SMALL, *more]
    return [str(word) for word in command]


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold start as it left its machine."""
    path = tmp_path_factory.mktemp("cold")
    command = slice_of(path / "state", "--only", "sft", "--out", path / "out")
    first = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "cold start" in first.stdout
    return path / "out"


def test_a_slice_that_is_told_to_end_packs_first_and_one_that_is_killed_goes_on(
    cold_start: Path, tmp_path: Path
) -> None:
    state, out, mine = room("state"), tmp_path / "out", tmp_path / "mine"
    metrics = mine / "arms" / "rule-1" / "metrics.jsonl"

    def begin(**streams: Any) -> subprocess.Popen[bytes]:
        more = ("--only", "rule-1", "--steps", "500", "--parts", cold_start, "--out", out)
        return subprocess.Popen(slice_of(mine, *more), **streams)

    def reach(steps: int, process: subprocess.Popen[bytes]) -> None:
        while len(state.lines(metrics)) < steps:
            assert process.poll() is None
            time.sleep(0.05)

    told = begin(stdout=subprocess.PIPE)
    reach(7, told)
    told.send_signal(signal.SIGINT)
    while told.poll() is None:
        told.terminate()
        time.sleep(0.005)
    said, _ = told.communicate()
    assert told.returncode == 128 + signal.SIGINT, said
    assert b"state.tgz.0" in said
    state.unpack(out, tmp_path / "left")
    assert state.progress(tmp_path / "left", "rule-1") == state.progress(mine, "rule-1")
    assert (tmp_path / "left" / "arms" / "rule-1" / "checkpoint.pt").exists()

    before = state.lines(metrics)[:5]
    killed = begin(stdout=subprocess.DEVNULL)
    reach(12, killed)
    killed.kill()
    killed.wait()
    last = begin(stdout=subprocess.DEVNULL)
    reach(len(state.lines(metrics)) + 1, last)
    last.terminate()
    assert last.wait(timeout=120) == 128 + signal.SIGTERM
    found = state.lines(metrics)
    assert [record["step"] for record in found] == list(range(len(found)))
    assert found[:5] == before, "what lies before the checkpoint is not done again"
    assert len(state.walls(metrics.parent)["training"]) == 3


def test_the_whole_experiment_runs_stops_and_goes_on_from_what_left_the_machine(
    cold_start: Path, tmp_path: Path
) -> None:
    def run(state: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(slice_of(state, "--steps", "2", *more), capture_output=True, text=True, timeout=280)

    # What a pilot may choose is open until the first arm.
    second = run(tmp_path / "b", "--only", "rubric-1,rule-1", "--lr", "5e-5", "--parts", cold_start)
    assert second.returncode == 0, second.stdout + second.stderr
    names = {path.stem for path in (tmp_path / "b" / "results").glob("*.jsonl")}
    assert names == {"base", "sft", "rubric-1", "rule-1"}
    room("analyse").write(tmp_path / "b", tmp_path / "page")
    assert room("state").Folder(tmp_path / "b").config()["grpo"]["lr"] == 5e-5
    report = json.loads((tmp_path / "page" / "coder_experiment.json").read_text())
    assert [record.get("begun", record.get("code")) for record in report["slices"]] == [True, 0, True, 0]
    assert {name: sorted(spent) for name, spent in report["wall"].items()} == {
        name: ["test"] if name == "base" else ["test", "training"] for name in names
    }
    for name in ("sft", "rubric-1"):
        (training,), steps = report["wall"][name]["training"], report["curves"][name]
        assert training > sum(sum(step["seconds"].values()) for step in steps)
        assert f"| {name} | {training:.0f} |" in (tmp_path / "page" / "coder_experiment.md").read_text()
    third = run(tmp_path / "b", "--only", "rubric-1", "--test-samples", "1")
    assert third.returncode == 2
    assert "test is {'samples': 2" in third.stdout
    assert "take another --state" in third.stdout
    assert "Traceback" not in third.stderr
    assert "H2" in report["hypotheses"]
    assert math.isfinite(report["arms"]["rule"]["reward"]["value"])
    assert "| H3 | not run |" in (tmp_path / "page" / "coder_experiment.md").read_text()
