"""Train-mode BatchNorm with its neighbours: output and state are PyTorch's, on the CPU and under emulation."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.evaluation.build import build
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.recipes.batch_norm_train import BatchNormTrain
from stitchcuda.recipes.batch_norm_train_kernel import DepthwisePlan, NormDepthwisePlan, NormPlan, Plan, source
from stitchcuda.recipes.conv_depthwise import ConvDepthwise
from stitchcuda.recipes.write import rewrite, write_program
from stitchcuda.task.model import Target
from tests.recipes.emulation import compiles, emulate, gpu, load_built, load_emulated, needs_nvcc, task_of
from tests.recipes.support import make_device, make_task, model_source

NAMES = [BatchNormTrain.name, ConvDepthwise.name]

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

def get_init_inputs():
    return []
"""

RESIDUAL = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)
        self.bn3 = nn.BatchNorm2d(6, momentum=0.3)
        self.bn4 = nn.BatchNorm2d(6, track_running_stats=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv(x)))
        y = F.silu(y + self.bn2(y * 3 + 100))
        y = F.hardswish(self.bn3(y) + y)
        return self.bn4(y), F.relu6(self.bn1(y))

def get_inputs():
    return [torch.randn({shape})]
"""
)

MOBILE = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        c = 4
        self.features = nn.Sequential(
            nn.Conv2d(3, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU6(),
            nn.Conv2d(c, c, {kernel}, {stride}, {kernel} // 2, groups=c, bias=False),
            nn.BatchNorm2d(c), nn.ReLU(inplace=True),
            nn.Conv2d(c, c, {kernel}, 1, {kernel} // 2, groups=c, bias=True), nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return self.features(x)

def get_inputs():
    return [torch.randn({shape})]
"""
)


def perturbed(model: Any) -> Any:
    """The model with parameters and statistics that are not the constructor's."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.dtype == torch.float32:
                noise = torch.rand(value.shape, generator=generator) + 0.25
                value.copy_(noise if "bn" in name or "var" in name or value.dim() == 1 else noise - 0.75)
    return model


def agrees(text: str, module: Any, calls: int = 2) -> None:
    """Same outputs and same state as the reference over several calls."""
    scope: dict[str, Any] = {}
    exec(compile(text, "task", "exec"), scope)
    reference, own = perturbed(scope["Model"]()), perturbed(module.ModelNew())
    for _ in range(calls):
        inputs = scope["get_inputs"]()
        with torch.no_grad():
            expected, got = reference(*inputs), own(*inputs)
        pairs = zip(expected, got, strict=True) if isinstance(expected, tuple) else [(expected, got)]
        for theirs, mine in pairs:
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
    state = own.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)


def launchers(program: Program) -> list[str]:
    """Names of the program's launchers."""
    assert program.manifest is not None
    return sorted(launcher.name for launcher in program.manifest.launchers)


