"""What each format becomes: titles, passages, code kept whole."""

from __future__ import annotations

import io
import json

import pytest

from stitchcuda.knowledge.chunking import LIMIT
from stitchcuda.knowledge.model import ReadDocument
from stitchcuda.knowledge.readers import Unreadable, read_bytes


def read(text: str, name: str) -> ReadDocument:
    return read_bytes(text.encode(), name)


def test_markdown_passages_carry_their_title_path() -> None:
    document = read("# Guide\n\nintro\n\n## Memory\n\ntext\n\n### Shared\n\nmore\n", "guide.md")
    assert [c.title for c in document.chunks] == [
        ("Guide",),
        ("Guide", "Memory"),
        ("Guide", "Memory", "Shared"),
    ]
    assert [c.anchor for c in document.chunks] == ["guide", "memory", "shared"]


def test_a_code_block_is_never_split_and_stays_with_its_paragraph() -> None:
    code = "```cuda\n" + "\n".join(f"float value_{i} = {i}.0f;" for i in range(400)) + "\n```"
    document = read(f"# T\n\nBefore it.\n\n{code}\n\nAfter it.\n", "t.md")
    holding = [c for c in document.chunks if "value_0 " in c.text]
    assert len(holding) == 1
    assert code in holding[0].text
    assert holding[0].text.startswith("Before it.")


def test_long_prose_is_cut_between_sentences() -> None:
    prose = " ".join(f"Sentence number {i} is here." for i in range(400))
    document = read(f"# T\n\n{prose}\n", "t.md")
    assert len(document.chunks) > 3
    assert all(len(c.text) <= LIMIT for c in document.chunks)
    assert all(c.text.endswith(".") for c in document.chunks)
    assert " ".join(c.text for c in document.chunks) == prose


def test_html_keeps_headings_code_and_tables_and_drops_navigation() -> None:
    page = """<html><head><title>Tuning</title><script>var x = 'secret';</script></head><body>
    <nav>menu menu</nav><h1>Tuning</h1><p>Use <code>cp.async</code> here.</p>
    <h2>Loads</h2><pre>int x = a
      &lt; b;</pre><table><tr><td>A</td><td>B</td></tr></table></body></html>"""
    document = read(page, "page.html")
    text = "\n".join(c.text for c in document.chunks)
    assert document.title == "Tuning"
    assert "int x = a\n      < b;" in text
    assert "`cp.async`" in text
    assert "A | B" in text
    assert "menu" not in text
    assert "secret" not in text
    assert document.chunks[-1].title == ("Tuning", "Loads")


def test_rst_sections_directives_and_roles() -> None:
    source = (
        "Guide\n=====\n\nSee :cpp:func:`cudaMalloc` first.\n\nPipes\n-----\n\n.. code-block:: cpp\n\n   int a;\n\n"
        "   int b;\n\nExample::\n\n   literal line\n\n.. note:: Take care.\n"
    )
    document = read(source, "guide.rst")
    assert document.title == "Guide"
    assert "See cudaMalloc first." in document.chunks[0].text
    assert document.chunks[-1].title == ("Guide", "Pipes")
    text = document.chunks[-1].text
    assert "   int a;\n\n   int b;" in text
    assert "literal line" in text
    assert "Take care." in text


def test_a_notebook_gives_its_cells_without_outputs() -> None:
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "\n", "words"]},
            {"cell_type": "code", "source": "x = 1\n\ny = 2", "outputs": [{"text": "OUTPUT"}]},
        ],
        "metadata": {},
    }
    document = read(json.dumps(notebook), "book.ipynb")
    text = "\n".join(c.text for c in document.chunks)
    assert document.title == "Title"
    assert "```python\nx = 1\n\ny = 2\n```" in text
    assert "OUTPUT" not in text


def test_a_header_binds_comments_to_symbols() -> None:
    header = """
/**
 * \\defgroup G Stream Things
 * @{
 */
/**
 * \\brief Waits for a stream.
 *
 * Blocks until \\p stream is done.
 *
 * \\param stream - the stream
 * \\return ::demoSuccess
 * \\sa ::demoOther
 */
extern __host__ demoError_t DEMOAPI demoStreamSynchronize(demoStream_t stream);
/** @} */

/** Error kinds. */
typedef enum demoError_enum {
    demoSuccess = 0, /**< all went well */
    /** The address that was accessed is not mapped: this is sticky and the process must be restarted to go on,
     * since the device is left in an inconsistent state. */
    demoErrorAddress = 700,
} demoError_t;

namespace demo { namespace detail { void hidden(int); }
/// Sums a block.
template <typename T, int N>
class BlockSum {
public:
  //! Sums one value a thread; only thread 0 gets the result.
  __device__ __forceinline__ T Sum(T value) { if (true) { return value; } return T(); }
  int lanes; ///< how many lanes take part
};
}
int __undocumented_xor_sync(unsigned mask, int value);
"""
    document = read(header, "demo.h")
    by_symbol = {c.symbols[0]: c for c in document.chunks if c.symbols}
    wait = by_symbol["demoStreamSynchronize"]
    assert wait.title == ("demo.h", "Stream Things", "demoStreamSynchronize")
    assert "demoStreamSynchronize(demoStream_t stream);" in wait.text
    assert "- stream: the stream" in wait.text
    assert "demoOther" not in wait.text
    assert wait.lead == "Waits for a stream."
    assert "sticky" in by_symbol["demoErrorAddress"].text
    assert "all went well" in by_symbol["demoError_t"].text
    assert {"demoError_enum", "demoSuccess"} <= set(by_symbol["demoError_t"].symbols)
    assert "only thread 0" in by_symbol["demo::BlockSum::Sum"].text
    assert "how many lanes" in by_symbol["demo::BlockSum"].text
    assert "__undocumented_xor_sync" in by_symbol
    assert not any("hidden" in s for c in document.chunks for s in c.symbols)


