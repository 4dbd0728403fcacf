"""A run shows what its programs are worth, from its folder alone, with every reason; what a program wrote is text."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from stitchcuda.agents.roles import Attempt
from stitchcuda.errors import RunError
from stitchcuda.evaluation.model import Evaluation, Finding
from stitchcuda.report.run_html import page, write_report
from stitchcuda.report.scorecard import TITLES, formula_text, scorecards
from stitchcuda.report.terminal import attempts_table, scorecard_lines
from stitchcuda.reward import reward
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.model import RewardSettings
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.result import Best
from stitchcuda.workflow.story import read_story
from tests.report.test_profile_html import CHROMIUM, Tags
from tests.reward.test_recorded import recorded
from tests.workflow.world import ToyMind, config, extended, go, idea, new_folder, program

GRU = recorded("gru")
EVIL = "<script>alert('&')</script>"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run of two programs, the second and best with what was measured on an H200."""
    settings = config()
    made = new_folder(tmp_path, settings)
    go(made, ToyMind([[idea("fuse [all]")]], {"fuse [all]/one": ["wrong 1", "correct 1.5"]}), settings=settings)
    assert GRU.profile is not None
    assert GRU.reference is not None
    made.save_profile("reference", GRU.reference)
    made.save_profile("002", GRU.profile)
    made.save_best(program("correct 1.5"), Best(number=2, idea="fuse", digest="", evaluation=GRU.evaluation))
    return made


def replace_best(folder: RunFolder, evaluation: Evaluation) -> None:
    """Let the best program have another Evaluation."""
    folder.save_best(program("correct 1.5"), Best(number=2, idea="fuse", digest="", evaluation=evaluation))


def test_the_best_has_the_marks_and_the_reward_of_its_final_check(folder: RunFolder) -> None:
    card = scorecards(folder)[2]
    marks = mark(GRU, "scratch")
    assert card.marks == marks
    assert card.profiled
    assert card.reward == reward(GRU.evaluation, marks, "scratch")
    paper = scorecards(folder, RewardSettings.preset("paper"))[2].reward
    assert paper is not None
    assert paper.against == "eager"


def test_a_program_that_does_not_work_is_worth_nothing(folder: RunFolder) -> None:
    card = scorecards(folder)[1]
    assert card.reward is not None
    assert (card.status, card.reward.value, card.marks.total) == ("wrong_output", 0.0, 6)


def test_a_run_without_profiles_is_marked_by_what_was_seen(folder: RunFolder) -> None:
    (folder.path / "profiles" / "reference.json").unlink()
    card = scorecards(folder)[2]
    assert not card.profiled
    assert "no profiles were taken" in card.marks.marks["operator_coverage"].reasons[0]


def test_a_reward_that_cannot_be_computed_says_why(folder: RunFolder) -> None:
    replace_best(folder, GRU.evaluation.model_copy(update={"speedup": {}}))
    card = scorecards(folder)[2]
    assert card.reward is None
    assert "evaluate with baselines" in card.problem
    assert card.problem in scorecard_lines(card)[-1]
    assert "no reward" in page(read_story(folder), {2: card})


