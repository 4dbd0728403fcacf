"""Reads a model from a GGUF file (format version 3): its settings, and its weights as float32. Four kinds of tensors
are known: F32, F16, Q8_0 and Q4_1.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
_BLOCK = 32
_BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}


@dataclass(frozen=True)
class Place:
    """Where a tensor lies. ``shape``: as torch has it, the fastest dimension last."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Gguf:
    """An open file. Raises ValueError for what is no GGUF of version 3."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self.data[:4] != b"GGUF" or struct.unpack_from("<I", self.data, 4)[0] != 3:
            raise ValueError(f"{path} is no GGUF file of version 3; give the model's .gguf")
        self.at = 8
        count, settings = self._take("<Q"), self._take("<Q")
        self.settings: dict[str, Any] = {}
        for _ in range(settings):
            name = self._text()
            self.settings[name] = self._value(self._take("<I"))
        self.places: dict[str, Place] = {}
        for _ in range(count):
            name = self._text()
            shape = tuple(self._take("<Q") for _ in range(self._take("<I")))
            self.places[name] = Place(shape[::-1], self._take("<I"), self._take("<Q"))
        step = self.settings.get("general.alignment", 32)
        self.start = -(-self.at // step) * step

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor's values. Raises KeyError for an unknown name, ValueError for a kind that is not known."""
        place = self.places[name]
        count = math.prod(place.shape)
        begin = self.start + place.offset
        if place.kind in (F32, F16):
            kind = np.float32 if place.kind == F32 else np.float16
            return np.frombuffer(self.data, kind, count, begin).astype(np.float32).reshape(place.shape)
        if place.kind not in _BLOCK_BYTES:
            raise ValueError(f"{name} is of kind {place.kind}; known are F32, F16, Q4_1 and Q8_0")
        blocks, size = count // _BLOCK, _BLOCK_BYTES[place.kind]
        raw = np.frombuffer(self.data, np.uint8, blocks * size, begin).reshape(blocks, size)
        scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
        if place.kind == Q8_0:
            return (raw[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(place.shape)
        least = raw[:, 2:4].copy().view(np.float16).astype(np.float32)
        packed = raw[:, 4:]
        numbers = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
        return (numbers * scale + least).reshape(place.shape)

    def _take(self, code: str) -> Any:
        value = struct.unpack_from(code, self.data, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def _text(self) -> str:
        length = self._take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, length = self._take("<I"), self._take("<Q")
            return [self._value(inner) for _ in range(length)]
        return self._take(_SCALARS[kind])
