"""The kernels that are bound by memory compile for each architecture, and keep what they hold in registers."""

from __future__ import annotations

import re
from pathlib import Path

from stitchcuda.recipes import channel_softmax, column_reduction, cross_entropy, masked_scan, softmax_pool
from stitchcuda.recipes.conv_depthwise_planes_kernel import Planes
from stitchcuda.recipes.group_norm_kernel import Chain, GroupNormPlan
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.window_sums import Window, WindowSums
from tests.recipes.emulation import compiles, needs_nvcc

WINDOWS = (Window(0, 31, 1), Window(0, 32, 2), Window(1, 32, 1), Window(0, 0, 1))
BEFORE = Chain(("a0", "a1"), (True, False), ("const float av0 = own::sigmoid((x + a0) * a1);",), "av0")
NORM = GroupNormPlan(
    rows=896,
    groups=8,
    group_channels=8,
    area=512 * 512,
    eps=1e-5,
    team=64,
    teams=2,
    items=16,
    gamma=True,
    beta=True,
    sums=False,
    before=BEFORE,
    after=Chain((), (), (), "x"),
)
SOURCES = {
    "columns": WindowSums(6, 32, 16, WINDOWS).source(),
    "rows": WindowSums(6, 200, 1, WINDOWS).source(),
    "wide": Planes(32, 128, 128, 256, (3, 7), (0, 0)).source(),
    "scan": masked_scan.source(8, 32768, masked=True),
    "loss": cross_entropy.source(4096, 4096, 528, -100, mean=True),
    "argmax": column_reduction.source("argmax", 128, 4096, 4095),
    "mean": column_reduction.source("mean", 128, 4096, 4095),
    "pool": softmax_pool.Windows(128, 16, (14, 30, 30), (4, 4, 4)).source(),
    "softmax": channel_softmax.source((16, 64, 1, 128, 128), BEFORE, Chain((), (), (), "own::tanh(x)")),
    "norm": NORM.source(prelude("cuda")),
}


@needs_nvcc
def test_the_kernels_compile_and_hardly_spill(tmp_path: Path) -> None:
    shared = prelude("cuda")
    includes = sorted({line for text in SOURCES.values() for line in text.splitlines() if line.startswith("#include")})
    parts = []
    for name, text in SOURCES.items():
        text = text.removeprefix(shared)
        body = "\n".join(line for line in text.splitlines() if not line.startswith("#include"))
        parts.append(f"namespace {name}_source {{\n{body.replace('@NAME@', name)}\n}}")
    for report in compiles("\n".join([*includes, shared, *parts]), tmp_path).values():
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill stores", report)]
        assert len(spills) == len(SOURCES)
        assert max(spills) <= 32
