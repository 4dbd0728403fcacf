"""Plain text: paragraphs between blank lines; a short line followed by an underline of = or - is a heading."""

from __future__ import annotations

import posixpath
import re

from stitchcuda.knowledge.model import Block

_UNDERLINE = re.compile(r"^([=\-~^*#])\1{2,}\s*$")


def read(text: str, name: str) -> tuple[str, list[Block]]:
    """The file's name as title, and its paragraphs."""
    blocks: list[Block] = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        lines = paragraph.strip("\n").split("\n")
        if len(lines) >= 2 and _UNDERLINE.match(lines[1]) and 0 < len(lines[0].strip()) < 120:
            blocks.append(Block("heading", lines[0].strip(), level=1 if lines[1][0] == "=" else 2))
            lines = lines[2:]
        body = "\n".join(lines).rstrip()
        if body.strip():
            blocks.append(Block("text", body))
    return posixpath.basename(name), blocks
