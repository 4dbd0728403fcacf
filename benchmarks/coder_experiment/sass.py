"""How wide a kernel's accesses to global memory are, read from its machine code: no disassembler is started, for that
would take longer than everything else about an evaluation. Volta to Hopper; checked against nvdisasm in the tests.
"""

from __future__ import annotations

import struct

LOADS_AND_STORES = (0x381, 0x386, 0x981, 0x986)
"""LDG and STG, with a plain address and with a descriptor: the lowest 12 bits of an instruction's 128."""
SIZE_SHIFT, WIDE = 73, 6
"""Where the size of an access is, and its value for 128 bits."""
KERNEL_PREFIX = b".text.own_"


def accesses(cubin: bytes) -> tuple[int, int]:
    """How many loads and stores of global memory the program's own kernels have, and how many are of 128 bits."""
    total = wide = 0
    for code in _sections(cubin):
        for at in range(0, len(code) - 15, 16):
            low, high = struct.unpack_from("<QQ", code, at)
            if low & 0xFFF in LOADS_AND_STORES:
                total += 1
                wide += (high >> (SIZE_SHIFT - 64)) & 7 == WIDE
    return total, wide


def _sections(image: bytes) -> list[bytes]:
    """The code of the own kernels in a 64-bit ELF."""
    if image[:5] != b"\x7fELF\x02":
        return []
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", image, offset + at * size) for at in range(count)]
    strings = heads[names][4]
    found = []
    for name, _, _, _, where, length in heads:
        start = strings + name
        if image[start : start + len(KERNEL_PREFIX)] == KERNEL_PREFIX:
            found.append(image[where : where + length])
    return found
