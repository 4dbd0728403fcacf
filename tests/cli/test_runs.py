"""``stitchcuda runs``: what it tells about finished, foreign and damaged folders, and what it takes out of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Finished
from tests.cli.world import GOOD, OTHER, WRONG, environment, in_turn, stitchcuda
from tests.workflow.world import extended


def test_a_finished_run_gives_its_result_again_and_asks_nobody(finished: Finished, cache: Path) -> None:
    done = stitchcuda("runs", "resume", finished.run, "--json", cache=cache, cwd=finished.home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == finished.summary


def test_list_tells_runs_from_other_folders(finished: Finished, cache: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished.run, runs / "good")
    shutil.copytree(finished.run, runs / "bad")
    journal = runs / "bad" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"kind":"plan"', '"kind":"plot"', 1))
    (runs / "photos").mkdir()
    lines = ("runs", "list", "--json"), ("runs", "list"), ("runs", "resume", "bad")
    done, table, resumed = in_turn(*lines, cache=cache, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {Path(entry["path"]).name: entry for entry in json.loads(done.stdout)}
    assert {name: entry["status"] for name, entry in found.items()} == {
        "good": "correct",
        "bad": "damaged",
        "photos": "not a run",
    }
    assert "damaged at line" in found["bad"]["problem"]
    assert "photos" in table.stdout
    assert resumed.returncode == 2
    assert "damaged at line" in resumed.stderr


def test_the_way_to_go_on_can_be_pasted(finished: Finished, cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "a folder" / finished.run.name
    shutil.copytree(finished.run, run)
    (run / "summary.json").unlink()
    journal = run / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:5]))
    (told,) = in_turn(("runs", "show", run), cache=cache, cwd=tmp_path)
    assert f"stitchcuda runs resume '{run}'" in told.stdout


def test_a_limit_of_nothing_is_refused_on_going_on_as_it_was_at_first(finished: Finished, cache: Path) -> None:
    options = [(name, "0") for name in ("--budget-usd", "--seconds", "--tokens", "--iterations")]
    begun = [("optimize", "small.py", "--model", "openai:x", "--yes", *option) for option in options]
    resumed = [("runs", "resume", finished.run, *option) for option in options]
    told = in_turn(*begun, *resumed, cache=cache, cwd=finished.home)
    for first, later in zip(told[: len(options)], told[len(options) :], strict=True):
        assert (later.returncode, later.stderr) == (2, first.stderr)
        assert "greater than" in later.stderr


def test_show_tells_an_earlier_result_from_the_end(cache: Path, tmp_path: Path) -> None:
    run = extended(tmp_path, ["correct 1.2", "correct 2.0", "correct 1.1"]).path
    (told,) = in_turn(("runs", "show", run), cache=cache, cwd=tmp_path)
    assert "earlier result, before it was given more: correct. Program 001 is correct" in told.stdout
    assert "search ended" not in told.stdout
    assert f"go on with: stitchcuda runs resume {run}" in told.stdout


def number_of(finished: Finished, source: str) -> str:
    """The number that a program got; ideas are worked on side by side, so it is not always the same."""
    programs = sorted((finished.run / "programs").glob("*/program.py"))
    return next(path.parent.name for path in programs if path.read_text() == source)


def test_show_tells_the_story(finished: Finished, cache: Path) -> None:
    lines = ("runs", "show"), ("runs", "show", "last", "--json")
    told, data = in_turn(*lines, cache=cache, cwd=finished.home)
    assert told.returncode == 0, told.stderr
    for words in ("in place", "wrong_output", "one too many", "over best stock", str(finished.run)):
        assert words in told.stdout
    story = json.loads(data.stdout)
    assert sorted(a["status"] for a in story["attempts"]) == ["correct", "correct", "crashed", "wrong_output"]
    assert story["spent"]["requests"] == 9
    assert story["result"] == finished.summary


def test_diff_compares_programs_and_the_task(finished: Finished, cache: Path) -> None:
    wrong, good = number_of(finished, WRONG), number_of(finished, GOOD)
    lines = [(wrong, good), (wrong, good, "--json"), (good, good), (), (wrong, "99")]
    told = in_turn(*[("runs", "diff", "last", *line) for line in lines], cache=cache, cwd=finished.home)
    done, data, same, against_task, missing = told
    assert done.returncode == 1
    assert "-        return torch.relu_(x * self.scale).mul_(17.0).add_(x)" in done.stdout
    assert "program.py" in json.loads(data.stdout)["files"]
    assert (same.returncode, same.stdout) == (0, "")
    assert "-class Model(nn.Module):" in against_task.stdout
    assert missing.returncode == 2
    assert "001, 002, 003, 004" in missing.stderr


def test_export_writes_one_file_or_a_package(finished: Finished, cache: Path, tmp_path: Path) -> None:
    single = tmp_path / "fast.py"
    good = number_of(finished, GOOD)
    export = ("runs", "export", "last")
    from_there = ("--out", finished.home / "runs")
    lines = [
        (*export, single, *from_there),
        (*export, single, *from_there),
        (*export, "fastnet", "--package", "--program", good, *from_there),
        (*export, "fastnet", *from_there, "--force"),
        (*export, "other", *from_there),
    ]
    done, again, package, *no_file = in_turn(*lines, cache=cache, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "class ModelNew" in single.read_text()
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert package.returncode == 0, package.stderr
    for refused in no_file:
        assert refused.returncode == 2
        assert "--package" in refused.stderr
    assert not (tmp_path / "other").exists()
    code = "import torch; from fastnet import ModelNew; print(ModelNew(4)(torch.ones(2, 4)).sum().item())"
    used = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(cache),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert used.stdout.strip() == str(17.0 * 8), used.stderr


def test_the_best_program_is_one_that_was_written(finished: Finished) -> None:
    best = (finished.run / "best" / "program.py").read_text()
    assert best.strip() in (GOOD.strip(), OTHER.strip())


def test_unknown_runs_are_named(cache: Path, tmp_path: Path) -> None:
    lines = ("runs", "show", "nothing"), ("runs", "resume", "nothing"), ("runs", "list")
    for done in in_turn(*lines, cache=cache, cwd=tmp_path):
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
