"""Which files a compiler took in, by its own list (``-MD``), and which of them are nobody's business.

This sees an ``#include`` whatever macro or folder it came through, also where the machine allows no confinement.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PARTS = ("include", "lib", "lib32", "lib64", "targets", "nvvm", "extras")
"""Folders of an installation that compilers read headers from."""


def listed(text: str) -> list[str]:
    """The prerequisites in a make rule as compilers write it: the file's own source first."""
    text = text.replace("\\\r\n", " ").replace("\\\n", " ")
    found: list[str] = []
    for rule in text.splitlines():
        match = re.search(r":(?=\s|$)", rule)
        if match:
            parts = re.split(r"(?<!\\)\s+", rule[match.end() :].strip())
            found += [_ESCAPED.sub(r"\1", part).replace("$$", "$") for part in parts if part]
    return found


def foreign_files(dependencies: Iterable[str], folder: Path, prefixes: Iterable[str]) -> list[str]:
    """Those of ``dependencies`` (absolute, or relative to ``folder``) that are neither in ``folder`` nor among the
    headers of an installation under ``prefixes``, such as ``/usr`` or a CUDA toolkit."""
    home = os.path.realpath(folder)
    allowed = [f"{os.path.realpath(prefix)}/{part}" for prefix in prefixes for part in _PARTS]
    allowed += [os.path.realpath(path) for path in allowed]
    foreign = []
    for name in dependencies:
        path = os.path.realpath(os.path.join(home, name))
        if not any(path.startswith(f"{place}/") for place in (home, *allowed)):
            foreign.append(name)
    return sorted(set(foreign))
