"""How data reaches runners on this machine; found out once, by trying, and kept for the process's life."""

from __future__ import annotations

import threading
from typing import ClassVar

from stitchcuda.evaluation import sandbox


class Planes:
    """How data reaches runners on this machine: the confinement level and whether device memory can be shared.
    Found out once, by trying, and kept for the process's life."""

    level = "full"
    ipc = True
    proven: ClassVar[set[tuple[str, bool]]] = set()
    """Kinds of device, and whether trusted, on which a runner has come up so: a later failure is not for these."""
    lock = threading.Lock()

    @classmethod
    def step_down(cls, level: str, ipc: bool, *, trusted: bool, kind: str) -> bool:
        """Give up one thing, unless another session has done so since ``level`` and ``ipc`` were read; False when
        there is nothing left to give up. Trusted runners are not confined: for them only sharing can be at fault."""
        with cls.lock:
            if (cls.level, cls.ipc) != (level, ipc):
                return True
            if not trusted and level != sandbox.LEVELS[-1]:
                cls.level = sandbox.LEVELS[sandbox.LEVELS.index(level) + 1]
            elif ipc and kind == "cuda":
                cls.ipc, cls.level = False, "full"
            else:
                return False
            return True
