"""The generated CUDA kernels, thread by thread on the CPU: index arithmetic, packs, rows, reductions, slices."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stitchcuda.program.model import Program
from tests.recipes.emulation import emulated
from tests.recipes.support import make_task, model_source
from tests.recipes.test_fusion import random_forward

FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding")


def check(
    forward: str,
    shapes: list[tuple[int, ...]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    init: str = "pass",
    multiprocessors: int = 132,
) -> Program:
    """The program for cuda, whose emulated kernels give what the reference gives."""
    task = make_task(model_source(forward, shapes, init), "cuda")
    return emulated(task, FUSION, folder, monkeypatch, multiprocessors=multiprocessors)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    check(random_forward(random.Random(seed)), [(4, 6, 24), (24,), (4, 1, 24)], tmp_path, monkeypatch)


def test_strided_broadcast_and_offset_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "return torch.relu(a.transpose(1, 2) * b + c[:, :, 1:]) * d"
    check(forward, [(3, 20, 12), (12, 1), (3, 12, 21), (20,)], tmp_path, monkeypatch)


def test_vectors_with_a_value_per_channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = check("return F.silu(a + b) * c", [(3, 5, 8, 8), (5, 1, 1), (3, 5, 8, 8)], tmp_path, monkeypatch)
    assert "own::Pack<float, 4>" in program.files["fused.cu"]


@pytest.mark.parametrize(
    ("rows", "width"),
    [(3, 5), (21, 64), (21, 33), (5, 640), (3, 1024), (3, 9000), (21, 1028)],
    ids=["odd", "many rows", "many odd rows", "a block a row", "full packs", "large blocks", "eight items"],
)
def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, width: int) -> None:
    monkeypatch.setattr("stitchcuda.recipes.emit_cuda.MANY_ROWS", 20)
    forward = "x = a * b\nreturn F.softmax(x, -1), F.layer_norm(x + 1, (a.shape[-1],)), x.amax(-1), x.sum(-1)"
    check(forward, [(rows, width), (width,)], tmp_path, monkeypatch)


def test_rows_too_long_for_registers_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "return F.layer_norm(F.gelu(a) + b, (70001,))"
    program = check(forward, [(3, 70001), (70001,)], tmp_path, monkeypatch, multiprocessors=2)
    assert "keep_" not in program.files["fused.cu"]


def test_concatenation_bias_pooling_and_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = """
    x = F.max_pool2d(F.relu(self.stem(a)), 3, 2)
    x = torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)
    return F.adaptive_avg_pool2d(F.relu(self.last(x)), 1).flatten(1)
    """
    init = """
    self.stem = nn.Conv2d(3, 8, 3)
    self.one = nn.Conv2d(8, 6, 1)
    self.three = nn.Conv2d(8, 10, 3, padding=1)
    self.last = nn.Conv2d(16, 7, 1)
    """
    check(forward, [(2, 3, 17, 17)], tmp_path, monkeypatch, init=init)


CONVOLUTION = "self.conv = nn.Conv2d(3, 8, 3)"


def test_smaller_and_larger_of_two_tensors_join_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "x = torch.min(self.conv(a), torch.tensor(0.3)) + b\nreturn torch.max(x * 2, b) * 3"
    program = check(forward, [(2, 3, 9, 10), (8, 1, 1)], tmp_path, monkeypatch, init=CONVOLUTION)
    body = program.files["program.py"].split("def forward")[1]
    assert "_aten.min" not in body
    assert "_aten.max" not in body


def test_a_bias_joins_what_reads_the_convolution_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "x = self.conv(a)\nreturn (torch.sigmoid(x) + b) * x"
    program = check(forward, [(2, 3, 9, 10), (8, 1, 1)], tmp_path, monkeypatch, init=CONVOLUTION)
    convolution = next(line for line in program.files["program.py"].splitlines() if "_aten.conv2d" in line)
    assert "None" in convolution


def test_a_bias_is_added_behind_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = "return F.hardtanh(F.max_pool2d(self.conv(a), 2)).mean((2, 3), keepdim=True).tanh()"
    program = check(forward, [(2, 3, 18, 18)], tmp_path, monkeypatch, init=CONVOLUTION)
    convolution = next(line for line in program.files["program.py"].splitlines() if "_aten.conv2d" in line)
    assert "None" in convolution
    assert "add" in program.files["fused.cu"]
