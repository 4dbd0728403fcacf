"""Streams that nobody waits for and limits that are not given back are rejected; those that are joined are not."""

from __future__ import annotations

import pytest

from tests.evaluation.integrity.support import forward, inspected, rejected

SIDE = "self.side = torch.cuda.Stream()"
WORK = "with torch.cuda.stream(self.side):\n    y = g(x)\n"
BEFORE = "self.side.wait_stream(torch.cuda.current_stream())\n"
DRIVER = "import ctypes\ndriver = ctypes.CDLL('libcuda.so.1')\n"


def rules(body: str, init: str = SIDE, before: str = "") -> set[str]:
    return rejected(inspected(before + forward(body, init)))


@pytest.mark.parametrize(
    "body", [f"{BEFORE}{WORK}return y", f"{WORK}return y", "torch.cuda.set_stream(self.side)\nreturn g(x)"]
)
def test_work_on_a_stream_that_nobody_waits_for_is_rejected(body: str) -> None:
    assert rules(body) == {"unjoined_stream"}


@pytest.mark.parametrize(
    "after",
    [
        "torch.cuda.current_stream().wait_stream(self.side)",
        "now = torch.cuda.current_stream()\nnow.wait_stream(self.side)",
        "torch.cuda.current_stream().wait_event(self.side.record_event())",
        "self.done.record(self.side)\nself.done.wait()",
        "self.side.synchronize()",
        "torch.cuda.synchronize()",
        "y = y.cpu()",
        "while not self.done.query(): pass",
        "join(self.side.cuda_stream, torch.cuda.current_stream().cuda_stream)",
    ],
)
def test_a_stream_that_is_waited_for_is_not(after: str) -> None:
    assert rules(f"{BEFORE}{WORK}{after}\nreturn y") == set()


def test_a_stream_that_no_work_goes_to_or_that_a_graph_is_captured_on_is_not() -> None:
    assert rules("return g(x)") == set()
    capture = (
        "self.state.copy_(x)\nwith torch.cuda.stream(self.side):\n    capture()\nself.graph.replay()\nreturn self.y"
    )
    assert rules(capture) == set()


def test_a_stream_of_the_drivers_has_to_be_waited_for_too() -> None:
    made = "driver.cuStreamCreate(handle, 1)\nlaunch(x, handle)\n"
    assert rules(f"{made}return y", before=DRIVER) == {"unjoined_stream"}
    assert rules(f"{made}driver.cuStreamSynchronize(handle)\nreturn y", before=DRIVER) == set()


@pytest.mark.parametrize(
    "program",
    [
        forward("with torch.cuda.stream(torch.cuda.ExternalStream(own)):\n    return g(x)"),
        DRIVER + forward("driver.cudaStreamCreate(handle)\nlaunch(x, handle)\nreturn y"),
        DRIVER + forward("driver.cuStreamCreate(handle, 0)\nlaunch(x, handle)\nreturn y"),
        "from bindings import join\n" + forward(f"{WORK}join(x)\nreturn y", SIDE),
        "CODE = 'void f() { cudaStreamWaitEvent(a, e, 0); }'\n" + forward(f"{WORK}ext.f()\nreturn y", SIDE),
    ],
    ids=["the caller's own", "waits for the default stream", "does too", "joined by a launcher", "joined in its text"],
)
def test_a_stream_that_may_be_joined_out_of_sight_is_flagged(program: str) -> None:
    assert rejected(inspected(program)) == set()


def test_a_limit_of_the_device_has_to_be_given_back() -> None:
    once = "driver.cuCtxSetLimit(LIMIT, 1 << 20)\n"
    assert rules(f"{once}return g(x)", before=f"{DRIVER}LIMIT = 6\n") == {"device_limits"}
    assert rules(f"{once}y = g(x)\ndriver.cuCtxSetLimit(LIMIT, 0)\nreturn y", before=f"{DRIVER}LIMIT = 6\n") == set()
    assert rules(f"{once}return g(x)", before=f"{DRIVER}LIMIT = 0\n") == set()
    helper = f"{DRIVER}def limit(n):\n    driver.cuCtxSetLimit(6, ctypes.c_size_t(n))\n"
    assert rules("limit(1 << 20)\ny = g(x)\nlimit(0)\nreturn y", before=helper) == set()
    assert rules("driver.cuCtxSetLimit(6, 0)\nreturn g(x)", before=DRIVER) == set()


def test_in_native_code_such_a_limit_is_flagged_since_another_file_may_give_it_back() -> None:
    found = inspected(
        "import torch", kernels_cpp="int f() { return cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 9); }"
    )
    assert found["persisting_l2"].severity == "flag"
    assert rejected(found) == set()
