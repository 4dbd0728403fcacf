"""What the training experiment shows of itself: figures with every point that was recorded in its place, and a page
that says what is missing, what happened to each command, and whether the cold start came as far as it should.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.coder import room

pytestmark = pytest.mark.usefixtures("coder_importable")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SVG = "{http://www.w3.org/2000/svg}"
LAID_OUT = """
const texts = [...document.querySelectorAll('text')], box = shape => shape.getBoundingClientRect(), wrong = [];
for (const [at, text] of texts.entries()) {
  const own = box(text), all = box(text.ownerSVGElement);
  if (own.left < all.left || own.right > all.right || own.top < all.top || own.bottom > all.bottom)
    wrong.push(text.textContent + ' is cut off');
  for (const other of texts.slice(at + 1)) {
    const its = box(other);
    if (own.left < its.right && its.left < own.right && own.top + 3 < its.bottom && its.top + 3 < own.bottom)
      wrong.push(text.textContent + ' is on ' + other.textContent);
  }
}
document.body.dataset.texts = texts.length;
document.body.dataset.wrong = wrong.join(', ');
"""
"""Names texts that leave their figure or lie on each other; lines may touch by 3 pixels, which hold no letters."""
STEPS = 12
LEVELS = {
    **{"base": 0.02, "sft": 0.4, "sft_longer": 0.55, "rubric": 0.7, "rule": 0.65, "scratch_only": 0.5},
    **{"improve_only": 0.45, "rejection": 0.6, "shuffled": 0.35},
}
"""Share of correct answers of each model in the made-up states."""
HOST = {"commit": "abc123", "cpu": "a processor", "cores": 16, "python": "3.12.1", "torch": "2.11", "cuda": "13.0"}
H200 = HOST | {"date": "2026-12-01T10:00:00Z", "gpu": "NVIDIA H200", "driver": "580.1"}


def answer(task: int, request: int, sample: int, level: float, draw: random.Random) -> dict[str, Any]:
    """One of the test, correct with a chance of ``level``, and then lazy in one of four."""
    correct = draw.random() < level
    lazy = correct and draw.random() < 0.25
    worth = draw.uniform(0.8, 2.0) * correct
    return {
        **{"request": request, "sample": sample, "task": f"t{task}", "family": "ERTP"[task % 4]},
        **{"cols": (64, 40)[task % 2], "skill": "improve" if request % 2 else "scratch"},
        **{"change": "fix" if request % 2 else "", "ended": True, "tokens": 80},
        **{
            "status": "correct" if correct else "wrong",
            "correct": correct,
            "hack": draw.random() < 0.05 * (not correct),
        },
        **{
            "lazy": lazy,
            "shortcut": False,
            "partial_hack": lazy,
            "rule_reward": worth,
            "reward": worth * (1 - 0.3 * lazy),
        },
        **{"rubric": 0.8, "speedup": 1.5, "own_share": 1.0, "best_over": 0.7 * correct, "gold": {"large": True}},
    }


def step_record(at: int, level: float, draw: random.Random) -> dict[str, Any]:
    correct = min(1.0, max(0.0, level * (0.6 + 0.4 * at / STEPS) + draw.uniform(-0.08, 0.08)))
    seconds = {"generate": 1.0 + 0.1 * draw.random(), "evaluate": 1.5 + at / 10, "update": 0.5}
    return {"step": at, "reward": 1.6 * correct, "correct": correct, "seconds": seconds, "rollouts": 256 * (at + 1)}


def made_up(path: Path, tested: Sequence[str], begun: Sequence[str] = (), tasks: int = 12, samples: int = 2) -> Path:
    """A state in which models were tested, and arms begun but not tested."""
    state, arms = room("state"), room("arms")
    folder = state.Folder(path)
    folder.settle(budget={"steps": STEPS}, cold_start={"stop_at": 0.45}, data={"seed": 1}, test={"samples": samples})
    state.append(path / "slices.jsonl", {"command": "slice", "begun": True} | H200)
    ended = {
        "command": "slice",
        "seconds": 90.0,
        "code": 0,
        "evaluations": 700,
        "evaluations_a_minute": 900,
        "restarts": 1,
    }
    state.append(path / "slices.jsonl", ended | H200)
    for name in tested:
        model, draw = name.rsplit("-", 1)[0], random.Random(name)
        asked = max(1, samples // 4) if name == "base" else samples
        level = LEVELS[model] + draw.uniform(-0.05, 0.05) * (model != name)
        rows = [(task, 2 * task + skill, at) for task in range(tasks) for skill in (0, 1) for at in range(asked)]
        state.append(folder.result(name), *(answer(*row, level, draw) for row in rows))
    for arm in (a for a in arms.arms(2) if a.name in (*tested, *begun)):
        draw, level = random.Random(arm.name), LEVELS[arm.name.rsplit("-", 1)[0]]
        steps = STEPS if arm.name in tested else STEPS // 2
        records = [step_record(at, level, draw) for at in range(steps)]
        if arm.kind == "rejection":
            for record in records:
                # Those of a round are counted to its last step.
                record["seconds"]["update"] *= STEPS // 2
                if (record["step"] + 1) % (STEPS // 2):
                    del record["seconds"]["update"]
        if arm.kind == "supervised":
            records = [{"step": at, "loss": 1 / (at + 1), "seconds": {"update": 0.4}} for at in range(steps)]
        state.append(folder.arm(arm.name) / "metrics.jsonl", *records)
        if arm.name in tested:
            done = {"steps": steps, "seconds": {"generate": 12.0, "update": 6.0}}
            (folder.arm(arm.name) / "done.json").write_text(json.dumps(done))
        wall = {"training": [30.4, 12.3], "test": [35.2]} if arm.name in tested else {"training": [22.1]}
        (folder.arm(arm.name) / "wall.json").write_text(json.dumps(wall))
    looks = {"step": 9, "loss": 0.2, "seconds": {"update": 0.4}, "validation": {"correct": 0.47, "compiled": 0.9}}
    state.append(folder.arm("sft") / "metrics.jsonl", looks)
    (folder.arm("sft") / "done.json").write_text(json.dumps({"steps": 10, "of": 124, "seconds": {"update": 4.0}}))
    return path


def every_model() -> list[str]:
    return ["base", "sft", *(arm.name for arm in room("arms").arms(2))]


def marks(svg: str, kind: str) -> dict[str, ElementTree.Element]:
    """Shapes of a kind by what they are of: ``reward rubric-1`` of ``smooth reward rubric-1``."""
    shapes = [shape for shape in ElementTree.fromstring(svg).iter() if shape.get("class", "").split(" ")[0] == kind]
    return {shape.get("class", "").split(" ", 1)[1]: shape for shape in shapes}


def places(shape: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in shape.get("points", "").split())]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An analysed state with everything in it: its report, and the folder with page and figures."""
    path = tmp_path_factory.mktemp("whole")
    room("analyse").write(made_up(path / "state", every_model()), path / "out")
    return json.loads((path / "out" / "coder_experiment.json").read_text()), path / "out"


