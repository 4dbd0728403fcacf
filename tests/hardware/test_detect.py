"""Facts of this machine's own devices; what is not there is said in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stitchcuda.errors import DeviceError
from stitchcuda.hardware.ceilings import measure
from stitchcuda.hardware.detect import detect, torch_version

has_gpu = torch.cuda.is_available()


def test_the_cpu_is_described_as_this_process_may_use_it() -> None:
    device = detect("cpu")
    assert device.target.kind == "cpu"
    assert 1 <= device.multiprocessors <= len(os.sched_getaffinity(0))
    assert device.memory_bytes > 2**30
    told = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    assert f"{device.cache_bytes >> 10}K" in told or (device.cache_bytes == 0 and not told)
    assert device.runtime == ""


def test_torchs_version_is_known_without_importing_it() -> None:
    assert torch_version() == (torch.__version__, torch.version.cuda or "")
    code = (
        "import sys; from stitchcuda.hardware.detect import detect, torch_version; detect('auto'); torch_version();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(has_gpu, reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu() -> None:
    with pytest.raises(DeviceError, match="--target cpu"):
        detect("cuda")
    assert detect("auto") == detect("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="there is no GPU")
def test_the_gpu_is_described_as_torch_sees_it() -> None:
    device = detect("auto")
    properties = torch.cuda.get_device_properties(0)
    assert device.target.arch == f"sm_{properties.major}{properties.minor}"
    assert device.name == properties.name
    assert device.multiprocessors == properties.multi_processor_count


def test_ceilings_are_plausible_and_measured_once(cache: Path, tmp_path: Path) -> None:
    device = detect("cpu")
    first = measure(device, cache)
    assert 2**30 < first.copy_bytes_per_second < 2**42
    assert 1e9 < first.flops_per_second["fp32"] < 1e14
    (kept,) = (
        path for path in (cache / "ceilings").glob("*.json") if path.read_text() == first.model_dump_json(indent=2)
    )
    (tmp_path / "ceilings").mkdir()
    copy = tmp_path / "ceilings" / kept.name
    copy.write_text(json.dumps(json.loads(kept.read_text()) | {"copy_bytes_per_second": 1.0}))
    assert measure(device, tmp_path).copy_bytes_per_second == 1.0
    copy.write_text("damaged")
    assert measure(device, tmp_path).copy_bytes_per_second > 1.0
