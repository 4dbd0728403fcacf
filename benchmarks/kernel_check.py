"""Builds the recurrent, BatchNorm and depthwise kernels on a GPU machine, checks them against float64 and times them.

Needs torch, nvcc and a GPU, nothing of the package beyond the kernel writers, which use the standard library alone.
Every group of cases runs in a process of its own under a time-out, and every result is printed as it comes, so a
kernel that hangs costs its group only. Writes JSON; prints a table last. Milliseconds are CUDA-event means over
replays of a CUDA graph with warm caches; the errors are the largest absolute errors against float64, own and eager's.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel_groups import Check, run

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "src" / "stitchcuda" / "recipes"
SHARED_MEMORY = 232448
"""Opt-in shared memory of a block on sm_90, bytes."""


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


recurrent = _load("recurrent_kernel")
normal = _load("batch_norm_train_kernel")

STACKS = {
    "38_lstm_bidirectional": recurrent.Stack("lstm", 512, 10, 128, 256, 6, True),
    "39_gru": recurrent.Stack("gru", 512, 10, 128, 256, 6),
    "35_lstm": recurrent.Stack("lstm", 512, 10, 128, 256, 6),
    "41_gru_bidirectional": recurrent.Stack("gru", 512, 10, 128, 256, 6, True),
}
NORMS = [(10, 32, 112), (10, 144, 56), (10, 40, 28), (10, 80, 14), (10, 1280, 7), (10, 192, 112), (10, 672, 224)]
DEPTHWISE = [
    (10, 32, 112, 3, 1),
    (10, 96, 112, 3, 2),
    (10, 128, 56, 3, 1),
    (10, 144, 56, 5, 2),
    (10, 512, 14, 3, 1),
    (10, 480, 14, 5, 1),
    (10, 1024, 7, 3, 1),
    (10, 1152, 7, 5, 1),
    (10, 672, 224, 5, 2),
]
POINTWISE = [
    (10, 32, 64, 112),
    (10, 128, 128, 56),
    (10, 24, 144, 56),
    (10, 512, 512, 14),
    (10, 112, 672, 14),
    (10, 1152, 192, 7),
    (10, 320, 1280, 7),
    (10, 112, 672, 224),
    (10, 256, 512, 14),
    (10, 480, 80, 14),
    (10, 672, 112, 14),
    (10, 1024, 1024, 7),
]


def tilings(name: str) -> list[Any]:
    """The tilings to try for a stack: the best predicted of each way to run it, of different shapes."""
    stack = STACKS[name]
    chosen: list[Any] = []
    for wavefront, cluster, count in ((True, False, 2), (False, False, 1), (False, True, 3)):
        seen: set[tuple[int, int, int]] = set()
        found = recurrent.tilings(
            stack, wavefront=wavefront, cluster=cluster, multiprocessors=132, shared_memory=SHARED_MEMORY
        )
        for tiling in found:
            key = (tiling.batch_tile, tiling.units, tiling.rows_per_warp)
            if key not in seen and len(seen) < count:
                seen.add(key)
                chosen.append(tiling)
    return chosen


def library(source: str, folder: Path, arch: str) -> Path:
    """The shared object of one source, compiled once."""
    key = hashlib.sha256((source + arch).encode()).hexdigest()[:16]
    path = folder / f"{key}.so"
    if not path.exists():
        (folder / f"{key}.cu").write_text(source)
        flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-O3", "-shared", "-Xcompiler", "-fPIC"]
        built = subprocess.run(
            ["nvcc", *flags, "-o", f"{path}.part", str(folder / f"{key}.cu")],
            capture_output=True,
            text=True,
            timeout=150,
        )
        if built.returncode:
            raise RuntimeError(built.stderr[-1500:])
        os.replace(f"{path}.part", path)
    return path


def plans() -> list[Any]:
    """Every BatchNorm and depthwise plan that is checked."""
    found: list[Any] = [normal.NormPlan(n, c, s * s) for n, c, s in NORMS]
    for n, c, s, k, stride in DEPTHWISE:
        alone = normal.DepthwisePlan(n, c, s, s, k, stride)
        found += [alone, normal.NormDepthwisePlan(alone, SHARED_MEMORY)]
    return found


def sources(groups: list[str]) -> dict[str, str]:
    """Every source that the groups check, by case."""
    found = {}
    for name, stack in STACKS.items():
        if name not in groups:
            continue
        for i, tiling in enumerate(tilings(name)):
            found[f"{name}/{i}"] = recurrent.source(stack, tiling, "recurrent")
    for plan in plans():
        if type(plan).__name__ not in groups:
            continue
        found[f"plan/{plan.launcher}"] = normal.source([plan])
    return found


# ---- On the device ----


class Launcher:
    """A C function called with tensors and numbers by name."""

    def __init__(self, path: Path, name: str, arguments: list[tuple[str, str, str]]) -> None:
        self.function = getattr(ctypes.CDLL(str(path)), name)
        self.arguments = arguments

    def __call__(self, **values: Any) -> None:
        import torch

        given: list[Any] = []
        for name, kind, _ in self.arguments:
            value = values[name]
            if kind.endswith("*"):
                given.append(ctypes.c_void_p(None if value is None else value.data_ptr()))
            else:
                given.append(ctypes.c_float(value) if kind == "float" else ctypes.c_longlong(value))
        code = self.function(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if code:
            raise RuntimeError(f"launch failed with CUDA error {code}")


def timed(call: Callable[[], Any], *, seconds: float = 0.25, graph: bool = True) -> float:
    """Milliseconds of one call: replays of a CUDA graph of it, or direct calls."""
    import torch

    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    run = call
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            call()
        run = captured.replay
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    repeats = 3
    while True:
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        passed = float(begin.elapsed_time(end)) / 1e3
        if passed > seconds or repeats >= 3000:
            return passed / repeats * 1e3
        repeats = min(3000, max(repeats * 2, int(repeats * seconds / max(passed, 1e-6) * 1.2)))


def error(value: Any, exact: Any) -> float:
    """Largest absolute difference from the float64 result."""
    return float((value.double() - exact).abs().max())


def check_recurrent(name: str, folder: Path, arch: str) -> Iterator[dict[str, Any]]:
    """Every tiling of a stack: outputs and final states against float64, whole-model and kernel-only times."""
    import torch

    stack = STACKS[name]
    hidden, layers, directions = stack.hidden, stack.layers, stack.directions
    torch.manual_seed(0)
    build = torch.nn.GRU if stack.kind == "gru" else torch.nn.LSTM
    net: Any = build(stack.inputs, hidden, layers, bidirectional=stack.bidirectional).cuda()
    lead = (stack.steps, stack.batch)
    x = torch.rand(*lead, stack.inputs, device="cuda")
    h0, c0 = (torch.rand(layers * directions, stack.batch, hidden, device="cuda") for _ in range(2))
    lstm = stack.kind == "lstm"

    def flat(result: Any) -> list[Any]:
        return [result[0], *result[1]] if lstm else list(result)

    def eager() -> Any:
        return net(x, (h0, c0) if lstm else h0)

    net.double()
    exact = flat(net(x.double(), (h0.double(), c0.double()) if lstm else h0.double()))
    net.float()
    net.flatten_parameters()
    eager_error = max(error(a, b) for a, b in zip(flat(eager()), exact, strict=True))
    base = {"eager_error": eager_error, "eager_ms": timed(eager, graph=False), "graph_ms": timed(eager)}

    def weight(kind: str, layer: int, direction: int = 0) -> Any:
        return getattr(net, f"{kind}_l{layer}" + ("_reverse" if direction else ""))

    for i, tiling in enumerate(tilings(name)):
        kinds = [(arg, "float*", role) for arg, role in recurrent.arguments(stack, tiling)]
        launcher = Launcher(library(recurrent.source(stack, tiling, "recurrent"), folder, arch), "recurrent", kinds)
        names = [arg for arg, _, _ in kinds]

        def run(
            launcher: Any = launcher, names: list[str] = names, wavefront: bool = tiling.wavefront, project: bool = True
        ) -> list[Any]:
            h_n, c_n = torch.empty_like(h0), torch.empty_like(c0)
            current = x
            short = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
            for layer in range(1 if wavefront else layers):
                if project or layer == 0:
                    w = (
                        torch.cat([weight("weight_ih", layer, d) for d in range(directions)])
                        if directions > 1
                        else weight("weight_ih", layer)
                    )
                    b = (
                        torch.cat([weight("bias_ih", layer, d) for d in range(directions)])
                        if directions > 1
                        else weight("bias_ih", layer)
                    )
                    projected = torch.nn.functional.linear(current, w, b)
                out = torch.empty(*lead, directions * hidden, device="cuda")
                values = {"x": projected, "out": out, "h0": h0, "c0": c0, "h_n": h_n, "c_n": c_n}
                if wavefront:
                    values["work"] = torch.empty(layers - 1, *out.shape, device="cuda")
                else:
                    cells = slice(layer * directions, (layer + 1) * directions)
                    values |= {key: values[key][cells] for key in ("h0", "c0", "h_n", "c_n")}
                for arg in names:
                    stem, _, chain = arg.rpartition("_")
                    if stem in short:
                        at = (int(chain), 0) if wavefront else (layer, int(chain))
                        values[arg] = weight(short[stem], *at)
                launcher(**values)
                current = out
            return [current, h_n, c_n] if lstm else [current, h_n]

        record: dict[str, Any] = {"case": f"{name}/{i}", "tiling": str(tiling), **base}
        try:
            with torch.no_grad():
                result = run()
                torch.cuda.synchronize()
                record["error"] = max(error(a, b) for a, b in zip(result, exact, strict=True))
                record["ok"] = record["error"] <= 4 * eager_error
                if record["ok"]:
                    record["own_ms"] = timed(run)
                    record["kernel_ms"] = timed(partial(run, project=False))
                    launches = 1 if tiling.wavefront else layers
                    record["us_per_step"] = record["kernel_ms"] * 1e3 / launches / stack.steps
                    again = run()
                    torch.cuda.synchronize()
                    record["repeatable"] = all(torch.equal(a, b) for a, b in zip(result, again, strict=True))
        except Exception as problem:
            record |= {"ok": False, "problem": str(problem)[:300]}
        yield record


def _norm_values(norm: Any, suffix: str) -> dict[str, Any]:
    return {
        f"weight{suffix}": norm.weight,
        f"bias{suffix}": norm.bias,
        f"running_mean{suffix}": norm.running_mean,
        f"running_var{suffix}": norm.running_var,
        f"batches{suffix}": norm.num_batches_tracked,
        f"momentum{suffix}": norm.momentum,
        f"eps{suffix}": norm.eps,
    }


def check_plans(kind: str, folder: Path, arch: str) -> Iterator[dict[str, Any]]:
    """BatchNorm, depthwise convolution and both in one, at the sizes of mobile networks."""
    import copy

    import torch
    from torch import nn

    for plan in plans():
        if type(plan).__name__ != kind:
            continue
        torch.manual_seed(0)
        shape = plan if kind != "NormDepthwisePlan" else plan.depthwise
        launcher = Launcher(library(normal.source([plan]), folder, arch), plan.launcher, plan.arguments)
        if kind == "NormPlan":
            side = round(plan.area**0.5)
            x = torch.randn(plan.batch, plan.channels, side, side, device="cuda") * 2 + 3
        else:
            x = torch.randn(shape.batch, shape.channels, shape.height, shape.width, device="cuda") * 2 + 3
        first, second = nn.BatchNorm2d(shape.channels).cuda(), nn.BatchNorm2d(shape.channels).cuda()
        values: dict[str, Any] = {
            "x": x,
            "batch": shape.batch,
            "channels": shape.channels,
            "workspace": torch.empty(max(getattr(plan, "workspace", 1), 1), device="cuda"),
        }
        if kind == "NormPlan":
            stock: Any = nn.Sequential(first, nn.ReLU())
            residual, out = None, torch.empty_like(x)
            values |= {"residual": residual, "area": plan.area, "activation": 1, "threads": plan.fit[0]}
            modules = [(first, "")]
        else:
            k, s, c = shape.kernel, shape.stride, shape.channels
            conv = nn.Conv2d(c, c, k, s, (k - 1) // 2, groups=c, bias=False).cuda()
            out = torch.empty(shape.batch, c, shape.out_height, shape.out_width, device="cuda")
            values |= {"filter": conv.weight, "height": shape.height, "width": shape.width}
            if kind == "DepthwisePlan":
                stock, modules = conv, []
                values |= {"bias": None, "tile_rows": shape.tile_rows}
            else:
                stock = nn.Sequential(first, nn.ReLU6(), conv, second, nn.ReLU6())
                modules = [(first, "_1"), (second, "_2")]
                values |= {"activation_1": 2, "activation_2": 2, "launch_size": plan.launch_size}
        values["out"] = out
        record: dict[str, Any] = {
            "case": f"{plan.launcher} {tuple(x.shape)}"
            + ("" if kind == "NormPlan" else f" k{shape.kernel} s{shape.stride}")
        }
        try:
            with torch.no_grad():
                mine, double = copy.deepcopy(modules), copy.deepcopy(stock).double()
                for norm, suffix in mine:
                    values |= _norm_values(norm, suffix)
                exact = double(x.double())
                launcher(**values)
                torch.cuda.synchronize()
                record["error"] = error(out, exact)
                record["eager_error"] = error(stock(x), exact)
                record["ok"] = record["error"] <= 4 * record["eager_error"] + 1e-7
                for (norm, _), (twin, _) in zip(mine, modules, strict=True):
                    for a, b in zip(norm.buffers(), twin.buffers(), strict=True):
                        record["ok"] = record["ok"] and bool(torch.allclose(a, b, rtol=1e-5, atol=1e-5))
                del exact, double
                record["own_ms"] = timed(partial(launcher, **values), seconds=0.1)
                record["graph_ms"] = timed(partial(stock, x), seconds=0.1)
                record["eager_ms"] = timed(partial(stock, x), seconds=0.1, graph=False)
        except Exception as problem:
            record |= {"ok": False, "problem": str(problem)[:300]}
        yield record


def check_pointwise(folder: Path, arch: str) -> Iterator[dict[str, Any]]:
    """Which library route is fastest for 1x1 convolutions in strict float32."""
    import torch
    from torch.nn import functional as F

    for n, c, k, s in POINTWISE:
        x, w = torch.randn(n, c, s, s, device="cuda"), torch.randn(k, c, 1, 1, device="cuda") * c**-0.5
        flat, matrix = x.view(n, c, s * s), w.view(k, c)
        last, w_last = x.contiguous(memory_format=torch.channels_last), w.contiguous(memory_format=torch.channels_last)
        rows = last.permute(0, 2, 3, 1).reshape(-1, c)
        with torch.no_grad():
            exact = F.conv2d(x.double(), w.double())
            y = torch.matmul(matrix, flat).view(n, k, s, s)
            record: dict[str, Any] = {"case": f"pointwise {(n, c, s, s)} to {k}", "error": error(y, exact)}
            record["eager_error"] = error(F.conv2d(x, w), exact)
            record["ok"] = record["error"] <= 4 * record["eager_error"]
            del exact, y
            wide = matrix.expand(n, k, c)
            record["own_ms"] = timed(partial(torch.bmm, wide, flat), seconds=0.1)
            record["matmul_ms"] = timed(partial(torch.matmul, matrix, flat), seconds=0.1)
            record["graph_ms"] = timed(partial(F.conv2d, x, w), seconds=0.1)
            record["channels_last_ms"] = timed(partial(F.conv2d, last, w_last), seconds=0.1)
            record["rows_gemm_ms"] = timed(partial(F.linear, rows, matrix), seconds=0.1)
        yield record


GROUPS = [*STACKS, "NormPlan", "NormDepthwisePlan", "DepthwisePlan", "pointwise"]
USUAL = ["38_lstm_bidirectional", "39_gru", "DepthwisePlan", "NormDepthwisePlan", "41_gru_bidirectional", "pointwise"]
"""What runs when no group is named, the most telling first."""


def cases(group: str, folder: Path, arch: str) -> Iterator[dict[str, Any]]:
    """One group's results."""
    if group in STACKS:
        return check_recurrent(group, folder, arch)
    return check_pointwise(folder, arch) if group == "pointwise" else check_plans(group, folder, arch)


def chosen(only: str) -> list[str]:
    """The groups to run."""
    return list(GROUPS) if only == "all" else only.split(",") if only else list(USUAL)


def builds(groups: list[str], folder: Path, arch: str) -> dict[str, Callable[[], object]]:
    """Every kernel of the groups."""
    return {name: partial(library, text, folder, arch) for name, text in sources(groups).items()}


def table(records: list[dict[str, Any]]) -> str:
    """A line a result."""
    lines = []
    for r in records:
        times = " ".join(f"{key[:-3]}={r[key]:.4f}" for key in r if key.endswith("_ms"))
        extra = f" us/step={r['us_per_step']:.2f} same={r.get('repeatable')}" if "us_per_step" in r else ""
        errors = f" err={r['error']:.1e}/{r['eager_error']:.1e}" if "error" in r and "eager_error" in r else ""
        state = "ok " if r.get("ok") else "BAD"
        lines.append(f"{state} {r['case'][:70]:70s} {times}{extra}{errors} {r.get('problem', '')}")
        if "tiling" in r:
            lines.append(f"      {r['tiling']}")
    return "\n".join(lines)


if __name__ == "__main__":
    run(Check(Path(__file__), __doc__ or "", chosen, builds, cases, table, group_seconds=45))
