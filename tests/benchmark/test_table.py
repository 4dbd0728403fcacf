"""The table and the page: every number stands under what it rests on."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from stitchcuda.benchmark.page import page
from stitchcuda.benchmark.plot import speedup_svg
from stitchcuda.benchmark.table import markdown
from tests.benchmark.samples import PROVENANCE, record, sweep

SWEEP = sweep(
    [record("MobileNetV1", 1.5, group="level 3"), record("GRU", message="a call raised <KeyError>", group="level 3")],
    split="test",
)


def test_the_heading_names_device_versions_precision_tier_and_baselines() -> None:
    table = markdown(SWEEP)
    for words in (
        "suite: KernelBench level 3, test split",
        "programs by: recipes",
        "device: NVIDIA H200",
        "driver 580.95, CUDA 13.0, torch 2.11.0+cu130",
        "precision class: fp32",
        "tier: publish",
        "stock options: CUDA graph, torch.compile, eager",
        "commit abc123",
    ):
        assert f"- {words}" in table or words in table
    here = SWEEP.model_copy(update={"machine": {"cores": "8"}})
    assert "- host: 8 cores" in markdown(here)
    away = here.model_copy(update={"config": here.config.model_copy(update={"compute": "spool:somewhere"})})
    assert "- run over spool from: 8 cores" in markdown(away)


def test_figures_name_how_failures_count() -> None:
    table = markdown(SWEEP)
    assert "| mean, failures as 0 | 0.75x [0.00, 1.50] |" in table
    assert "| mean, solved | 1.50x |" in table
    assert "| success | 50% [9%, 91%] |" in table


def test_every_task_has_a_row_with_its_result_and_best_stock_option() -> None:
    table = markdown(SWEEP)
    assert "| MobileNetV1 | correct | 1.50x [1.35, 1.65] | 4.50x | 3.00x | 1 ms | CUDA graph 1.5 ms |" in table
    assert "| GRU | nothing_correct: a call raised <KeyError> |" in table


def test_a_mixture_is_said_before_any_number() -> None:
    mixed = sweep([record("a", 1.5), record("b", 2.0, provenance=PROVENANCE | {"device": "NVIDIA A100"})])
    table = markdown(mixed)
    assert "device: NVIDIA H200 (1), NVIDIA A100 (1)" in table
    assert table.index("Several devices took part") < table.index("## Summary")


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("torch", "2.12.0", "Several versions of torch"),
        ("cuda", "12.8", "Several versions of CUDA"),
        ("driver", "570.1", "Several versions of the driver"),
        ("stitchcuda", "0.2.0", "Several versions of stitchcuda"),
        ("confinement", "namespaces", "Several levels of confinement"),
    ],
)
def test_every_mixture_of_what_measured_is_said(name: str, other: str, said: str) -> None:
    table = markdown(sweep([record("a", 1.5), record("b", 2.0, provenance=PROVENANCE | {name: other})]))
    assert table.index(f"**{said} took part.**") < table.index("## Summary")
    assert other in table[: table.index("Several")]
    assert "took part" not in markdown(sweep([record("a", 1.5), record("b", 2.0)]))


def test_tiers_and_stock_options_that_differ_are_said() -> None:
    fewer = record("b", 2.0, tier="screen", seconds={"program": 1e-3, "eager": 6e-3})
    table = markdown(sweep([record("a", 1.5), fewer]))
    assert "- stock options: CUDA graph (1 of 2), torch.compile (1 of 2), eager" in table
    assert table.index("Not every stock option was measured beside every program") < table.index("## Summary")
    assert "Several tiers took part" in table


def test_everybody_who_ran_the_sweep_is_named() -> None:
    later = {"stitchcuda": "0.1.0", "commit": "def456", "cores": "4"}
    table = markdown(sweep([record("a", 1.5)]).model_copy(update={"resumed": [later, later]}))
    assert "- stitchcuda: 0.1.0, commit abc123 and def456" in table
    assert "- host: 4 cores" in table
    assert "Several commits of stitchcuda took part" in table


def test_programs_of_the_recipes_beside_a_model_are_told_apart() -> None:
    records = [record("a", 1.5, author="recipes"), record("b", 2.0, author="openai:x"), record("c", author="")]
    assert "Of 2 accepted programs 1 are not the model's but the recipes'" in markdown(sweep(records, model="openai:x"))
    assert "not the model's" not in markdown(sweep(records[1:], model="openai:x"))
    assert "not the model's" not in markdown(sweep(records[:1]))


def test_tasks_without_a_program_are_said_before_any_number() -> None:
    table = markdown(sweep([record("a", 1.5)], suite="score").model_copy(update={"absent": ["b", "c"]}))
    assert table.index("Of 3 tasks asked for 2 have no program, and count nowhere: b, c.") < table.index("## Summary")


def test_tasks_that_do_not_run_are_said_before_any_number() -> None:
    lost = [record("b", status="not_runnable", seed=seed) for seed in range(2)]
    table = markdown(sweep([record("a", 1.5), *lost]))
    assert table.index("1 of 2 tasks do not run here and count nowhere") < table.index("## Summary")


def test_an_unfinished_sweep_says_what_is_missing_and_why() -> None:
    table = markdown(sweep([record("a", 1.5)], still_open={"b.0": "the model gave no answer"}))
    assert "- incomplete: 1 of 2 items are done" in table
    assert "- b.0: the model gave no answer" in table


def test_the_screen_tier_is_not_to_be_published() -> None:
    assert "not to be published" in markdown(sweep([record("a", 1.5, tier="screen")], tier="screen"))


def test_a_sweep_without_a_finished_item_has_a_table() -> None:
    assert "none measured yet" in markdown(sweep([], still_open={"b.0": "not run yet"}))
    assert "<h2>Not done</h2>" in page(sweep([], still_open={"b.0": "not run yet"}))


def test_the_page_is_whole_html_without_anything_from_elsewhere() -> None:
    text = page(SWEEP)
    depth: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                depth.append(tag)
            assert not any(name == "src" for name, _ in attrs)

        def handle_endtag(self, tag: str) -> None:
            assert depth.pop() == tag

    Reader().feed(text)
    assert not depth
    assert "a call raised &lt;KeyError&gt;" in text
    assert "NVIDIA H200" in text


def plots(text: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


def test_a_task_is_drawn_where_it_counts_also_by_its_runs_that_found_no_label() -> None:
    records = [record("apart", 2.0, labels=["stochastic"]), record("apart", 3.0, seed=1), record("counts", 1.5)]
    main, apart = plots(page(sweep(records)))
    assert "counts" in main
    assert "apart" not in main
    assert apart.count("apart") == 2


def test_tasks_that_are_all_counted_apart_have_their_figures() -> None:
    lone = sweep([record("a", 2.0, labels=["stochastic"])])
    assert "| mean over best stock, failures as 0 | 2.00x |" in markdown(lone)
    assert len(plots(page(lone))) == 1
    assert "stochastic (apart)" in page(lone)


def test_the_plot_has_a_bar_for_each_task_and_marks_failures() -> None:
    drawn = speedup_svg([record("a", 2.0), record("b", 0.8), record("c")])
    assert drawn.count('class="gain"') == 1
    assert drawn.count('class="loss"') == 1
    assert drawn.count('class="failure"') == 1
    assert speedup_svg([]) == ""
