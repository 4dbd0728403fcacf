"""Readers turn the bytes of one file into a document's chunks; which one is chosen by the file's name and content.

They run in the confined process of ``knowledge.reading`` and import the standard library and the optional
parsers alone. Each reader module has ``read(text, name) -> (title, blocks)``; headers make chunks themselves.
"""

from __future__ import annotations

import posixpath

from stitchcuda.knowledge.chunking import pack
from stitchcuda.knowledge.model import Chunk, ReadDocument
from stitchcuda.knowledge.tagging import tag_chunk, tag_document

VERSION = 1
"""Goes into every document's digest: a change of what readers make of a file asks for reading it again."""

MARKDOWN = frozenset({".md", ".markdown", ".mdx"})
HTML = frozenset({".html", ".htm", ".xhtml"})
RST = frozenset({".rst"})
TEXT = frozenset({".txt", ".text", ".log", ""})
NOTEBOOK = frozenset({".ipynb"})
PDF = frozenset({".pdf"})
HEADER = frozenset({".h", ".hpp", ".cuh", ".hxx", ".inl", ".cu", ".cpp", ".cc", ".cxx", ".c"})
SUFFIXES = MARKDOWN | HTML | RST | TEXT | NOTEBOOK | PDF | HEADER

MAX_BYTES = 32 << 20
"""Larger files are refused: no document for people is that long."""
MAX_CHUNKS = 20_000
"""A file that makes more chunks than this is refused."""


class Unreadable(Exception):
    """A file that a reader refuses; the message is the reason, for the user."""


def suffix_of(name: str) -> str:
    """The lower-case suffix of ``name``, which may be a path or a URL's path; a bare name such as LICENSE has none."""
    return posixpath.splitext(posixpath.basename(name))[1].lower()


def decode(data: bytes) -> str:
    """Text of ``data``: UTF-8, UTF-16 with its mark, or Latin-1 where few bytes are odd. Binary is refused."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError as error:
            raise Unreadable("says it is UTF-16 but is not; save it as UTF-8") from error
    if b"\0" in data:
        raise Unreadable("is binary (it holds NUL bytes), not the text that its name promises")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
        odd = sum(1 for byte in data if byte >= 0x80)
        if odd > len(data) * 0.05:
            raise Unreadable("is neither UTF-8 nor mostly ASCII; save it as UTF-8") from None
    control = sum(1 for char in text[:65536] if ord(char) < 32 and char not in "\t\n\r\f\v\b\x1b")
    if control > max(8, len(text[:65536]) // 200):
        raise Unreadable("is binary (many control characters), not the text that its name promises")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(data: bytes, name: str) -> ReadDocument:
    """Read one file. ``name`` is its path in the source and decides the format. Raises ``Unreadable``."""
    if len(data) > MAX_BYTES:
        raise Unreadable(f"is {len(data) >> 20} MiB; at most {MAX_BYTES >> 20} MiB are read of one file")
    suffix = suffix_of(name)
    is_pdf = data.startswith(b"%PDF-")
    if suffix in PDF and not is_pdf:
        raise Unreadable("is named .pdf but does not start as a PDF does; it is broken or something else")
    if is_pdf and suffix not in PDF:
        raise Unreadable("is a PDF under another name; give it the suffix .pdf")
    if is_pdf:
        from stitchcuda.knowledge.readers import pdf

        title, blocks = pdf.read(data, name)
        return _finish(title, pack(blocks, title), name)
    text = decode(data)
    if not text.strip():
        return ReadDocument(posixpath.basename(name), ())
    if suffix in HEADER:
        from stitchcuda.knowledge.readers import header

        return _finish(name, header.read(text, name), name)
    if suffix in MARKDOWN:
        from stitchcuda.knowledge.readers import markdown as reader
    elif suffix in HTML:
        from stitchcuda.knowledge.readers import html as reader  # type: ignore[no-redef]
    elif suffix in RST:
        from stitchcuda.knowledge.readers import rst as reader  # type: ignore[no-redef]
    elif suffix in NOTEBOOK:
        from stitchcuda.knowledge.readers import notebook as reader  # type: ignore[no-redef]
    elif suffix in TEXT:
        from stitchcuda.knowledge.readers import text as reader  # type: ignore[no-redef]
    else:
        raise Unreadable(f"has the suffix {suffix}, which no reader takes")
    title, blocks = reader.read(text, name)
    return _finish(title, pack(blocks, title), name)


def _finish(title: str, chunks: list[Chunk], name: str) -> ReadDocument:
    if len(chunks) > MAX_CHUNKS:
        raise Unreadable(f"makes {len(chunks)} passages; more than {MAX_CHUNKS} from one file are refused")
    document_tags = tag_document(name)
    return ReadDocument(title, tuple(tag_chunk(chunk, document_tags) for chunk in chunks))
