"""The generated CUDA kernels, thread by thread on the CPU: index arithmetic, packs, rows, reductions, slices."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from stitchcuda.program.model import Program
from stitchcuda.recipes.write import write_program
from tests.recipes.emulation import gpu, load_emulated
from tests.recipes.support import leaves, make_task, model_source
from tests.recipes.test_fusion import random_forward

FUSION = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding")
SIXTEEN_BIT = """
#define INFINITY __builtin_inff()
struct narrow_bfloat16 { uint16_t raw; };
struct narrow_float16 { uint16_t raw; };
inline float from_bfloat16(narrow_bfloat16) { return 0; }
inline float from_float16(narrow_float16) { return 0; }
inline narrow_bfloat16 to_bfloat16(float) { return {}; }
inline narrow_float16 to_float16(float) { return {}; }
"""
NARROW = {
    "#include <cuda_bf16.h>": "#include <cuda_runtime.h>",
    "#include <cuda_fp16.h>": SIXTEEN_BIT,
    "__bfloat162float": "from_bfloat16",
    "__half2float": "from_float16",
    "__float2bfloat16": "to_bfloat16",
    "__float2half": "to_float16",
    "__nv_bfloat16": "narrow_bfloat16",
    "__half": "narrow_float16",
}
"""The toolkit's 16-bit types, which these tests do not use, under names that the emulator does not have."""


def plain_cpp(source: str) -> str:
    """CUDA C++ as the emulator takes it: launches as calls, stand-ins for the toolkit's 16-bit types."""

    def call(found: re.Match[str]) -> str:
        kernel, blocks, threads, names = found.groups()
        addresses = ", ".join(f"(void*)&{name.strip()}" for name in names.split(","))
        return f"void* list[] = {{{addresses}}}; cudaLaunchKernel({kernel}, {blocks}, {threads}, list, 0, nullptr);"

    text = re.sub(r"(\w+)<<<(\d+), (\d+), 0, [^>]*>\(stream\)>>>\(([^)]*)\);", call, source)
    for toolkit, stand_in in NARROW.items():
        text = text.replace(toolkit, stand_in)
    return text


def check(
    forward: str,
    shapes: list[tuple[int, ...]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    init: str = "pass",
    multiprocessors: int = 132,
) -> Program:
    """The emulated program gives what the reference gives."""
    task = make_task(model_source(forward, shapes, init), "cuda")
    program = write_program(task, gpu(multiprocessors), FUSION)
    assert program.manifest is not None
    files = {path: plain_cpp(text) if path.endswith(".cu") else text for path, text in program.files.items()}
    module = load_emulated(program.model_copy(update={"files": files}), folder, monkeypatch)
    torch.manual_seed(1)
    model = module.Model()
    new = module.ModelNew()
    new.load_state_dict(model.state_dict())
    scope: dict[str, object] = {}
    exec(task.source, scope)
    inputs = scope["get_inputs"]()  # type: ignore[operator]
    with torch.no_grad():
        got = leaves(new(*inputs))
        expected = leaves(scope_model(scope, model)(*inputs))
    for mine, eager in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=2e-5, atol=2e-5)
    return program


def scope_model(scope: dict[str, object], model: torch.nn.Module) -> torch.nn.Module:
    """The reference, whose forward the Program leaves out, with the same state."""
    reference: torch.nn.Module = scope["Model"]()  # type: ignore[operator]
    reference.load_state_dict(model.state_dict())
    return reference


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
    [(3, 5), (2100, 64), (2100, 33), (5, 640), (3, 1024), (3, 9000), (2100, 1028)],
    ids=["odd", "many rows", "many odd rows", "a block a row", "full packs", "large blocks", "eight items"],
)
def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, width: int) -> None:
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
