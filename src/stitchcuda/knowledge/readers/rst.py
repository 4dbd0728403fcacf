"""reStructuredText by its lines: sections, directives, literal blocks.

Not docutils: guides are written in Sphinx's dialect, whose directives and roles docutils alone reports as errors,
and a passage should stay as written. What matters for retrieval is where sections and code begin and end.
"""

from __future__ import annotations

import posixpath
import re

from stitchcuda.knowledge.model import Block

_ADORNMENT = re.compile(r"^([!-/:-@\[-`{-~])\1{2,}\s*$")
_ROLE = re.compile(r":[a-z]+(?::[a-z]+)*:`~?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`__?")
_CODE_DIRECTIVE = re.compile(r"^\s*\.\. (?:code-block|code|sourcecode|parsed-literal|literalinclude|math)::")
_DIRECTIVE = re.compile(r"^\s*\.\. ([A-Za-z:_-]+)::\s*(.*)$")
_COMMENT = re.compile(r"^\s*\.\.(?:\s|$)")
_SILENT = frozenset({"toctree", "contents", "image", "figure", "include", "index", "meta", "raw", "highlight"})


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def plain(text: str) -> str:
    """Roles and links as their own words: ``:cpp:func:`x``` becomes ``x``."""
    return _LINK.sub(r"\1", _ROLE.sub(r"\1", text)).replace("``", "`")


def read(text: str, name: str) -> tuple[str, list[Block]]:
    """The first section's title, and the blocks."""
    lines = text.expandtabs(4).split("\n")
    blocks: list[Block] = []
    styles: list[str] = []
    title = ""
    paragraph: list[str] = []

    def flush() -> None:
        body = plain("\n".join(paragraph)).strip("\n")
        if body.strip():
            blocks.append(Block("text", body))
        paragraph.clear()

    def body_of(start: int, indent: int) -> int:
        """The end of the indented block that starts at line ``start`` under something at ``indent``."""
        end = start
        while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
            end += 1
        return end

    i = 0
    while i < len(lines):
        line = lines[i]
        following = lines[i + 1] if i + 1 < len(lines) else ""
        overlined = _ADORNMENT.match(line) and i + 2 < len(lines) and _ADORNMENT.match(lines[i + 2])
        if overlined and following.strip() and line[0] == lines[i + 2][0]:
            heading, style, step = following.strip(), line[0] * 2, 3
        elif line.strip() and _ADORNMENT.match(following) and len(following.rstrip()) >= len(line.strip()) - 1:
            heading, style, step = line.strip(), following[0], 2
        else:
            heading, style, step = "", "", 0
        if heading and _indent(line) == 0 and not paragraph:
            if style not in styles:
                styles.append(style)
            blocks.append(Block("heading", plain(heading), level=styles.index(style) + 1))
            title = title or plain(heading)
            i += step
            continue
        directive = _DIRECTIVE.match(line)
        if directive or _COMMENT.match(line):
            flush()
            end = body_of(i + 1, _indent(line))
            body = "\n".join(lines[i + 1 : end]).strip("\n")
            if directive and _CODE_DIRECTIVE.match(line):
                blocks.append(Block("code", f"{line.strip()}\n\n{body}".rstrip()))
            elif directive and directive.group(1) not in _SILENT:
                words = plain(f"{directive.group(2)}\n{body}").strip()
                if words:
                    blocks.append(Block("text", words))
            i = max(end, i + 1)
            continue
        if not line.strip():
            flush()
        else:
            paragraph.append(line)
            if line.rstrip().endswith("::") and not following.strip():
                flush()
                end = body_of(i + 1, _indent(line))
                code = "\n".join(lines[i + 1 : end]).strip("\n")
                if code.strip():
                    blocks.append(Block("code", code))
                i = max(end, i + 1)
                continue
        i += 1
    flush()
    return title or posixpath.basename(name), blocks
