"""Every CUDA source that the recipes write compiles for each supported architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stitchcuda.task.model import Precision
from tests.recipes import test_full_reduction, test_row_losses
from tests.recipes.emulation import ARCHITECTURES
from tests.recipes.support import make_task, model_source, written

NVCC = shutil.which("nvcc") or (shutil.which("/usr/local/cuda/bin/nvcc"))
FULL = ("full_reduction", "row_losses")
FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding", "cuda_graph")

PROGRAMS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "pointwise": (
        "x = F.gelu(a) * b + 1\ny = torch.where(x > 0, F.silu(x), F.elu(x).tanh())\n"
        "return y, torch.sin(x) * torch.log1p(x.abs()), (x ** 2.5).clamp(0, 3) / 2",
        [(33, 128), (33, 1)],
    ),
    "odd": ("return F.softplus(a.transpose(0, 1) + b) * F.mish(b), (a.t() > b) & (b > 0)", [(7, 13), (13, 7)]),
    "narrow_rows": ("return F.softmax(a * 0.5 + b, -1), F.layer_norm(a * b, (64,))", [(4000, 64), (4000, 64)]),
    "wide_rows": (
        "x = a * b\nreturn F.log_softmax(x, -1), x.amax(-1), torch.logsumexp(x + 1, -1)",
        [(9, 9000), (9, 9000)],
    ),
    "very_wide_rows": ("return F.layer_norm(F.gelu(a) + b, (100001,))", [(200, 100001), (200, 100001)]),
    "planes": ("return F.adaptive_avg_pool2d(F.relu(a + b), 1)", [(64, 100, 13, 13), (100, 1, 1)]),
}


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_fused_kernels_compile(tmp_path: Path, precision: Precision) -> None:
    texts = []
    for forward, shapes in PROGRAMS.values():
        program = written(make_task(model_source(forward, shapes), "cuda", precision=precision), FUSION)
        assert program.manifest is not None
        texts.append(program.files["fused.cu"])
    source = tmp_path / "fused.cu"
    source.write_text(joined(texts))
    compile_fatbin(source)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_reductions_over_everything_compile(tmp_path: Path) -> None:
    cases = [*test_full_reduction.CASES.values(), *test_row_losses.CASES.values()]
    cases.append(("return (a * b).double().mean(), (a * b).float().sum()", [(40, 64), (40, 64)]))
    texts = []
    for forward, shapes in cases:
        program = written(make_task(model_source(forward, shapes), "cuda"), FULL)
        texts += [text for path, text in program.files.items() if path.endswith(".cu")]
    half = written(make_task(model_source("return F.mse_loss(a, b)", [(40, 64)] * 2), "cuda", precision="bf16"), FULL)
    texts += [text for path, text in half.files.items() if path.endswith(".cu")]
    source = tmp_path / "full.cu"
    source.write_text(joined(list(dict.fromkeys(texts))))
    compile_fatbin(source)


def joined(texts: list[str]) -> str:
    """Sources as one, to be compiled at once: what all begin with, then the kernels and launchers of each."""
    beginning = {text[: text.index("__global__")] for text in texts}
    assert len(beginning) == 1, "not all begin alike"
    (common,) = beginning
    return common + "\n".join(text.removeprefix(common) for text in texts)


def compile_fatbin(source: Path) -> None:
    """nvcc for every architecture, warnings being errors."""
    assert NVCC is not None
    targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in ARCHITECTURES]
    command = [NVCC, "-fatbin", *targets, "-std=c++17", "-Werror", "all-warnings", "-o", os.devnull, str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