def drawn(out: Path, name: str) -> str:
    return (out / f"coder_experiment_{name}.svg").read_text()


def test_everything_that_is_expected_is_what_the_arms_are() -> None:
    analyse, figures = room("analyse"), room("figures")
    assert sorted(analyse.EXPECTED) == sorted(every_model())
    order = [name for name in analyse.EXPECTED if name not in ("base", "sft")]
    assert order == [arm.name for arm in room("arms").arms(2)]
    assert {figures.arm_of(name) for name in analyse.EXPECTED} == set(figures.COLOURS)
    assert len(set(figures.COLOURS.values())) == len(figures.COLOURS)


def test_curves_have_a_point_for_each_step_and_higher_values_are_higher(whole: Any) -> None:
    report, out = whole
    for measure in ("reward", "correct"):
        raw = {n: s for n, s in marks(drawn(out, "curves"), "raw").items() if n.startswith(measure)}
        runs = {name.split(" ")[1] for name in raw}
        assert runs == {arm.name for arm in room("arms").arms(2) if arm.kind != "supervised"}
        for run in runs:
            values = [record[measure] for record in report["curves"][run]]
            points = places(raw[f"{measure} {run}"])
            assert len(points) == STEPS
            assert [x for x, _ in points] == sorted({x for x, _ in points})
            by_height = sorted(range(STEPS), key=lambda at: -points[at][1])
            assert by_height == sorted(range(STEPS), key=lambda at: values[at])


