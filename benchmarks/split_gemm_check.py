"""Builds the split-float16 matrix product on a GPU machine, checks every tiling against float64 and times it.

Needs torch, nvcc and a GPU, nothing of the package beyond the kernel writer, which uses the standard library alone.
Every tiling runs in a process of its own under a time-out, and results are printed as they come, so a kernel that
hangs costs its own rows only. Writes JSON; prints a table last. Milliseconds are CUDA-event means over repeated calls,
the split of the activations included, that of the weights not; errors are relative by the norm, against float64.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel_groups import Check, run

ROOT = Path(__file__).resolve().parent.parent
WRITER = ROOT / "src" / "stitchcuda" / "recipes" / "split_gemm_kernel.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(WRITER.stem, WRITER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[WRITER.stem] = module
    spec.loader.exec_module(module)
    return module


kernel = _load()

TILINGS = {
    "cluster_2": kernel.Tiling(wgmma=True, stages=3, cluster=2),
    "cluster_2_round_4": kernel.Tiling(wgmma=True, stages=3, cluster=2, round=4),
    "cluster_2_round_8": kernel.Tiling(wgmma=True, stages=3, cluster=2, round=8),
    "cluster_2_round_4_stream": kernel.Tiling(wgmma=True, stages=3, cluster=2, round=4, stream=True),
    "cluster_2_round_4_k32": kernel.Tiling(wgmma=True, stages=7, k_tile=32, cluster=2, round=4),
    "cluster_1_round_4": kernel.Tiling(wgmma=True, stages=3, round=4),
    "cluster_2_round_2": kernel.Tiling(wgmma=True, stages=3, cluster=2, round=2),
}
SMALL = [
    (128, 256, 1024, 1),
    (1, 16, 8, 1),
    (130, 300, 1032, 1),
    (17, 130, 4096, 3),
    (300, 1030, 520, 1),
    (64, 3000, 8192, 2),
]
"""m, n, k and in how many parts K is cut."""
LAYERS = [(128, 32768, 16384), (128, 32768, 32768), (128, 16384, 32768)]
"""KernelBench level 3 task 2."""
OTHERS = [
    (16, 4096, 4096),
    (128, 1024, 1024),
    (128, 4096, 4096),
    (64, 8192, 8192),
    (1024, 8192, 8192),
    (4096, 4096, 4096),
]


def library(name: str, folder: Path, arch: str) -> Path:
    """The shared object of one tiling."""
    path = folder / f"{name}.so"
    (folder / f"{name}.cu").write_text(kernel.source(TILINGS[name]))
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC"]
    command = ["nvcc", *flags, "-o", str(path), str(folder / f"{name}.cu")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if built.returncode:
        raise RuntimeError(built.stderr[-1500:])
    return path


# ---- On the device ----


def timed(call: Callable[[], Any], seconds: float = 0.12) -> float:
    """Milliseconds of one call, replayed in a CUDA graph of ten so that no launch waits for the host."""
    import torch

    event: Any = torch.cuda.Event

    def run(work: Callable[[], Any], count: int) -> float:
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    run(call, 2)
    once = run(call, 3)
    if once > 0.5:
        return run(call, max(3, int(1000 * seconds / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    run(graph.replay, 2)
    return run(graph.replay, max(3, min(500, int(100 * seconds / once)))) / 10


def clocks(call: Callable[[], Any]) -> str:
    """SM clock, power and the reasons of throttling while the call repeats."""
    import torch

    for _ in range(600):
        call()
    query = "clocks.sm,power.draw,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        text = str(problem)
    torch.cuda.synchronize()
    return text.strip()


def distance(value: Any, exact: Any) -> float:
    """Relative error by the norm."""
    return float((value.double() - exact).norm() / exact.norm().clamp_min(1e-30))


class Kernels:
    """One tiling's launchers on tensors."""

    def __init__(self, name: str, folder: Path) -> None:
        self.tiling = TILINGS[name]
        loaded = ctypes.CDLL(str(folder / f"{name}.so"))
        self._pack, self._linear = getattr(loaded, self.tiling.pack), getattr(loaded, self.tiling.linear)

    def pack(self, w: Any) -> tuple[Any, Any]:
        """A weight's image and exponents."""
        import torch

        n, k = w.shape
        image = torch.empty(self.tiling.image_halfs(n, k), dtype=torch.float16, device="cuda")
        exponents = torch.empty(kernel.tiles(n) * kernel.TILE, dtype=torch.int32, device="cuda")
        _run(self._pack, w, image, exponents, n, k)
        return image, exponents

    def linear(
        self, x: Any, packed: tuple[Any, Any], n: int, *, bias: Any = None, activation: str = "none", parts: int = 1
    ) -> Callable[[], Any]:
        """A call that computes the product into the same output each time and returns it."""
        import torch

        m, k = x.shape
        image = torch.empty(self.tiling.image_halfs(m, k), dtype=torch.float16, device="cuda")
        rows = torch.empty(2 * kernel.tiles(m) * kernel.TILE, dtype=torch.int32, device="cuda")
        out = torch.full((m, n), float("nan"), device="cuda")
        partials = torch.empty(parts, m, n, device="cuda") if parts > 1 else None
        code = kernel.ACTIVATIONS[activation]

        def call() -> Any:
            _run(self._linear, x, *packed, bias, out, image, rows, partials, m, n, k, parts, code)
            return out

        return call


