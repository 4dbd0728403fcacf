"""Markdown by markdown-it-py, which comes with rich: blocks by source lines, so that passages stay as written."""

from __future__ import annotations

import posixpath
import re

from markdown_it import MarkdownIt

from stitchcuda.knowledge.model import Block

_FRONT = re.compile(r"\A(\+\+\+|---)[ \t]*\n(.*?)\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title\s*[:=]\s*[\"']?(.+?)[\"']?\s*$", re.MULTILINE)
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,300}>|<!--.*?-->", re.DOTALL)
_ATX = re.compile(r"^\s{0,3}#{1,6}\s*|\s+#+\s*$")
_INLINE_MARKS = re.compile(r"[`*]|\[([^\]]*)\]\([^)]*\)")


def split_front_matter(text: str) -> tuple[str, str]:
    """The front matter between ``+++`` (TOML) or ``---`` (YAML) lines, and the body. Empty where there is none."""
    match = _FRONT.match(text)
    return (match.group(2), text[match.end() :]) if match else ("", text)


def read(text: str, name: str) -> tuple[str, list[Block]]:
    """The document's title (front matter, first heading, or file name) and its blocks."""
    front, body = split_front_matter(text)
    title_match = _FRONT_TITLE.search(front)
    title = title_match.group(1).strip() if title_match else ""
    lines = body.split("\n")
    blocks: list[Block] = []
    for token in MarkdownIt("commonmark").enable("table").parse(body):
        if token.level != 0 or token.map is None or token.nesting < 0:
            continue
        raw = "\n".join(lines[token.map[0] : token.map[1]]).strip("\n")
        if token.type == "heading_open":
            heading = _ATX.sub("", raw.split("\n", 1)[0])
            heading = _INLINE_MARKS.sub(lambda m: m.group(1) or "", heading).strip()
            blocks.append(Block("heading", heading, level=int(token.tag[1])))
            title = title or heading
        elif token.type in ("fence", "code_block"):
            blocks.append(Block("code", raw))
        elif token.type == "html_block":
            stripped = _TAG.sub("", raw).strip()
            if stripped:
                blocks.append(Block("text", stripped))
        elif token.type == "hr":
            continue
        elif raw.strip():
            kind_has_code = token.type in ("bullet_list_open", "ordered_list_open") and "```" in raw
            blocks.append(Block("code" if kind_has_code else "text", raw))
    return title or posixpath.basename(name), blocks