def test_braces_of_values_are_no_scopes() -> None:
    header = """
namespace demo {
struct Arguments {
  using Stride = decltype(make_stride(Int<1>{}, Outer{}));
  Shape shape = {1, 2};
  /// Makes arguments for a problem of this shape.
  Arguments(int m) : rows{m}, shape{make_shape(m, 1)} { check(m); }
  int rows{0};
};
/// Comes after.
int after(int x = int{3});
}
"""
    document = read(header, "demo.h")
    symbols = {c.symbols[0] for c in document.chunks}
    assert symbols == {"demo::Arguments", "demo::Arguments::Arguments", "demo::after"}
    fields = next(c.text for c in document.chunks if c.symbols[0] == "demo::Arguments")
    assert "Shape shape" in fields
    assert "int rows{}" in fields


def test_a_cuda_source_keeps_its_functions_whole() -> None:
    body = "__global__ void twice(float* x, int n) {\n  if (n) { x[0] *= 2; }\n}"
    source = f"// Doubles every value of x, in place, n of them.\n{body}\n"
    (chunk,) = read(source, "kernels/twice.cu").chunks
    assert chunk.symbols == ("twice",)
    assert body in chunk.text


def test_ptx_wrappers_are_found_by_instruction_and_tagged_with_their_architectures() -> None:
    source = (
        "/*\n// demo.async.bulk.dst.src [dst], [src]; // PTX ISA 80, SM_90\ntemplate <typename = void>\n"
        "__device__ static inline void demo_async_bulk(\n  void* dst);\n*/\n"
        "/*\n// demo.alloc.sync [dst]; // PTX ISA 86, SM_100a, SM_101a\n"
        "__device__ static inline void demo_alloc(int);\n*/\n"
    )
    first, second = read(source, "cccl/cuda/__ptx/demo.h").chunks
    assert first.symbols == ("cuda::ptx::demo_async_bulk", "demo.async.bulk.dst.src")
    assert first.tags.arch == ("sm_90+",)
    assert second.tags.arch == ("sm_100", "sm_101")
    assert first.tags.libraries == ("libcudacxx", "ptx")


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("cutlass/gemm/collective/sm90_mma_tma_gmma_ss.hpp", ("sm_90",)),
        ("cute/atom/copy_traits_sm90_tma.hpp", ("sm_90+",)),
        ("cute/arch/mma_sm80.hpp", ("sm_80+",)),
        ("cutlass/epilogue/collective/sm100_epilogue_tma.hpp", ("sm_100", "sm_103")),
        ("cute/arch/mma_sm120.hpp", ("sm_120",)),
        ("cute/tensor.hpp", ()),
        ("mine/sm90_notes.h", ()),
    ],
)
def test_cutlass_files_are_tagged_with_their_architecture(name: str, arch: tuple[str, ...]) -> None:
    (chunk,) = read("/// Something that is documented.\nint thing();\n", name).chunks
    assert chunk.tags.arch == arch


def test_a_pdf_gives_its_text_page_by_page() -> None:
    pytest.importorskip("pypdf")
    document = read_bytes(small_pdf("Shared memory has 32 banks."), "guide.pdf")
    assert "32 banks" in document.chunks[0].text
    assert "page 1" in document.chunks[0].title


def test_text_in_other_encodings_is_read() -> None:
    assert "größer" in read_bytes("größer".encode("utf-16"), "a.txt").chunks[0].text
    assert "caf\xe9" in read_bytes(b"a lot of plain text and one odd word, caf\xe9", "a.txt").chunks[0].text


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (b"\x7fELF\0\0\0\1", "a.md", "binary"),
        (bytes(range(1, 32)) * 50, "a.md", "binary"),
        (b"\xff\xfe\x00", "a.txt", "UTF-16"),
        (bytes(range(128, 256)) * 20, "a.txt", "UTF-8"),
        (b"hello", "a.pdf", "does not start as a PDF"),
        (b"%PDF-1.4 ...", "a.md", "under another name"),
        (b"{ not json", "a.ipynb", "not a Jupyter notebook"),
        (b'{"cells": 3}', "a.ipynb", "not a Jupyter notebook"),
        (("[" * 100_000).encode(), "a.ipynb", "not a Jupyter notebook"),
        (("<div>" * 5_000).encode(), "a.html", "nests more than"),
        (b"text", "a.exe", "no reader"),
    ],
)
def test_what_is_not_what_it_says_is_refused_with_a_reason(data: bytes, name: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_bytes(data, name)


@pytest.mark.parametrize("cut", [30, 200, 400])
def test_a_broken_pdf_is_refused(cut: int) -> None:
    pytest.importorskip("pypdf")
    with pytest.raises(Unreadable, match="PDF"):
        read_bytes(small_pdf("text")[:cut], "a.pdf")


def small_pdf(text: str) -> bytes:
    """A one-page PDF with ``text``, written by hand."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for offset in offsets:
        out.write(b"%010d 00000 n \n" % offset)
    out.write(b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()