def test_seeds_share_a_colour_and_differ_in_their_lines(whole: Any) -> None:
    lines = marks(drawn(whole[1], "curves"), "smooth")
    one, two, other = (lines[f"reward {run}"] for run in ("rubric-1", "rubric-2", "rule-1"))
    assert one.get("stroke") == two.get("stroke") != other.get("stroke")
    assert one.get("stroke-dasharray") != two.get("stroke-dasharray")


def test_the_smoothed_line_is_a_mean_of_neighbours() -> None:
    smooth = room("figures").smooth
    assert smooth([1.0, 2.0, 3.0, 4.0, 10.0], 3) == pytest.approx([1.5, 2, 3, 17 / 3, 7])
    assert smooth([2.0]) == [2.0]


def test_the_test_figure_puts_means_intervals_and_seeds_where_their_numbers_are(whole: Any) -> None:
    report, out = whole
    means, intervals = (marks(drawn(out, "test"), kind) for kind in ("mean", "interval"))
    for measure in room("figures").MEASURES:
        values = {arm: record[measure] for arm, record in report["arms"].items()}
        known = {arm: v["value"] for arm, v in values.items() if v["value"] is not None}
        at = {arm: float(means[f"{measure} {arm}"].get("cx", "nan")) for arm in known}
        first, last = min(known, key=lambda a: known[a]), max(known, key=lambda a: known[a])
        scale = (at[last] - at[first]) / (known[last] - known[first])
        assert scale > 0
        for arm, value in known.items():
            assert at[arm] == pytest.approx(at[first] + scale * (value - known[first]), abs=0.1)
            ends = [float(intervals[f"{measure} {arm}"].get(side, "nan")) for side in ("x1", "x2")]
            wanted = [at[first] + scale * (end - known[first]) for end in values[arm]["interval"]]
            assert ends[0] == pytest.approx(wanted[0], abs=0.1)
            # One that says nothing is cut at the panel's edge and does not press the others together.
            if values[arm]["interval"][1] - values[arm]["interval"][0] < 0.8:
                assert ends[1] == pytest.approx(wanted[1], abs=0.1)
            else:
                assert ends[1] <= wanted[1] + 0.1
    shapes = [shape.get("class") for shape in ElementTree.fromstring(drawn(out, "test")).iter(f"{SVG}circle")]
    assert shapes.count("seed reward rubric") == 2
    assert shapes.count("seed reward sft") == shapes.count("seed reward rejection") == 0


def test_models_stand_in_the_order_of_training(whole: Any) -> None:
    means = marks(drawn(whole[1], "test"), "mean")
    rows = [float(means[f"reward {arm}"].get("cy", "nan")) for arm in room("figures").COLOURS]
    assert rows == sorted(set(rows))


def test_bars_of_a_step_begin_where_the_one_before_ends_and_are_as_long_as_their_means(whole: Any) -> None:
    report, out = whole
    bars = marks(drawn(out, "seconds"), "bar")
    steps = [r["seconds"] for seed in (1, 2) for r in report["curves"][f"rubric-{seed}"]]
    mean = {phase: sum(times[phase] for times in steps) / len(steps) for phase in room("figures").PHASES}
    boxes = [[float(bars[f"{phase} rubric"].get(side, "nan")) for side in ("x", "width")] for phase in mean]
    for (x, width), (after, _) in itertools.pairwise(boxes):
        assert after == pytest.approx(x + width, abs=0.02)
    for (_, width), phase in zip(boxes, mean, strict=True):
        assert width / boxes[0][1] == pytest.approx(mean[phase] / mean["generate"], abs=0.002)


