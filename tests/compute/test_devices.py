"""Which devices a worker takes, by the words of its command."""

from __future__ import annotations

import os

import pytest

from stitchcuda.compute.devices import VISIBLE, find_devices, visible_gpus
from stitchcuda.errors import DeviceError


def test_only_gpus_that_are_visible_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "3, GPU-8932f937")
    assert visible_gpus() == ["3", "GPU-8932f937"]
    for none in ("", "-1"):
        monkeypatch.setenv(VISIBLE, none)
        assert visible_gpus() == []


def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "")
    assert [device.target.kind for device, _ in find_devices("auto")] == ["cpu"]
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        find_devices("cuda")


@pytest.mark.usefixtures("two_kinds")
def test_each_gpu_is_described_as_a_process_that_sees_no_other_finds_it() -> None:
    assert [(device.name, seen) for device, seen in find_devices("cuda")] == [
        ("Kind 0", {VISIBLE: "0"}),
        ("Kind 1", {VISIBLE: "1"}),
    ]
    assert os.environ[VISIBLE] == "0,1"


def test_a_gpu_beyond_the_last_and_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1")
    with pytest.raises(DeviceError, match="no GPU 2: 2 visible"):
        find_devices("cuda:2")
    for wrong in ("tpu", "cpu:0", "cuda:x", ""):
        with pytest.raises(DeviceError, match="unknown device"):
            find_devices(wrong)
