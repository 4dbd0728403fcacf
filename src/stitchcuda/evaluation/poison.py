"""Fills memory that nobody holds with values that stand out, inside the runner and outside every timed window: what an
earlier call left behind can then neither pass for an answer nor for zeros. torch and the standard library only; the
runner loads it by path.

On cuda it writes to the free blocks of torch's caching allocator in place. On cpu the C library does it: memory is
overwritten when it is freed outside a timed window, and in untimed calls whatever is allocated is filled first.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

WORDS = (0x7FC0DEAD, 0xFFFFFFFF)
"""NaN in fp32, and all bits set, which is NaN in every floating type and -1 in every integer."""

FREED = 0x7F
"""On cpu: byte that freed memory is filled with; 3.4e38 in fp32 and bf16, NaN in fp16."""

ALLOCATED = 0xFF ^ 0x7F
"""On cpu: the C library fills allocated memory with the complement of its setting."""

M_PERTURB = -6
PERSISTING_L2_LIMIT = 0x06
"""cudaLimitPersistingL2CacheSize"""


class Poison:
    """One process's free memory."""

    def __init__(self, cuda: bool, library: Any = None, wanted: bool = True) -> None:
        """``library``: the CUDA runtime that torch has loaded, on cuda. Does nothing unless ``wanted``."""
        self.cuda, self.library = cuda and wanted, library if wanted else None
        self.mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if wanted else None
        self.turn = 0
        self.persisting = 0
        """The limit for persisting lines that is left, bytes"""
        self.driver: Any = None
        if self.cuda:
            self.driver = ctypes.CDLL("libcuda.so.1")
            self.driver.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]

    def freed(self, on: bool) -> None:
        """Whether host memory is overwritten when it is freed."""
        if self.mallopt is not None:
            self.mallopt(M_PERTURB, FREED if on else 0)

    def allocated(self, on: bool) -> None:
        """Whether host memory is filled when it is allocated."""
        if self.mallopt is not None:
            self.mallopt(M_PERTURB, ALLOCATED if on else 0)

    def fill(self) -> int:
        """Overwrite every free block of the device's caching allocator, all streams' and pools'; bytes written."""
        if not self.cuda:
            return 0
        word = WORDS[self.turn % len(WORDS)]
        self.turn += 1
        written = 0
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            address = segment["address"]
            for block in segment["blocks"]:
                size = block["size"]
                if block["state"] == "inactive" and self.driver.cuMemsetD32_v2(address, word, size // 4) == 0:
                    written += size
                address += size
        torch.cuda.synchronize()
        return written

    def limits(self) -> list[str]:
        """Which of the device's limits are not as ``reset_persisting_cache`` left them."""
        size = self._persisting()
        return [f"lines that persist in L2: {size} bytes"] if size != self.persisting else []

    def _persisting(self) -> int:
        size = ctypes.c_size_t(0)
        if self.library is not None:
            self.library.cudaDeviceGetLimit(ctypes.byref(size), PERSISTING_L2_LIMIT)
            self.library.cudaGetLastError()
        return size.value

    def reset_persisting_cache(self) -> None:
        """Give the part of the device's L2 cache that persists over a flush back, and allow none."""
        if self.library is not None:
            self.library.cudaCtxResetPersistingL2Cache()
            self.library.cudaDeviceSetLimit(PERSISTING_L2_LIMIT, ctypes.c_size_t(0))
            self.library.cudaGetLastError()
            self.persisting = self._persisting()
