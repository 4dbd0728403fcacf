"""Measure a device and print Ceilings as JSON: ``python -m stitchcuda.hardware.measure_ceilings KIND CACHE_BYTES``.

Started by ``hardware.ceilings``. The best of several repetitions and passes counts, because a ceiling is what can
be reached, not what usually is, and others may have used the device meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

PASSES = 3
"""At most so many passes over everything."""
L2_UPDATES = 50
"""Updates in the graph that measures the L2."""
AGREEMENT = 0.05
"""Two passes that differ by less than this share agree."""
PAUSE_S = 0.5
"""Between passes, seconds."""


def best_seconds(call: Callable[[], object], device: str, *, budget_s: float = 0.3) -> float:
    """Least seconds of one call, repeated for about ``budget_s`` and at least three times."""
    call()
    best, start = float("inf"), time.perf_counter()
    for number in range(200):
        if number >= 3 and time.perf_counter() - start > budget_s:
            break
        best = min(best, _once(call, device))
    return best


def copy_rate(device: str, cache_bytes: int) -> float:
    """Bytes read plus bytes written per second by a device copy too large for the cache."""
    if device == "cuda":
        size = min(2**30, torch.cuda.get_device_properties(0).total_memory // 8)
    else:
        size = min(max(4 * cache_bytes, 2**27), 2**28)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    return 2 * source.numel() * 4 / best_seconds(lambda: target.copy_(source), device)


def l2_rate(cache_bytes: int) -> float | None:
    """Bytes read plus written per second by updates in place of what fits in half of the L2, in one CUDA graph.

    Launches in a graph follow one another within about a microsecond, a twentieth of an update. None where it fails.
    """
    try:
        values = torch.ones(cache_bytes // 2 // 4, dtype=torch.float32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        values.mul_(1.0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(L2_UPDATES):
                values.mul_(1.0)
        return 2 * values.numel() * 4 * L2_UPDATES / best_seconds(graph.replay, "cuda", budget_s=0.1)
    except RuntimeError:
        return None


def product_rate(device: str, precision: str) -> float | None:
    """FLOP/s of a square matrix product in a precision class; None where the device cannot or takes too long."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    best = 0.0
    for size in (4096, 8192) if device == "cuda" else (512, 1024):
        try:
            a = torch.randn(size, size, device=device).to(DTYPES[precision])
            b = torch.randn(size, size, device=device).to(DTYPES[precision])
            seconds = best_seconds(lambda a=a, b=b: torch.mm(a, b), device, budget_s=0.2)  # type: ignore[misc]
        except RuntimeError:
            return best or None
        best = max(best, 2 * size**3 / seconds)
        if 8 * seconds > 0.5:  # a product of twice the size takes eight times as long
            break
    return best


def one_pass(device: str, cache_bytes: int) -> dict[str, float]:
    """Every rate once, by name: the precision classes, 'copy', and 'l2' on a GPU."""
    rates = {precision: product_rate(device, precision) for precision in DTYPES}
    if device == "cuda" and cache_bytes > 0:
        rates["l2"] = l2_rate(cache_bytes)
    return {"copy": copy_rate(device, cache_bytes)} | {name: rate for name, rate in rates.items() if rate}


def agreed(
    measure: Callable[[], dict[str, float]], *, passes: int = PASSES, pause_s: float = PAUSE_S
) -> dict[str, float]:
    """The best of several passes with pauses between, until a further pass gains less than ``AGREEMENT`` anywhere.

    Other processes on the device come and go, and take from one pass more than from another.
    """
    best = measure()
    for _ in range(passes - 1):
        time.sleep(pause_s)
        again = measure()
        settled = all(again.get(name, 0.0) >= (1 - AGREEMENT) * rate for name, rate in best.items())
        gained = any(rate > (1 + AGREEMENT) * best.get(name, 0.0) for name, rate in again.items())
        best = {name: max(rate, again.get(name, 0.0)) for name, rate in (again | best).items()}
        if settled and not gained:
            break
    return best


def main() -> None:
    """Measure and print."""
    device, cache_bytes = sys.argv[1], int(sys.argv[2])
    rates = agreed(lambda: one_pass(device, cache_bytes))
    result = {
        "copy_bytes_per_second": rates.pop("copy"),
        "l2_bytes_per_second": rates.pop("l2", 0.0),
        "flops_per_second": rates,
        "measured_on": datetime.now(UTC).date().isoformat(),
    }
    print(json.dumps(result))


def _once(call: Callable[[], object], device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


if __name__ == "__main__":
    main()
