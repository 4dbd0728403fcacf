"""Which matrix instructions a built library holds, read from its SASS by cuobjdump where that is installed.

This informs and does not decide: a product split into narrow pieces may be as exact as fp32.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable

from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.task.model import Precision

_MATRIX = re.compile(r"(?<![.\w])([A-Z]+MMA(?:\.\w+)*)")
_NARROW = re.compile(r"^(HMMA|HGMMA|UTCHMMA|QMMA|QGMMA|UTCQMMA|OMMA|UTCOMMA)\b")


def find_cuobjdump(roots: Iterable[str]) -> str | None:
    """cuobjdump of the toolkit installed in one of ``roots``, or on PATH."""
    for root in roots:
        if os.access(f"{root}/bin/cuobjdump", os.X_OK):
            return f"{root}/bin/cuobjdump"
    return shutil.which("cuobjdump")


def matrix_instructions(listing: str) -> dict[str, int]:
    """Matrix instructions of a SASS listing, with how often each is written."""
    return dict(sorted(Counter(match[1] for match in _MATRIX.finditer(listing)).items()))


def matrix_hits(instructions: dict[str, int], precision: Precision) -> list[Hit]:
    """A hit when the fp32 class holds matrix instructions whose operands are narrower than fp32."""
    if precision != "fp32":
        return []
    narrow = [name for name in instructions if _NARROW.match(name)]
    return [Hit("reduced_precision", "library", 0, f"SASS holds {', '.join(narrow[:4])}")] if narrow else []
