"""Jupyter notebooks: Markdown cells as Markdown, code cells as code blocks; outputs are left out."""

from __future__ import annotations

import json
import posixpath

from stitchcuda.knowledge.model import Block
from stitchcuda.knowledge.readers import Unreadable, markdown


def read(text: str, name: str) -> tuple[str, list[Block]]:
    """The first heading as title, and the cells' blocks. Raises ``Unreadable`` for what is no notebook."""
    try:
        notebook = json.loads(text)
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        language = str(notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python"))
        blocks: list[Block] = []
        title = ""
        for cell in cells:
            source = cell.get("source", cell.get("input", ""))
            source = "".join(source) if isinstance(source, list) else str(source)
            if not source.strip():
                continue
            if cell["cell_type"] == "code":
                blocks.append(Block("code", f"```{language}\n{source.rstrip()}\n```"))
            elif cell["cell_type"] == "markdown":
                cell_title, cell_blocks = markdown.read(source, "")
                title = title or (cell_title if any(b.kind == "heading" for b in cell_blocks) else "")
                blocks.extend(cell_blocks)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Unreadable(f"is not a Jupyter notebook ({type(error).__name__} while reading its JSON)") from error
    return title or posixpath.basename(name), blocks
