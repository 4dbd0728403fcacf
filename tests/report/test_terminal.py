"""What a person sees of a run: a live screen on a terminal, plain lines elsewhere, and the figures that matter."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from stitchcuda.report.terminal import TerminalView, new_console, result_lines, seconds_text, spent_text, wants_live
from stitchcuda.workflow import events
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.result import Result
from tests.workflow.world import TASK, ToyMind, config, go, idea, new_folder


def watched(parent: Path, *, live: bool) -> tuple[str, Result]:
    """What is printed during a small run."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=live, width=110, no_color=True)
    settings = config()
    folder = new_folder(parent, settings)
    mind = ToyMind([[idea("fuse [all]")]], {"fuse [all]/one": ["wrong 1", "correct 1.5"]})
    with TerminalView(console, live=live, limits=settings.limits(), paid=True) as view:
        view.emit(events.RunStarted(folder.path, TASK, "openai:scripted", False))
        result = go(folder, mind, settings=settings, ear=view)
    return out.getvalue(), result


def test_plain_lines_tell_each_step_once(tmp_path: Path) -> None:
    text, _ = watched(tmp_path, live=False)
    assert "\x1b" not in text
    assert "stock options: eager 10 ms, compile 8 ms" in text
    assert text.count("program 001 wrong_output: diagnosis of wrong 1") == 1
    assert "program 002 correct, 1.88x eager, 1.50x best stock, the best so far" in text
    assert "confirming the best in fresh processes" in text


def test_the_live_screen_ends_with_the_table_of_attempts(tmp_path: Path) -> None:
    text, _ = watched(tmp_path, live=True)
    last = text.rsplit("over best stock", 1)[1]
    assert "fuse [all] / one" in last
    assert "wrong_output" in last
    assert "1.50x" in last


def test_the_summary_leads_with_the_best_stock_option(tmp_path: Path) -> None:
    _, result = watched(tmp_path, live=False)
    lines = result_lines(result, None)
    figures = [line for line in lines if "over " in line and "x" in line and line.startswith(("over", "  over"))]
    assert figures[0].startswith("over best stock   1.50x")
    assert any("over eager" in line for line in figures[1:])
    assert any("precision class   fp32" in line for line in lines)
    assert any(str(tmp_path) in line and line.startswith("best program") for line in lines)


def test_no_live_screen_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, file=io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_live(terminal)
    assert not wants_live(Console(file=io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_live(terminal)


def test_names_are_printed_as_they_are_and_a_pipe_is_wide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    new_console().print(f"openai:x: {'word ' * 20}end")
    assert capsys.readouterr().out == f"openai:x: {'word ' * 20}end\n"


def test_units_suit_the_size() -> None:
    assert [seconds_text(s) for s in (2e-6, 3.5e-3, 4.0, 600.0)] == ["2 µs", "3.5 ms", "4 s", "10.0 min"]
    assert spent_text(Spent(iterations=3, seconds=60), None, paid=False) == "3 candidates, 60 s"
    limits = Limits(iterations=10, seconds=600, tokens=1000, usd=0.5)
    told = spent_text(Spent(iterations=3, input_tokens=100, usd=0.1, requests=2), limits, paid=True)
    assert "3 of 10 candidates" in told
    assert "100 of 1,000 tokens" in told
    assert "$0.10 of $0.50" in told
    told = spent_text(Spent(input_tokens=100, requests=2), limits, paid=True)
    assert "price unknown" in told
    assert "$" not in told