@pytest.mark.parametrize("shape", ["2, 3, 5, 5", "3, 3, 8, 8", "2, 3, 96, 96"])
def test_batch_norms_of_a_residual_network_are_pytorchs(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RESIDUAL.replace("{shape}", shape)
    program = write_program(task_of(text), gpu(), NAMES)
    assert "batch_norm." not in program.files["program.py"]
    agrees(text, load_emulated(program, tmp_path, monkeypatch))


@pytest.mark.parametrize("shape", ["2, 3, 5, 5", "3, 3, 24, 24"])
def test_the_cpu_kernel_agrees_too(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = RESIDUAL.replace("{shape}", shape)
    target = Target(kind="cpu", arch="native")
    device = Device(target=target, name="cpu", multiprocessors=2, memory_bytes=2**33, cache_bytes=2**25)
    program = write_program(task_of(text, "cpu"), device, NAMES)
    assert launchers(program) == ["batch_norm_train"]
    done = build(program, target, cache=tmp_path)
    assert done.ok, done.log
    assert done.folder is not None
    agrees(text, load_built(done.folder, monkeypatch))


@pytest.mark.parametrize(
    ("kernel", "stride", "shape", "library"),
    [
        (3, 1, "2, 3, 7, 7", 2),
        (3, 2, "2, 3, 12, 14", 2),
        (5, 1, "2, 3, 16, 14", 1),
        (3, 1, "1, 3, 17, 15", 1),
        (5, 2, "2, 3, 9, 16", 2),
        (3, 2, "3, 3, 1, 1", 2),
    ],
)
def test_depthwise_convolutions_take_the_batch_norms_around_them_along(
    kernel: int, stride: int, shape: str, library: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MOBILE.format(kernel=kernel, stride=stride, shape=shape)
    program = write_program(task_of(text), gpu(), NAMES)
    assert program.files["program.py"].count("_aten.conv2d") == library
    assert "add_.Tensor" not in program.files["program.py"]
    assert any(name.startswith("batch_norm_depthwise") for name in launchers(program))
    agrees(text, load_emulated(program, tmp_path, monkeypatch))


def test_channels_larger_than_a_block_go_through_partial_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MOBILE.format(kernel=3, stride=2, shape="2, 3, 70, 72")
    small = gpu().model_copy(update={"shared_memory_per_block": 16384})
    program = write_program(task_of(text), small, NAMES)
    assert any(name.startswith("batch_norm_depthwise_k3s2_g") for name in launchers(program))
    agrees(text, load_emulated(program, tmp_path, monkeypatch), calls=1)


def test_eval_mode_is_left_alone() -> None:
    text = RESIDUAL.replace("{shape}", "2, 3, 5, 5") + '\nMODE = "eval"\n'
    task = task_of(text).model_copy(update={"mode": "eval"})
    program = write_program(task, gpu(), NAMES)
    used = program.manifest.launchers if program.manifest is not None else []
    assert len(used) <= 1  # bn4 has no running statistics and uses the batch's in both modes


def test_a_large_mean_does_not_cost_the_variance_its_digits(tmp_path: Path) -> None:
    plan = NormPlan(batch=4, channels=2, area=400)
    emulate({"norm.cu": source([plan])}, tmp_path / "norm.so")
    x = torch.randn(4, 2, 400) + 1e4
    out = torch.empty_like(x)
    values: dict[str, Any] = {"x": x, "out": out, "batch": 4, "channels": 2, "area": 400, "activation": 0}
    values |= {"threads": plan.fit[0], "momentum": 0.1, "eps": 1e-5}
    given: list[Any] = []
    for name, kind, _ in plan.arguments:
        value: Any = values.get(name)
        if kind.endswith("*"):
            given.append(ctypes.c_void_p(value.data_ptr() if value is not None else None))
        else:
            given.append(ctypes.c_float(value) if kind == "float" else ctypes.c_longlong(value))
    assert getattr(ctypes.CDLL(str(tmp_path / "norm.so")), plan.launcher)(*given, None) == 0
    exact = x.double()
    exact = (exact - exact.mean((0, 2), keepdim=True)) / (exact.var((0, 2), correction=0, keepdim=True) + 1e-5).sqrt()
    assert (out - exact).abs().max() < 2e-3  # the input's own rounding


@needs_nvcc
def test_the_kernels_compile_for_every_architecture_with_next_to_no_spills(tmp_path: Path) -> None:
    alone = DepthwisePlan(10, 144, 56, 56, 5, 2)
    plans: list[Plan] = [NormPlan(10, 144, 3136), NormPlan(10, 32, 12544), alone, NormDepthwisePlan(alone, 232448)]
    for report in compiles(source(plans), tmp_path).values():
        spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", report)]
        assert spilled
        assert max(spilled) <= 16


@pytest.mark.parametrize("shape", [(32, 8), (32, 8, 1, 1), (4, 8, 3, 5), (4, 1, 32, 32)])
def test_on_cpu_short_planes_and_few_channels_are_left_to_pytorch(shape: tuple[int, ...]) -> None:
    kind = "BatchNorm1d" if len(shape) == 2 else "BatchNorm2d"
    norm = model_source("return F.relu(self.norm(a))", [shape], f"self.norm = nn.{kind}({shape[1]})")
    task = make_task(norm, mode="train")
    rewriter, _ = rewrite(task, make_device(), NAMES)
    assert rewriter.gains == []
