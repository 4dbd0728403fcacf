"""The data plane: flat byte buffers that the oracle owns and the runner sees. On cpu they are regions of shared memory;
on cuda one cudaMalloc each, opened in the runner through its IPC handle. torch and the standard library only.

Nothing here knows what the bytes mean; that is in ``layout``.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import Any

import torch


class DeviceError(RuntimeError):
    """A CUDA runtime call failed."""


def map_arena(fd: int, size: int) -> mmap.mmap:
    """Map a session's shared memory, readable and writable."""
    return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def host_buffer(memory: mmap.mmap, offset: int, size: int) -> torch.Tensor:
    """A region of shared memory as a flat uint8 tensor that shares it."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset)


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class _Raw:
    """Device memory as torch.as_tensor accepts it: bytes, so that every dtype is a view away."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 2,
        }


def runtime_library() -> Any:
    """The CUDA runtime that torch itself has loaded, through ctypes; DeviceError when there is none."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.current_stream()
    found = re.findall(r"(/\S*libcudart[^/\s]*\.so[^/\s]*)", Path("/proc/self/maps").read_text())
    if not found:
        raise DeviceError("torch has loaded no libcudart")
    library = ctypes.CDLL(found[0])
    library.cudaGetErrorString.restype = ctypes.c_char_p
    library.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint]
    library.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), ctypes.c_void_p]
    library.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    library.cudaFree.argtypes = [ctypes.c_void_p]
    library.cudaIpcCloseMemHandle.argtypes = [ctypes.c_void_p]
    return library


class DeviceBuffers:
    """Device allocations by name; made by the oracle, opened by the runner. Bound to the process's current device."""

    def __init__(self) -> None:
        self.library = runtime_library()
        self.pointers: dict[str, tuple[int, bool]] = {}

    def _check(self, code: int, what: str) -> None:
        if code:
            self.library.cudaGetLastError()
            text = self.library.cudaGetErrorString(code).decode("utf-8", "replace")
            raise DeviceError(f"{what}: {text} ({code})")

    def allocate(self, name: str, size: int) -> tuple[torch.Tensor, bytes]:
        """A new buffer of ``size`` bytes as a uint8 tensor, and its 64-byte handle."""
        pointer = ctypes.c_void_p()
        self._check(self.library.cudaMalloc(ctypes.byref(pointer), max(size, 1 << 20)), "cudaMalloc")
        assert pointer.value is not None
        self.pointers[name] = (pointer.value, True)
        handle = _Handle()
        self._check(self.library.cudaIpcGetMemHandle(ctypes.byref(handle), pointer), "cudaIpcGetMemHandle")
        return self._tensor(pointer.value, size), bytes(handle)

    def open(self, name: str, handle: bytes, size: int) -> torch.Tensor:
        """Another process's buffer, as a uint8 tensor that shares it."""
        pointer = ctypes.c_void_p()
        raw = _Handle.from_buffer_copy(handle)
        lazy_peer_access = 1
        self._check(
            self.library.cudaIpcOpenMemHandle(ctypes.byref(pointer), raw, lazy_peer_access), "cudaIpcOpenMemHandle"
        )
        assert pointer.value is not None
        self.pointers[name] = (pointer.value, False)
        return self._tensor(pointer.value, size)

    def _tensor(self, pointer: int, size: int) -> torch.Tensor:
        return torch.as_tensor(_Raw(pointer, size), device="cuda")

    def close(self) -> None:
        """Free what was allocated and close what was opened; the tensors must not be used any more."""
        torch.cuda.synchronize()
        for pointer, own in self.pointers.values():
            (self.library.cudaFree if own else self.library.cudaIpcCloseMemHandle)(ctypes.c_void_p(pointer))
        self.pointers.clear()
