"""What a model is told of the run that it takes part in, read from the requests of small runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.records import NAME, read_records
from tests.support.scripted_endpoint import Answer, Request, text
from tests.workflow.model_run import FORM, Sent, go, judged, plan, role_of, run, step, wrote
from tests.workflow.world import ToyBench, config


def of(sent: list[Sent], role: str) -> list[str]:
    """The messages to one role, in order."""
    return [one.message for one in sent if one.role == role]


def improving(message: str) -> Answer:
    """1.2x, then 1.5x from that."""
    return wrote("correct 1.5" if "correct 1.2" in message else "correct 1.2")


def test_every_role_knows_what_to_beat_the_best_so_far_and_the_budget_that_is_left(tmp_path: Path) -> None:
    _, sent, _ = run(
        tmp_path,
        plans=[plan(one=[step("rows", ["mul"]), step("more rows", ["add"])]), plan(two=[step("other", ["mul"])])],
        programs=improving,
        iterations=4,
        tokens=200_000,
        usd=2.0,
    )
    for message in of(sent, "planner") + of(sent, "coder") + of(sent, "verifier"):
        assert "to beat: compile, 8 ms a call, the fastest stock option (eager 10 ms)" in message
    first, second = of(sent, "coder")[:2]
    assert "best program so far: none yet" in first
    assert "best program so far: program 1, 6.67 ms a call, 1.20x over the fastest stock option" in second
    assert (
        "best program so far: program 2, 5.33 ms a call, 1.50x over the fastest stock option as timed beside it (8 ms)"
        in of(sent, "planner")[1]
    )
    first_plan, again = of(sent, "planner")
    assert "Left of the budget: 4 programs (repairs apart), 60 min, 200k tokens, $2.00, 1 further plan." in first_plan
    assert "Left of the budget: 2 programs (repairs apart)" in again
    assert "0 further plans" in again
    assert "Left of the budget: 3 programs (repairs apart)" in of(sent, "verifier")[0]
    assert not any("Left of the budget" in message for message in of(sent, "coder"))


def refusing(message: str) -> Answer:
    """A first program, and nothing for the second step."""
    if "Step 2 of 3" in message:
        return text("**NO GAIN**\n\nThe adds take 2 % of the call,\nso 1.02x is the most.")
    return improving(message)


def test_a_step_that_the_coder_refuses_is_given_up_with_its_reason(tmp_path: Path) -> None:
    steps = [step("rows", ["mul"]), step("adds", ["add"]), step("more", ["relu"])]
    plans = [plan(one=steps), plan(two=[step("other", ["mul"])])]
    result, sent, folder = run(tmp_path, plans=plans, programs=refusing)
    assert result.over_best == 1.5
    coder = of(sent, "coder")
    assert ["Step 1 of 3" in coder[0], "Step 2 of 3" in coder[1], "Step 3 of 3" in coder[2]] == [True] * 3
    reason = "refused. The adds take 2 % of the call, so 1.02x is the most"
    assert reason in of(sent, "verifier")[1]
    assert reason in of(sent, "planner")[1]
    assert len(of(sent, "verifier")) == len(of(sent, "coder")) - 1
    records = read_records(folder.path / NAME)[0]
    written = [record.data for record in records if record.kind == "program"]
    assert [program.get("refused", "") != "" for program in written] == [False, True, False, False]
    assert "refused" not in written[0]
    assert [record.data["attempt"]["status"] for record in records if record.kind == "attempt"].count("refused") == 1


def test_a_refusal_without_a_reason_or_with_code_is_asked_again(tmp_path: Path) -> None:
    answers = iter(
        [text("NO GAIN"), text(f"NO GAIN: none at all.\n{FORM.format(source='x = 1')}"), wrote("correct 1.2")]
    )
    result, sent, _ = run(tmp_path, plans=[plan(one=[step("rows", ["mul"])])], programs=lambda _: next(answers))
    assert result.over_best == 1.2
    assert len(of(sent, "coder")) == 3


def test_comparison_systems_have_no_refusals(tmp_path: Path) -> None:
    answers = iter([text("NO GAIN: nothing is to be had here"), wrote("correct 1.2")])
    plans = [plan(one=[step("rows", ["mul"])])]
    _, sent, _ = run(tmp_path, plans=plans, programs=lambda _: next(answers), agents="single", iterations=1)
    assert "NO GAIN" not in next(one.instructions for one in sent if one.role == "coder")
    assert len(of(sent, "coder")) == 2


def test_the_verifier_sees_what_the_coder_says_and_what_it_changed(tmp_path: Path) -> None:
    def programs(message: str) -> Answer:
        if "The program that failed" in message:
            return wrote("correct 1.2", said="The bound of the loop was wrong.")
        return wrote("correct 1.5" if "Step 2 of 2" in message else "wrong 1", said="Rows stay in the cache.")

    steps = [step("rows", ["mul"]), step("more", ["add"])]
    _, sent, _ = run(tmp_path, plans=[plan(one=steps)], programs=programs)
    first, repaired, second = of(sent, "verifier")
    assert "Its author says (a claim): Rows stay in the cache.\n" in first
    assert "What changed" not in first
    assert "Its author says (a claim): The bound of the loop was wrong.\n" in repaired
    assert "## What changed from program 1\n" in repaired
    assert "-# wrong 1\n+# correct 1.2\n" in repaired
    assert "## What changed from program 2\n" in second
    assert "-# correct 1.2\n+# correct 1.5\n" in second


def test_a_step_that_builds_on_a_program_may_edit_it(tmp_path: Path) -> None:
    def programs(message: str) -> Answer:
        if "Step 2 of 2" not in message:
            return wrote("correct 1.2")
        edit = "<<<<<<< SEARCH\n# correct 1.2\n=======\n# correct 1.5\n>>>>>>> REPLACE"
        return text(f"### program.py\n```\n{edit}\n```\n")

    steps = [step("rows", ["mul"]), step("more", ["add"])]
    result, sent, _ = run(tmp_path, plans=[plan(one=steps)], programs=programs)
    assert result.over_best == 1.5
    coder = [one for one in sent if one.role == "coder"]
    assert ["1. Edits, for a local change" in one.instructions for one in coder] == [False, True]


def test_a_reply_whose_parts_disagree_may_be_corrected_by_edits_of_it(tmp_path: Path) -> None:
    bare = "# correct 1.2\nfrom bindings import rows\nclass ModelNew:\n    pass\n"
    edit = "<<<<<<< SEARCH\nfrom bindings import rows\n=======\nimport math\n>>>>>>> REPLACE"
    whole = f"Rows stay in the cache.\n\n{FORM.format(source=bare)}"
    answers = iter([text(whole), text(f"No launcher is needed.\n\n### program.py\n```\n{edit}\n```\n")])
    result, sent, folder = run(tmp_path, plans=[plan(one=[step("rows", ["mul"])])], programs=lambda _: next(answers))
    assert result.over_best == 1.2
    assert "import math" in (folder.path / "programs" / "001" / "program.py").read_text()
    assert len(of(sent, "coder")) == 2
    assert "Its author says (a claim): Rows stay in the cache. No launcher is needed.\n" in of(sent, "verifier")[0]


def beside_each_other(message: str) -> Answer:
    """Two drafts of one idea, and another idea, each with a second program."""
    if "Idea: other." in message:
        return wrote("correct 1.1", said="Columns instead.")
    if "to be made faster" in message:
        return wrote("correct 1.25" if "correct 1.2\n" in message else "correct 1.35", said="Wider loads.")
    return wrote("correct 1.3" if "draft 2 of 2" in message else "correct 1.2", said="Rows stay in the cache.")


def test_a_coder_sees_what_its_siblings_did_in_earlier_rounds_and_nothing_of_its_own_round(tmp_path: Path) -> None:
    plans = [plan(rows=[step("rows", ["mul"])], other=[step("columns", ["mul"], fusion="one kernel")])]

    def verdicts(message: str) -> Answer:
        first = any(f"```python\n# correct {speed}\n" in message for speed in (1.2, 1.3))
        return judged("optimise" if first else "next", "bytes")

    # Numbers of programs that are written side by side come in any order.
    _, sent, _ = run(tmp_path, plans=plans, programs=beside_each_other, verdicts=verdicts, drafts=2, parallel=8)
    drafts = [message for message in of(sent, "coder") if "to be made faster" not in message]
    later = [message for message in of(sent, "coder") if "to be made faster" in message]
    assert len(drafts) == 4
    assert all("What was tried" not in message for message in drafts)
    assert len(later) == 2
    for message in later:
        told = message.partition("## What was tried")[2]
        assert re.search(
            r'- program \d, draft 1, "rows": correct, 6.67 ms, 1.20x over the best stock option. '
            r"It did: Rows stay in the cache. bytes\n",
            told,
        )
        assert re.search(r'draft 2, "rows": correct, 6.15 ms, 1.30x', told)
        assert re.search(r'of another idea, "other": correct, 7.27 ms, 1.10x .* It did: Columns instead', told)
        assert "1.35x" not in message
        assert "1.25x" not in message


def flat(message: str) -> Answer:
    """The first step gains, the second does not, and gives the same files twice."""
    if "more rows" in message or "Step 2 of 2" in message:
        return wrote("correct 1.21")
    return wrote("correct 1.2")


def test_the_planner_sees_which_steps_gave_nothing_and_how_its_predictions_came_out(tmp_path: Path) -> None:
    steps = [step("one pass over rows", ["mul", "add"], gain=3.0), step("SIMD exponentials", ["exp", "add"], gain=2.0)]
    plans = [plan(one=steps), plan(two=[step("a polynomial exp", ["add", "exp"])])]
    _, sent, _ = run(tmp_path, plans=plans, programs=flat)
    first, again = of(sent, "planner")
    assert "gave nothing" not in first
    assert "as predicted" not in first
    futile = again.partition("## Steps that gave nothing so far")[2]
    assert '- "SIMD exponentials" (vectors on exp, add), program 2: 1.01x of what it started from at best\n' in futile
    assert '"one pass over rows" (' not in futile
    told = '"one pass over rows" 3.00x, 1.50x (program 1); "SIMD exponentials" 2.00x, 1.01x (program 2). In the median'
    assert f"Gains as predicted and as measured: {told} 1.99x as much was predicted as came" in again
    assert (
        "- predicted gain: 3.00x for the whole program; measured: 1.50x of what it started from"
        in of(sent, "verifier")[0]
    )
    alike = next(message for message in of(sent, "coder") if "a polynomial exp" in message)
    assert "1.20x over" in alike
    assert '- program 2 of another idea, "one": correct, 6.61 ms, 1.21x over' in alike


def test_equal_files_are_measured_once_and_every_role_is_told(tmp_path: Path) -> None:
    steps = [step("one pass over rows", ["mul"]), step("SIMD", ["exp"])]
    plans = [plan(one=steps), plan(two=[step("more rows", ["add"])])]
    bench = ToyBench()
    _, sent, _ = run(tmp_path, plans=plans, programs=flat, bench=bench)
    assert bench.asked.count("evaluate screen correct 1.21") == 1
    assert "its files are those of program 2" in of(sent, "verifier")[2]
    third = plan(three=[step("further", ["mul"])])
    _, sent, _ = run(tmp_path / "b", plans=[*plans, third], programs=flat)
    again = ", the files of program 2 again, not measured anew"
    assert again in of(sent, "planner")[2]
    assert again in of(sent, "coder")[-1]


def test_what_is_told_of_attempts_is_not_journaled_with_them(tmp_path: Path) -> None:
    _, _, folder = run(tmp_path, plans=[plan(one=[step("rows", ["mul"])])], programs=flat)
    noted = [record.data["attempt"] for record in read_records(folder.path / NAME)[0] if record.kind == "attempt"]
    names = {"number", "idea", "step", "status", "speedup", "over_best", "diagnosis", "suggestion"}
    assert [set(attempt) for attempt in noted] == [names]


class Disturbed(ToyBench):
    """A machine whose clock is not steady, and on which profiled calls take twice their time."""

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        found = super().evaluate(program, tier)
        wide = {
            name: timing.model_copy(update={"low": 0.9 * timing.median, "high": 1.2 * timing.median})
            for name, timing in found.timings.items()
        }
        return found.model_copy(update={"timings": {**wide, "compile": wide["eager"]}} if wide else {})

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        found = super().profile(program, counters)
        told = {"suggestion": "fuse them (predicted 1.98x: saves 5 ms of 10 ms)"}
        return found.model_copy(update=told)


def test_a_figure_of_a_disturbed_machine_is_said_to_be_doubtful_and_by_how_much(tmp_path: Path) -> None:
    plans = [plan(one=[step("rows", ["mul"])])]

    def verdicts(message: str) -> Answer:
        return judged("optimise" if "correct 1.2" in message else "next")

    _, sent, _ = run(tmp_path / "a", plans=plans, programs=improving, verdicts=verdicts, bench=Disturbed())
    told = (
        "- **doubtful**: its median is known to ±15% only, that of compile is known to ±15% only; over the best stock"
    )
    assert told in of(sent, "verifier")[0]
    assert told in of(sent, "coder")[1]
    _, steady, _ = run(tmp_path / "b", plans=plans, programs=improving, verdicts=verdicts)
    assert not any("doubtful**" in one.message for one in steady)


def test_a_profile_of_other_calls_is_said_to_be_doubtful_and_predicts_no_gain(tmp_path: Path) -> None:
    plans = [plan(one=[step("rows", ["mul"])]), plan(two=[step("other", ["mul"])])]
    _, sent, _ = run(tmp_path, plans=plans, programs=improving, bench=Disturbed())
    first, again = of(sent, "planner")
    assert "doubtful" not in first
    assert "fuse them (predicted 1.98x" in first
    verifier = of(sent, "verifier")[0]
    assert "this profile is doubtful: its calls took 10 ms, the evaluation timed 6.67 ms (1.5x as long)" in verifier
    for message in (verifier, again.partition("## The best program so far")[2]):
        assert "First: fuse them\n" in message


def test_a_run_that_is_cut_after_any_reply_asks_nothing_twice(tmp_path: Path) -> None:
    plans = [plan(one=[step("rows", ["mul"]), step("more rows", ["add"])])]
    _, sent, folder = run(tmp_path / "whole", plans=plans, programs=improving)
    lines = (folder.path / NAME).read_bytes().splitlines(keepends=True)
    settings = config(model="openai:scripted", parallel=1, replans=0)

    def script(request: Request, _: int) -> Answer:
        answers = {"planner": plans[0], "verifier": judged("next")}
        return answers.get(role_of(request)) or improving(request.text)

    replies = [number for number, line in enumerate(lines, 1) if json.loads(line)["kind"] == "reply"]
    assert len(replies) == len(sent)
    for asked, cut in enumerate(replies, 1):
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir()
        for part in ("config.toml", "task.py"):
            (copy / part).write_bytes((folder.path / part).read_bytes())
        for part in ("programs", "profiles"):
            (copy / part).mkdir()
        (copy / NAME).write_bytes(b"".join(lines[:cut]))
        _, more = go(RunFolder(copy), script, settings=settings)
        assert len(more) == len(sent) - asked
