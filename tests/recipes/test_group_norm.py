"""Normalisation of groups that stay on chip: teams, tails, chains around it and means behind it, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.group_norm import GroupNorm
from stitchcuda.recipes.group_norm_kernel import teams_of
from stitchcuda.recipes.write import rewrite, write_program
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

CASES: dict[str, tuple[str, str, tuple[int, ...], int]] = {
    "instances": ("self.norm = nn.InstanceNorm2d(3, affine=True)", "return self.norm(a)", (3, 3, 6, 10), 2),
    "two teams": ("self.norm = nn.GroupNorm(2, 4)", "return self.norm(a)", (3, 4, 20, 16), 7),
    "chains": (
        """
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.bias, self.scale = nn.Parameter(torch.randn(4, 1, 1)), nn.Parameter(torch.randn(1))
        """,
        "x = torch.sigmoid((self.conv(a) + self.bias) * self.scale)\nreturn F.relu(self.norm(x) * self.bias - 0.1)",
        (2, 2, 10, 12),
        2,
    ),
    "mean": (
        "self.conv = nn.Conv3d(2, 4, 3)\nself.norm = nn.GroupNorm(2, 4)",
        "return F.silu(self.norm(self.conv(a))).mean([1, 2, 3, 4])",
        (3, 2, 6, 6, 8),
        4,
    ),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a warp with two packs a thread, so that small groups need teams; what they cost is no question."""
    monkeypatch.setattr("stitchcuda.recipes.group_norm.LARGE", 0)
    monkeypatch.setattr("stitchcuda.recipes.group_norm_kernel.ROUND_SECONDS", 0.0)
    monkeypatch.setattr("stitchcuda.recipes.group_norm_kernel.THREADS", 32)
    monkeypatch.setattr("stitchcuda.recipes.group_norm_kernel.MAX_ITEMS", 2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_the_normalisation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init, forward, shape, processors = CASES[name]
    task = make_task(model_source(forward, [shape], init), "cuda")
    program = emulated(task, [GroupNorm.name], tmp_path, monkeypatch, multiprocessors=processors, calls=2)
    body = program.files["program.py"].split("class ModelNew")[1]
    assert "group_norm_" in body
    assert "_aten.group_norm" not in body
    assert "sigmoid" not in body.split("def forward")[1]


def test_what_is_normalised_once_is_not_overwritten_by_a_call() -> None:
    init = "self.norm, self.table = nn.GroupNorm(8, 64), nn.Parameter(torch.randn(64, 64, 56, 56))"
    task = make_task(model_source("return F.relu(self.norm(self.table) + a) * 2", [(64, 64, 56, 56)], init), "cuda")
    program = write_program(task, gpu(), [GroupNorm.name, "pointwise"])
    assert program.manifest is not None
    prepare, forward = program.files["program.py"].split("def prepare")[1].split("def forward")
    (fused,) = (launcher for launcher in program.manifest.launchers if launcher.name.startswith("fused"))
    assert "group_norm_" in prepare
    assert "group_norm_" not in forward
    assert [argument.role for argument in fused.arguments] == ["input", "input", "output"]


def test_a_result_of_state_alone_is_computed_at_every_call() -> None:
    init = "self.norm, self.table = nn.GroupNorm(8, 64), nn.Parameter(torch.randn(64, 64, 56, 56))"
    task = make_task(model_source("return self.norm(self.table), a + 1", [(4,)], init), "cuda")
    text = write_program(task, gpu(), [GroupNorm.name]).files["program.py"]
    assert "group_norm_" not in text.split("def prepare")[1].split("def forward")[0]
    assert "getitem = torch.empty" in text.split("def forward")[1]


def test_teams_fill_the_device() -> None:
    team, teams, items = teams_of(7168, 512 * 512, 132, 232448) or (0, 0, 0)
    assert (team, teams, items) == (8, 16, 16)
    assert teams_of(896, 8 * 512 * 512, 132, 232448) == (64, 2, 16)
    assert teams_of(896, 64 * 512 * 512, 132, 232448) is None


def test_short_groups_are_left_to_the_library() -> None:
    for init, shape, applies in (
        ("self.norm = nn.GroupNorm(32, 512)", (4096, 512, 2, 2), False),
        ("self.norm = nn.InstanceNorm2d(512)", (512, 512, 8, 8), False),
        ("self.norm = nn.GroupNorm(8, 64)", (64, 64, 56, 56), True),
    ):
        task = make_task(model_source("return self.norm(a)", [shape], init), "cuda")
        assert bool(rewrite(task, gpu(), [GroupNorm.name])[1]) == applies


def test_devices_without_copies_that_do_not_wait_are_left_alone() -> None:
    task = make_task(model_source("return self.norm(a)", [(64, 64, 56, 56)], "self.norm = nn.GroupNorm(8, 64)"), "cuda")
    old = gpu().model_copy(update={"target": gpu().target.model_copy(update={"arch": "sm_75"})})
    assert not rewrite(task, old, [GroupNorm.name])[1]


def test_small_pooled_and_batch_normalisations_are_left_alone() -> None:
    for init, forward, shape in (
        ("self.norm = nn.GroupNorm(2, 4)", "return self.norm(a)", (3, 4, 6, 10)),
        ("self.norm = nn.GroupNorm(4, 16)", "return F.max_pool2d(self.norm(a), 4)", (64, 16, 128, 128)),
        ("self.norm = nn.BatchNorm2d(16)", "return self.norm(a)", (64, 16, 128, 128)),
    ):
        task = make_task(model_source(forward, [shape], init), "cuda")
        assert not rewrite(task, gpu(), [GroupNorm.name])[1]
