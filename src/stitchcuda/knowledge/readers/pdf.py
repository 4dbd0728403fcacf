"""PDF by pypdf (the extra ``knowledge``): text page by page, sections from the outline where there is one."""

from __future__ import annotations

import io
import logging
import posixpath
import re
from typing import Any

from stitchcuda.knowledge.model import Block
from stitchcuda.knowledge.readers import Unreadable

MAX_PAGES = 5000


def _outline(reader: Any) -> dict[int, list[tuple[int, str]]]:
    """Headings by page number; empty where the outline is missing or broken."""
    out: dict[int, list[tuple[int, str]]] = {}

    def walk(items: Any, level: int) -> None:
        if level > 6:
            return
        for item in items:
            if isinstance(item, list):
                walk(item, level + 1)
                continue
            page = reader.get_destination_page_number(item)
            if page is not None and page >= 0:
                out.setdefault(int(page), []).append((level, str(item.title)))

    try:
        walk(reader.outline, 1)
    except Exception:
        return {}
    return out


def read(data: bytes, name: str) -> tuple[str, list[Block]]:
    """The document's title and its pages as blocks. Raises ``Unreadable`` for broken, locked or empty files."""
    try:
        import pypdf
    except ImportError as error:
        raise Unreadable("needs the package pypdf: pip install 'stitchcuda[knowledge]'") from error
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("is a PDF locked with a password")
        if len(reader.pages) > MAX_PAGES:
            raise Unreadable(f"is a PDF of {len(reader.pages)} pages; at most {MAX_PAGES} are read")
        headings = _outline(reader)
        blocks: list[Block] = []
        for number, page in enumerate(reader.pages):
            for level, heading in headings.get(number, []):
                blocks.append(Block("heading", heading, level=level))
            if not headings:
                blocks.append(Block("heading", f"page {number + 1}", level=1))
            text = re.sub(r"(?<=\w)-\n(?=[a-z])", "", page.extract_text() or "")
            for paragraph in re.split(r"\n[ \t]*\n", text):
                if paragraph.strip():
                    blocks.append(Block("text", paragraph.strip("\n")))
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"is a broken PDF ({type(error).__name__}: {str(error)[:120]})") from error
    if not any(block.kind == "text" for block in blocks):
        raise Unreadable("is a PDF without text (scanned pages?); run OCR over it first")
    return title.strip() or posixpath.basename(name), blocks
