"""Doc comments as text: decoration, Doxygen commands and cross references off, words and code kept.

Finding the comments and what they document is in ``readers.header``.
"""

from __future__ import annotations

import re

from stitchcuda.knowledge.model import Block
from stitchcuda.knowledge.readers import rst

_DECORATION = re.compile(r"^[ \t]*(?:\*(?!\*)|//[/!]<?|//) ?", re.MULTILINE)
_INTERNAL = re.compile(r"[\\@]internal\b.*?[\\@]endinternal\b", re.DOTALL)
_DROPPED = re.compile(
    r"[\\@](?:notefnerr|note_\w+|endrst|rst|ingroup\s+\w+|addtogroup.*|defgroup.*|weakgroup.*|name\b.*|file\b.*|"
    r"[{}]|nosubgrouping|anchor\s+\w+|req\b.*|exception-guarantee.*|behavior.*)"
)
_SEE = re.compile(r"^[ \t]*[\\@](?:sa|see)\b.*?(?=^[ \t]*$|^[ \t]*[\\@](?!ref)|\Z)", re.DOTALL | re.MULTILINE)
_REF = re.compile(r"[\\@]ref\s+(?:::)?([\w:~]+)(?:\([^)]*\))?(?:\s*\"([^\"]*)\")?")
_CODE = re.compile(r"[\\@](?:code|verbatim)(?:\{\.?\w+\})?[ \t]*\n?(.*?)[\\@]end(?:code|verbatim)", re.DOTALL)
_PARAM = re.compile(r"[\\@]t?param\s*(?:\[[\w, ]*\])?\s+(\w+)[ \t]*(?:-[ \t]*)?")
_WORD_COMMANDS = re.compile(r"[\\@](?:p|c|e|a|b|em)\s+(?=\S)")
_HEADED = re.compile(r"[\\@](?:section|subsection|par)\b\s*(?:[A-Z][A-Za-z]*_\w+\s+)?")
_LABELLED = (
    (re.compile(r"[\\@](?:returns?|retval|result)\b[ \t]*"), "Returns: "),
    (re.compile(r"[\\@](?:note|remark|remarks)\b[ \t]*"), "Note: "),
    (re.compile(r"[\\@](?:warning|attention)\b[ \t]*"), "Warning: "),
    (re.compile(r"[\\@]deprecated\b[ \t]*"), "Deprecated: "),
    (re.compile(r"[\\@](?:brief|short|details|blurb|detail)\b[ \t]*"), ""),
    (re.compile(r"[\\@](?:throws?|exception)\b[ \t]*"), "Throws: "),
)
_MATH = re.compile(r"[\\@](?:end_)?cuda_math_formula|[\\@](?:rowmajor|smemreuse|granularity|blocked|striped)\b")
_QUALIFIED = re.compile(r"(?<![\w>])::(?=[A-Za-z_])")
_GROUP = re.compile(r"[\\@](?:defgroup|addtogroup|weakgroup)\s+(\w+)[ \t]+(.+)|[\\@]name\s+(.+)")
_IN_GROUP = re.compile(r"[\\@]ingroup\s+(\w+)")
_RULE = re.compile(r"^[ \t]*[*=\-/_~#]{4,}[ \t]*$", re.MULTILINE)
_LICENSE = re.compile(r"copyright|licen[sc]e agreement|all rights reserved|SPDX-License", re.IGNORECASE)


def is_doc(comment: str) -> bool:
    """True for a comment in a documentation style: ``/**``, ``/*!``, ``///``, ``//!``."""
    return comment.startswith(("/**", "/*!", "///", "//!")) and not comment.startswith(("/***", "////"))


def is_trailing(comment: str) -> bool:
    """True for a doc comment about what stands before it: ``/**<``, ``///<`` and their kin."""
    return comment[3:4] == "<" and is_doc(comment)


def is_license(comment: str) -> bool:
    """True for a copyright or licence notice, which documents nothing."""
    return _LICENSE.search(comment) is not None


def group_title(comment: str) -> tuple[str, str]:
    """The identifier and the title of the Doxygen group that a comment opens; empty where it opens none."""
    match = _GROUP.search(comment)
    if not match:
        return "", ""
    return match.group(1) or "", (match.group(2) or match.group(3)).strip(" */")


def group_of(comment: str) -> str:
    """The identifier of the group that a comment says its declaration is in, or nothing."""
    match = _IN_GROUP.search(comment)
    return match.group(1) if match else ""


def clean(comment: str) -> str:
    """The words of a comment, as paragraphs; code stays in fenced blocks."""
    text = comment.strip()
    if text.startswith("/*"):
        text = re.sub(r"\A/\*+[!<]*|\*+/\Z", "", text)
    text = _RULE.sub("", _DECORATION.sub("", text))
    text = re.sub(r"\A[*<!]+", "", text)
    text = _INTERNAL.sub("", text)
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(match.group(1).strip("\n"))
        return f"\n\n\0{len(code) - 1}\0\n\n"

    text = _SEE.sub("", _CODE.sub(keep, text))
    text = _DROPPED.sub("", text)
    text = _REF.sub(lambda m: m.group(2) or m.group(1), text)
    text = _PARAM.sub(r"- \1: ", text)
    text = _WORD_COMMANDS.sub("", text)
    text = _HEADED.sub("\n\n", text)
    for pattern, label in _LABELLED:
        text = pattern.sub(label, text)
    text = _QUALIFIED.sub("", _MATH.sub("", text))
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return re.sub(r"\0(\d+)\0", lambda m: f"```cpp\n{code[int(m.group(1))]}\n```", text)


def brief(blocks: list[Block]) -> str:
    """The first sentence of a comment, which says what the declaration is for."""
    first = next((" ".join(b.text.split()) for b in blocks if b.kind == "text"), "")
    return re.split(r"(?<=[.!])\s", first, maxsplit=1)[0][:200]


def blocks_of(comment: str) -> list[Block]:
    """A comment's text and code blocks in order; the comment may hold reStructuredText between ``@rst`` marks."""
    words = clean(comment)
    if not words:
        return []
    if "@rst" in comment or ".. code-block" in words:
        _, blocks = rst.read(words, "")
        return [Block("text", b.text) if b.kind == "heading" else b for b in blocks]
    blocks = []
    for part in re.split(r"(```cpp\n.*?\n```)", words, flags=re.DOTALL):
        if part.startswith("```"):
            blocks.append(Block("code", part))
        else:
            blocks.extend(Block("text", p) for p in re.split(r"\n\s*\n", part) if p.strip())
    return blocks