def _run(function: Any, *values: Any) -> None:
    import torch

    given: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            given.append(ctypes.c_void_p(value.data_ptr()))
        else:
            given.append(ctypes.c_longlong(value) if isinstance(value, int) else ctypes.c_void_p(None))
    code = function(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if code:
        raise RuntimeError(f"the launcher returned {code}")


def check_small(kernels: Kernels) -> Iterator[dict[str, Any]]:
    """Odd sizes, spiked rows, infinities and NaN."""
    import torch

    for m, n, k, parts in SMALL:
        x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        bias = torch.randn(n, device="cuda")
        exact = torch.relu(x.double() @ w.double().T + bias.double())
        eager = torch.relu(torch.nn.functional.linear(x, w, bias))
        call = kernels.linear(x, kernels.pack(w), n, bias=bias, activation="relu", parts=parts)
        got = call().clone()
        record: dict[str, Any] = {
            "case": f"{m}x{n}x{k}/{parts}",
            "error": distance(got, exact),
            "eager_error": distance(eager, exact),
        }
        record["same"] = all(torch.equal(call(), got) for _ in range(10))
        yield record | {"ok": record["error"] < 2e-6 and record["same"]}
    x, w = torch.rand(128, 4096, device="cuda") * 0.1, torch.randn(256, 4096, device="cuda")
    x[5, 100] = 1e4
    x[7] *= 1e30
    x[8] *= 1e-33
    w[3, 9] = 3e3
    exact = x.double() @ w.double().T
    got = kernels.linear(x, kernels.pack(w), 256)()
    rows = (got.double() - exact).norm(dim=1) / exact.norm(dim=1)
    eager = (torch.nn.functional.linear(x, w).double() - exact).norm(dim=1) / exact.norm(dim=1)
    record = {"case": "spiked", "error": float(rows.max()), "eager_error": float(eager.max())}
    yield record | {"ok": record["error"] < 2e-6}
    x[1, 2], x[2, 3], x[2, 9], x[3, 4] = float("inf"), float("inf"), float("-inf"), float("nan")
    eager = torch.nn.functional.linear(x, w)
    got = kernels.linear(x, kernels.pack(w), 256)()
    special = ~eager.isfinite()
    same = torch.equal(got[special].nan_to_num(7.0), eager[special].nan_to_num(7.0))
    yield {"case": "not finite", "ok": same and torch.equal(special, ~got.isfinite()), "count": int(special.sum())}


def check_tiling(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """One tiling: small sizes, then the layers of task 2, then others."""
    import torch

    kernels = Kernels(name, folder)
    yield from check_small(kernels)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for m, n, k in LAYERS + OTHERS:
        x, w = torch.rand(m, k, device="cuda"), (torch.rand(n, k, device="cuda") - 0.5) * (2 * k**-0.5)
        bias = torch.rand(n, device="cuda")
        packed = kernels.pack(w)
        parts = kernel.splits(m, n, k, processors, kernels.tiling)
        call = kernels.linear(x, packed, n, bias=bias, activation="relu", parts=parts)
        record: dict[str, Any] = {"case": f"{m}x{n}x{k}/{parts}"}
        exact = torch.relu(x.double() @ w.double().T + bias.double())
        record["error"] = distance(call(), exact)
        del exact
        record["own_ms"] = timed(call)
        record["tflops"] = 2e-9 * m * n * k / record["own_ms"]
        if (m, n, k) == LAYERS[1]:
            record["pack_ms"] = timed(partial(kernels.pack, w))
            record["split_ms"] = timed(partial(kernels.pack, x))
            record["clocks"] = clocks(call)
        yield record | {"ok": record["error"] < 2e-6}
        del x, w, packed, call
        torch.cuda.empty_cache()


def check_stock() -> Iterator[dict[str, Any]]:
    """The library's float32 and TF32 products."""
    import torch

    for m, n, k in LAYERS + OTHERS:
        x, w = torch.rand(m, k, device="cuda"), (torch.rand(n, k, device="cuda") - 0.5) * (2 * k**-0.5)
        bias = torch.rand(n, device="cuda")
        exact = torch.relu(x.double() @ w.double().T + bias.double())

        def call(x: Any = x, w: Any = w, bias: Any = bias) -> Any:
            return torch.relu(torch.nn.functional.linear(x, w, bias))

        record: dict[str, Any] = {"case": f"{m}x{n}x{k}", "ok": True, "error": distance(call(), exact)}
        del exact
        record["fp32_ms"] = timed(call)
        torch.backends.cuda.matmul.allow_tf32 = True
        record["tf32_ms"] = timed(call)
        torch.backends.cuda.matmul.allow_tf32 = False
        half, weight = x.half(), w.half()
        record["fp16_ms"] = timed(partial(torch.nn.functional.linear, half, weight))
        yield record
        del x, w, call, half, weight
        torch.cuda.empty_cache()


def cases(group: str, folder: Path, arch: str) -> Iterator[dict[str, Any]]:
    """One group's results."""
    return check_stock() if group == "stock" else check_tiling(group, folder)


def chosen(only: str) -> list[str]:
    """The groups to run."""
    return only.split(",") if only not in ("", "all") else ["stock", *TILINGS]


def builds(groups: list[str], folder: Path, arch: str) -> dict[str, Callable[[], object]]:
    """Every tiling of the groups."""
    return {name: partial(library, name, folder, arch) for name in groups if name in TILINGS}


def table(records: list[dict[str, Any]]) -> str:
    """A line a result, the best last."""
    lines = []
    for r in records:
        times = " ".join(f"{key[:-3]}={r[key]:.4f}" for key in r if key.endswith("_ms"))
        errors = f"err={r['error']:.1e}" if "error" in r else ""
        errors += f"/{r['eager_error']:.1e}" if "eager_error" in r else ""
        rate = f"{r['tflops']:.0f}T" if "tflops" in r else ""
        state = "ok " if r.get("ok") else "BAD"
        rest = f"{r.get('clocks', '')} {r.get('problem', '')}"
        lines.append(f"{state} {r['group'][:27]:27s} {r['case']:22s} {times} {rate} {errors} {rest}")
    for group in dict.fromkeys(r["group"] for r in records):
        of_layers = [r for r in records if r["group"] == group and r["case"].split("/")[0] in _names()]
        for key in ("own_ms", "fp32_ms", "tf32_ms"):
            layers = [float(r[key]) for r in of_layers if key in r]
            if len(layers) == len(LAYERS):
                lines.append(f"three layers: {group} {key[:-3]} {sum(layers):.3f} ms")
    return "\n".join(lines)


def _names() -> set[str]:
    return {f"{m}x{n}x{k}" for m, n, k in LAYERS}


if __name__ == "__main__":
    run(Check(Path(__file__), __doc__ or "", chosen, builds, cases, table, group_seconds=25))