def test_updates_of_a_round_are_shared_out_over_its_steps(whole: Any) -> None:
    bars = marks(drawn(whole[1], "seconds"), "bar")
    widths = [float(bars[f"update {arm}"].get("width", "nan")) for arm in ("rejection", "rubric")]
    assert widths[0] == pytest.approx(widths[1], abs=0.02)


def test_the_page_tells_what_each_arm_took_by_the_clock(whole: Any, tmp_path: Path) -> None:
    report, out = whole
    assert report["wall"]["rejection-1"] == {"training": [30.4, 12.3], "test": [35.2]}
    steps = sum(sum(step["seconds"].values()) for step in report["curves"]["rejection-1"])
    assert f"| rejection-1 | 43 | {steps:.0f} | 35 | 78 | 2, 1 |" in (out / "coder_experiment.md").read_text()
    room("analyse").write(made_up(tmp_path / "state", ["base", "sft"], begun=["rule-1"]), tmp_path / "out")
    assert re.search(
        r"\| rule-1 \| 22 \| \d+ \|  \| 22 \| 1, 0 \|", (tmp_path / "out" / "coder_experiment.md").read_text()
    )


def test_nothing_is_drawn_outside_and_nothing_else_is_needed(whole: Any) -> None:
    for name in room("figures").FIGURES:
        svg = drawn(whole[1], name)
        root = ElementTree.fromstring(svg)
        width, height = (float(root.get(side, "nan")) for side in ("width", "height"))
        for shape in root.iter():
            for x, y in [
                (shape.get(f"{a}{b}"), shape.get(f"{c}{b}")) for b in ("", "1", "2") for a, c in (("x", "y"),)
            ]:
                assert x is None or 0 <= float(x) <= width
                assert y is None or 0 <= float(y) <= height
            assert all(0 <= x <= width and 0 <= y <= height for x, y in places(shape))
        assert "href" not in svg
        assert "nan" not in svg


