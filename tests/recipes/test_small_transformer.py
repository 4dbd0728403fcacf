"""Kernels for transformers over a few tokens: linear layers with few rows, attention over short sequences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from stitchcuda.program.model import Program
from stitchcuda.recipes.base import is_launch
from stitchcuda.recipes.normalise import VIEWS, op_name
from stitchcuda.recipes.skinny_linear_kernel import SkinnyPlan, Walk, fitted, row_starts
from stitchcuda.recipes.write import rewrite, write_program
from tests.recipes.emulation import compiles, emulated, gpu, needs_nvcc
from tests.recipes.support import make_task, model_source

RECIPES = ("skinny_linear", "small_attention", "row_reduction", "pointwise", "epilogue")

ENCODER = """
self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
self.head = nn.Linear(32, 20)
"""
ENCODED = "return self.head(self.layer(a)[:, 0])"


def check(
    forward: str,
    shapes: list[tuple[int, ...]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    init: str = "pass",
    multiprocessors: int = 132,
) -> Program:
    """The program for cuda, whose emulated kernels give what the reference gives, twice."""
    task = make_task(model_source(forward, shapes, init), "cuda")
    return emulated(task, RECIPES, folder, monkeypatch, multiprocessors=multiprocessors, calls=2)


def names(program: Program) -> list[str]:
    assert program.manifest is not None
    return [launcher.name for launcher in program.manifest.launchers]


@pytest.mark.parametrize(
    ("rows", "columns", "k", "multiprocessors"),
    [(1, 9, 32, 4), (20, 40, 128, 132), (7, 50, 516, 2), (32, 33, 260, 1), (10, 16, 8192, 16), (3, 8, 1000, 132)],
    ids=["one row", "one chunk", "odd sizes", "most rows", "long K over blocks", "ragged K"],
)
def test_linear_layers_over_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, k: int, multiprocessors: int
) -> None:
    init = f"self.layer = nn.Linear({k}, {columns})"
    program = check(
        "return self.layer(a)", [(rows, k)], tmp_path, monkeypatch, init=init, multiprocessors=multiprocessors
    )
    assert "skinny_linear" in names(program)[0]


def test_the_activation_joins_and_rows_may_be_strided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = "self.one = nn.Linear(32, 40, bias=False)\nself.two = nn.Linear(40, 12)"
    forward = "return F.gelu(self.two(F.hardswish(self.one(a.transpose(0, 1)) * 2)))"
    program = check(forward, [(5, 3, 32)], tmp_path, monkeypatch, init=init)
    assert len(names(program)) == 2
    assert "aten.hardswish" not in program.files["program.py"]
    assert "aten.gelu" not in program.files["program.py"]


def test_a_long_k_is_split_over_blocks_and_gives_the_same_each_time() -> None:
    plan = SkinnyPlan(10, 128, 8192, Walk(10, 0, 8192), Walk(10, 0, 128), bias=True, multiprocessors=132)
    assert plan.splits > 1
    assert plan.blocks * plan.splits >= 132


@pytest.mark.parametrize(
    ("shape", "causal"),
    [((2, 3, 2, 32), False), ((1, 2, 37, 20), True), ((2, 1, 64, 48), False), ((1, 1, 1, 4), False)],
    ids=["two positions", "causal", "most keys", "one position"],
)
def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], causal: bool) -> None:
    forward = f"return F.scaled_dot_product_attention(a, b * 3, c, is_causal={causal}).transpose(1, 2).flatten(2)"
    program = check(forward, [shape] * 3, tmp_path, monkeypatch)
    assert "small_attention" in names(program)[0]


def test_cross_attention_with_a_scale_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "return F.scaled_dot_product_attention(a, b, b, scale=0.5)"
    check(forward, [(2, 3, 5, 8), (2, 3, 40, 8)], tmp_path, monkeypatch)


def test_heads_are_read_from_the_packed_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = """
    q, k, v = self.qkv(a).chunk(3, -1)
    q, k, v = (t.view(2, 6, 4, 8).transpose(1, 2).contiguous() for t in (q, k, v))
    return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 32))
    """
    init = "self.qkv = nn.Linear(32, 96)\nself.out = nn.Linear(32, 32)"
    program = check(forward, [(2, 6, 32)], tmp_path, monkeypatch, init=init)
    assert len(names(program)) == 3
    assert "contiguous" not in program.files["program.py"].split("def forward")[-1]


def test_an_encoder_layer_is_five_launches_and_its_last_norm_joins_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(ENCODED, [(3, 2, 32)], tmp_path, monkeypatch, init=ENCODER)
    task = make_task(model_source(ENCODED, [(3, 2, 32)], ENCODER), "cuda")
    before, _ = rewrite(task, gpu(), ())
    after, _ = rewrite(task, gpu(), RECIPES)

    def launches(nodes: object) -> int:
        return sum(is_launch(node) or op_name(node) not in VIEWS - {"contiguous"} | {""} for node in nodes)  # type: ignore[attr-defined]

    assert launches(before.graph.nodes) >= 12
    assert launches(after.graph.nodes) == 6


def test_what_does_not_fit_is_left_alone() -> None:
    masked = "return F.scaled_dot_product_attention(a, a, a, attn_mask=torch.ones(4, 4).tril().bool())"
    for forward, shape, init in [
        ("return self.layer(a)", (64, 64), "self.layer = nn.Linear(64, 64)"),
        ("return self.layer(a)", (4, 30), "self.layer = nn.Linear(30, 64)"),
        ("return F.scaled_dot_product_attention(a, a, a)", (1, 1, 65, 8), "pass"),
        (masked, (1, 1, 4, 8), "pass"),
    ]:
        task = make_task(model_source(forward, [shape], init), "cuda")
        assert write_program(task, gpu(), RECIPES).manifest is None


def walk_of(x: torch.Tensor) -> Walk | None:
    starts = row_starts(x)
    return fitted(starts) if starts is not None else None


def test_rows_of_two_levels_are_described() -> None:
    x = torch.empty(4, 3, 8)
    assert walk_of(x) == Walk(12, 0, 8)
    assert walk_of(x.transpose(0, 1)) == Walk(4, 8, 24)
    assert walk_of(x[:, 0]) == Walk(4, 0, 24)
    assert walk_of(x.transpose(1, 2)) is None
    assert walk_of(torch.empty(4, 3, 2, 8).permute(2, 1, 0, 3)) is None


def test_norms_and_residuals_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = """
    self.before, self.after = nn.LayerNorm(36), nn.LayerNorm(36, elementwise_affine=False)
    self.up, self.down, self.head = nn.Linear(36, 52), nn.Linear(52, 36), nn.Linear(36, 70)
    """
    forward = """
    x = a + self.down(F.gelu(self.up(self.before(a))))
    y = self.after(x)
    return self.head(y.transpose(0, 1)), y
    """
    program = check(forward, [(3, 5, 36)], tmp_path, monkeypatch, init=init)
    assert len(names(program)) == 3
    assert all(f"aten.{name}" not in program.files["program.py"] for name in ("add", "layer_norm", "gelu"))


def test_a_residual_that_is_the_norm_itself_is_not_read_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = "self.norm, self.layer = nn.LayerNorm(36), nn.Linear(36, 36)"
    forward = "y = self.norm(a)\nreturn y + self.layer(y), y * 2"
    program = check(forward, [(5, 36)], tmp_path, monkeypatch, init=init)
    assert "layer_norm" in program.files["program.py"]


@needs_nvcc
def test_kernels_compile_for_every_architecture(tmp_path: Path) -> None:
    forward = "return self.head(self.layer(a)[:, 0]), self.wide(b)"
    init = ENCODER + "self.wide = nn.Linear(8192, 128)\n"
    task = make_task(model_source(forward, [(10, 2, 32), (10, 8192)], init), "cuda")
    files = write_program(task, gpu(), RECIPES).files
    for path in ("skinny_linear.cu", "small_attention.cu"):
        for report in compiles(files[path], tmp_path).values():
            spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", report)]
            assert spilled
            assert max(spilled) <= 32
