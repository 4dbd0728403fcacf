"""Ask the CUDA driver about GPU 0 and print JSON: ``python -m stitchcuda.hardware.query_driver``.

Standard library only; makes no context. Started by ``hardware.detect``.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

ATTRIBUTES = {"multiprocessors": 16, "l2": 38, "shared": 97, "major": 75, "minor": 76}
"""CUdevice_attribute numbers: multiprocessor count, L2 bytes, opt-in shared memory per block, capability."""


def query() -> dict[str, Any]:
    """Facts of GPU 0, or ``{"error": sentence}``."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"error": "there is no NVIDIA driver on this machine (libcuda.so.1 is missing)"}
    if code := driver.cuInit(0):
        return {"error": f"the NVIDIA driver does not start (cuInit gives {code})"}
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        return {"error": "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)"}
    device = ctypes.c_int()
    if code := driver.cuDeviceGet(ctypes.byref(device), 0):
        return {"error": f"GPU 0 cannot be used (cuDeviceGet gives {code})"}
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    facts: dict[str, Any] = {"name": name.value.decode(), "memory": memory.value, "count": count.value}
    for key, attribute in ATTRIBUTES.items():
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        facts[key] = value.value
    return facts


if __name__ == "__main__":
    print(json.dumps(query()))