def test_what_time_did_not_reach_is_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "out"
    state = made_up(tmp_path / "state", ["base", "sft", "rubric-1"], begun=["rule-1"])
    (state / "arms" / "sft_longer").mkdir()
    (state / "arms" / "sft_longer" / "done.json").write_text('{"steps": 4, "seconds": {"update": 2.0}}')
    room("analyse").write(state, out)
    page = (out / "coder_experiment.md").read_text()
    missing = page.split("**Missing**")[1].split("\n")[0]
    assert "`rule-1` (begun, 6 steps); `sft_longer` (trained, not tested to the end); `rubric-2` (not begun)" in missing
    assert "`rubric-1`" not in missing
    runs = {name.split(" ")[1]: len(places(s)) for name, s in marks(drawn(out, "curves"), "raw").items()}
    assert runs == {"rubric-1": STEPS, "rule-1": STEPS // 2}
    assert {name.split(" ")[1] for name in marks(drawn(out, "test"), "mean")} <= {"base", "sft", "rubric"}
    assert "| no (one seed) |" in page
    assert page.count("| not run |") == 4


def test_figures_with_nothing_in_them_are_neither_made_nor_left_nor_linked(tmp_path: Path) -> None:
    analyse, out = room("analyse"), tmp_path / "out"
    analyse.write(made_up(tmp_path / "more", ["base", "sft", "rubric-1"]), out)
    assert "(coder_experiment_curves.svg)" in (out / "coder_experiment.md").read_text()
    analyse.write(made_up(tmp_path / "less", ["base", "sft"]), out)
    assert [path.name for path in out.glob("*.svg")] == ["coder_experiment_test.svg"]
    page = (out / "coder_experiment.md").read_text()
    assert "curves.svg" not in page
    assert "No arm has begun." in page


def test_a_rate_of_nothing_is_said_to_be_none(tmp_path: Path) -> None:
    state = made_up(tmp_path / "state", ["base", "sft"])
    records = [r | {"correct": False, "status": "wrong"} for r in room("state").lines(state / "results" / "base.jsonl")]
    (state / "results" / "base.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    room("analyse").write(state, tmp_path / "out")
    svg = drawn(tmp_path / "out", "test")
    assert "partial_hack base" not in marks(svg, "mean")
    assert [e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}text")].count("none") == 1


def test_the_page_tells_commands_that_were_killed_from_those_that_ended_side_by_side(tmp_path: Path) -> None:
    state = made_up(tmp_path / "state", ["base", "sft"])
    file = state / "slices.jsonl"
    beside = {"command": "slice", "seconds": 60.0, "code": 3}
    room("state").append(
        file,
        *({"command": "slice", "begun": True, "visible": gpu} | H200 for gpu in "01"),
        {"command": "slice", "begun": True} | H200 | {"date": "2026-12-02T10:00:00Z", "commit": "def456"},
        *(beside | {"visible": gpu} | H200 for gpu in "10"),
    )
    room("analyse").write(state, tmp_path / "out")
    page = (tmp_path / "out" / "coder_experiment.md").read_text()
    assert (
        "2026-12-01 to 2026-12-02, NVIDIA H200, driver 580.1, 16 cores of a processor, torch 2.11 (CUDA 13.0)" in page
    )
    assert "commit abc123; NVIDIA H200" in page
    assert "Commands run: 4 (killed: 1), 3.5 min in all" in page
    assert "| slice | 2026-12-02T10:00:00Z | B | all | killed |" in page
    assert "| slice | 2026-12-01T10:00:00Z | A | 1 | 60.0 | 3 |" in page


def test_the_cold_start_is_judged_by_validation_and_not_by_the_test(whole: Any, tmp_path: Path) -> None:
    said = "ended after 10 of 124 steps, with 47.0% of the answers to validation tasks right and 90.0% compiling"
    page = (whole[1] / "coder_experiment.md").read_text()
    assert f"{said}; 45% and 80% were wanted. On the test" in page
    state = made_up(tmp_path / "state", ["base", "sft"])
    look = {"step": 123, "loss": 0.2, "seconds": {"update": 1}, "validation": {"correct": 0.44, "compiled": 0.9}}
    room("state").append(state / "arms" / "sft" / "metrics.jsonl", look)
    room("analyse").write(state, tmp_path / "out")
    page = (tmp_path / "out" / "coder_experiment.md").read_text()
    assert "ended after 124 of 124 steps, with 44.0% of the answers to validation tasks right" in page
    assert "45% and 80% were wanted and **not reached**" in page


def test_a_state_without_a_tested_model_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert room("run").main(["analyse", "--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]) == 2
    assert "no model was tested" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("low", "high", "wanted"), [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 50, [0, 10, 20, 30, 40, 50])]
)
def test_ticks_are_round_numbers(low: float, high: float, wanted: list[float]) -> None:
    assert room("svg").ticks(low, high) == pytest.approx(wanted)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to draw with")
def test_in_a_browser_no_text_is_cut_off_or_on_another(whole: Any, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    for name in room("figures").FIGURES:
        source = tmp_path / f"{name}.html"
        source.write_text(f"<!doctype html><body>{drawn(whole[1], name)}<script>{LAID_OUT}</script></body>")
        words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        dom = subprocess.run(
            [*words, "--dump-dom", source.as_uri()], check=True, capture_output=True, text=True, timeout=120
        )
        assert int(dom.stdout.split('data-texts="')[1].split('"')[0]) > 10
        assert dom.stdout.split('data-wrong="')[1].split('"')[0] == ""
