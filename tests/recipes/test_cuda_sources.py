"""Every CUDA source that the recipes write compiles for each supported architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.recipes.support import make_task, model_source, written

NVCC = shutil.which("nvcc") or (shutil.which("/usr/local/cuda/bin/nvcc"))
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120a")
FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding", "cuda_graph")

PROGRAMS = {
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
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_fused_kernels_compile(tmp_path: Path, architecture: str, precision: str) -> None:
    sources = []
    for name, (forward, shapes) in PROGRAMS.items():
        program = written(make_task(model_source(forward, shapes), "cuda", precision=precision), FUSION)  # type: ignore[arg-type]
        assert program.manifest is not None
        source = tmp_path / f"{name}.cu"
        source.write_text(program.files["fused.cu"])
        sources.append(source)
    for source in sources:
        compile_cubin(source, architecture)


def compile_cubin(source: Path, architecture: str) -> None:
    """nvcc to a cubin, warnings being errors."""
    assert NVCC is not None
    command = [NVCC, "-cubin", f"-arch={architecture}", "-std=c++17", "-Werror", "all-warnings"]
    result = subprocess.run(
        [*command, "-o", os.devnull, str(source)], capture_output=True, text=True, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr[-3000:]