@pytest.mark.parametrize("name", ["best.json", "programs/001.json", "profiles/002.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"evaluation": {"status": "fine"}}'])
def test_a_damaged_file_is_named(folder: RunFolder, name: str, text: str) -> None:
    (folder.path / name).write_text(text)
    with pytest.raises(RunError, match=re.escape(name)):
        scorecards(folder)


def test_the_terminal_shows_four_marks_their_reasons_and_the_formula(folder: RunFolder) -> None:
    card = scorecards(folder)[2]
    text = "\n".join(scorecard_lines(card))
    for name, given in card.marks.marks.items():
        assert re.search(rf"{TITLES[name]} +{given.score:g}  ", text)
        assert all(reason in text for reason in given.reasons)
    assert card.reward is not None
    assert f"reward {card.reward.value:.3f} = min((" in text


def test_a_cheat_is_told_by_what_gave_it_away() -> None:
    caught = GRU.evaluation.model_copy(
        update={"findings": [Finding(rule="patched_clock", severity="reject", evidence="program.py:1")]}
    )
    assert formula_text(reward(caught, None, "scratch")) == "reward 0: patched_clock"


@pytest.mark.parametrize("width", [80, 160])
def test_a_long_idea_is_cut_and_never_a_figure(folder: RunFolder, width: int) -> None:
    attempts = [
        Attempt(number=2, idea="one kernel for " * 20, step="one", status="correct", speedup=2.0, over_best=1.5)
    ]
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as printed:
        console.print(attempts_table(attempts, 2, scorecards(folder)))
    for part in ("002 *", "correct", "2.00x", "1.50x", "marks of 20", "…"):
        assert part in printed.get()


def test_the_page_holds_the_scorecards_and_needs_no_other_file(folder: RunFolder) -> None:
    path = write_report(folder)
    assert path == folder.path / "report.html"
    text = path.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "script" not in tags.seen
    assert not re.search(r'(src|href)="|url\(|@import', text)
    card = scorecards(folder)[2]
    assert card.reward is not None
    for part in (
        "Scorecard of program 002",
        "Scorecard of program 001: 6 of 20, wrong_output",
        f"reward {card.reward.value:.3f}",
        f"{card.marks.total:g} of 20",
        *TITLES.values(),
        "class ModelNew",
    ):
        assert part in text


def test_nothing_that_a_program_or_model_wrote_becomes_markup(folder: RunFolder) -> None:
    finding = Finding(rule="odd", severity="flag", evidence=EVIL)
    census = GRU.evaluation.model_copy(update={"findings": [finding], "message": EVIL, "status": "crashed"})
    replace_best(folder, census)
    folder.save_best(
        program(EVIL).model_copy(update={"files": {"program.py": f"# {EVIL}\nclass ModelNew: ...\n"}}),
        Best(number=2, idea=EVIL, digest="", evaluation=census),
    )
    story = read_story(folder)
    hostile = story.model_copy(
        update={
            "task": EVIL,
            "mind": EVIL,
            "attempts": [Attempt(number=2, idea=EVIL, step=EVIL, status="crashed", diagnosis=EVIL)],
        }
    )
    text = page(hostile, scorecards(folder), folder.load("best"))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_run_that_goes_on_has_a_page_too(folder: RunFolder) -> None:
    (folder.path / "summary.json").unlink()
    text = write_report(folder).read_text()
    assert "2 programs so far" in text
    assert "Scorecard of program 002" in text


def test_the_page_of_a_run_that_was_given_more_tells_one_ending(tmp_path: Path) -> None:
    text = write_report(extended(tmp_path, ["correct 1.2", "correct 2.0", "correct 1.1"])).read_text()
    box = re.search(r'<div class="verdict">(.*?)</div>', text)
    assert box is not None
    now, programs, earlier = box[1].split("<br>")
    assert (now, programs) == ("<b>interrupted</b>", "2 programs so far; program 002 leads")
    assert earlier.startswith("earlier result, before it was given more: correct. Program 001")
    assert "<td>002 ★</td>" in text
    assert "# correct 2.0" in text
    assert "search ended" not in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
def test_a_browser_shows_it_on_a_narrow_screen_without_scrolling_sideways(folder: RunFolder, tmp_path: Path) -> None:
    long = GRU.evaluation.model_copy(
        update={"findings": [Finding(rule="very_long_rule_" * 30, severity="flag", evidence="x" * 400)]}
    )
    replace_best(folder, long)
    text = write_report(folder).read_text().replace("<details>", "<details open>")
    source = tmp_path / "page.html"
    source.write_text(text + "<script>document.title = 'wide ' + document.documentElement.scrollWidth</script>")
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900"]
    shown = subprocess.run(
        [*words, f"--user-data-dir={tmp_path}/profile", "--dump-dom", source.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    found = re.search(r"<title>wide (\d+)</title>", shown)
    assert found is not None
    assert int(found[1]) <= 500
