"""Runs cases of known bottleneck in one process, for a profiler around it or Kineto inside it.

``driver.py kernels OUT SO...`` calls each case once to warm up and once between cuProfilerStart and cuProfilerStop;
standard library only, so that it starts at once under ncu. ``driver.py nsys OUT SO...`` makes whole calls in NVTX
ranges named after the cases; ``driver.py kineto OUT SO...`` traces them by torch.profiler and writes one Chrome trace a
case. OUT is a folder; ``OUT/done.jsonl`` says how each case went, line by line as it goes, because a failed case ends
the process.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

WARM_CALLS = 2
"""Calls before the traced ones, for what is only slow once."""
TRACED_CALLS = 3
RANGE = "truth:"
"""Ranges of calls are named so and after the case."""


class Driver:
    """The CUDA driver through ctypes, with the primary context that the runtime in the cases uses too."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.lib.cuInit(0), "cuInit")
        self.check(self.lib.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        self.check(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        self.check(self.lib.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def check(self, status: int, what: str) -> None:
        """Raise where a driver call failed."""
        if status:
            raise RuntimeError(f"{what} failed with CUDA driver error {status}")

    def synchronize(self) -> None:
        """Wait for the device."""
        self.check(self.lib.cuCtxSynchronize(), "cuCtxSynchronize")


class Case:
    """The plain C interface of one compiled case."""

    def __init__(self, path: str) -> None:
        self.name = Path(path).stem
        self.lib = ctypes.CDLL(path)

    def call(self, function: str) -> None:
        """``truth_prepare``, ``truth_run`` or ``truth_release``; raises where it returns a CUDA error."""
        if status := getattr(self.lib, function)():
            raise RuntimeError(f"{function} of {self.name} returned CUDA error {status}")


def kernels(driver: Driver, case: Case, out: Path) -> dict[str, object]:
    """One warm call, one for the profiler."""
    case.call("truth_prepare")
    case.call("truth_run")
    driver.synchronize()
    driver.check(driver.lib.cuProfilerStart(), "cuProfilerStart")
    case.call("truth_run")
    driver.synchronize()
    driver.check(driver.lib.cuProfilerStop(), "cuProfilerStop")
    case.call("truth_release")
    return {}


def seconds_of_a_call(driver: Driver, case: Case) -> float:
    """Prepare, warm up, and time one call by the host's clock."""
    case.call("truth_prepare")
    for _ in range(WARM_CALLS):
        case.call("truth_run")
    driver.synchronize()
    start = time.perf_counter()
    case.call("truth_run")
    driver.synchronize()
    return time.perf_counter() - start


def nsys(driver: Driver, case: Case, out: Path) -> dict[str, object]:
    """Calls in NVTX ranges, for Nsight Systems around this process."""
    from torch.cuda import nvtx

    seconds = seconds_of_a_call(driver, case)
    for _ in range(TRACED_CALLS):
        nvtx.range_push(RANGE + case.name)  # type: ignore[no-untyped-call]
        case.call("truth_run")
        driver.synchronize()
        nvtx.range_pop()  # type: ignore[no-untyped-call]
    case.call("truth_release")
    return {"seconds": seconds}


def kineto(driver: Driver, case: Case, out: Path) -> dict[str, object]:
    """The same in annotations of torch.profiler, and a trace of them."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    seconds = seconds_of_a_call(driver, case)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        case.call("truth_run")  # the tracer is slow in its first call
        torch.cuda.synchronize()
        for _ in range(TRACED_CALLS):
            with record_function(RANGE + case.name):
                case.call("truth_run")
                driver.synchronize()
    path = out / f"{case.name}.trace.json"
    trace.export_chrome_trace(str(path))
    case.call("truth_release")
    return {"seconds": seconds, "trace": path.name}


def main() -> None:
    """Run the cases named on the command line, writing how each went."""
    mode, out, paths = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    out.mkdir(parents=True, exist_ok=True)
    if mode != "kernels":
        import torch

        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    driver, run = Driver(), {"kernels": kernels, "nsys": nsys, "kineto": kineto}[mode]
    with (out / "done.jsonl").open("a") as log:
        for path in paths:
            started = time.perf_counter()
            record: dict[str, object] = {"case": Path(path).stem}
            try:
                record |= run(driver, Case(path), out)
            except (RuntimeError, OSError, AttributeError) as error:
                record["error"] = str(error)
            record["took"] = round(time.perf_counter() - started, 3)
            log.write(json.dumps(record) + "\n")
            log.flush()
            if "error" in record:
                sys.exit(1)


if __name__ == "__main__":
    main()
