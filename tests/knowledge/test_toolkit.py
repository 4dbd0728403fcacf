"""The installed toolkit's headers, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.knowledge.ingest import add_source
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.sources import SourceFile
from stitchcuda.knowledge.store import Store
from stitchcuda.knowledge.toolkit import Part, files_of, toolkit_roots

ROOTS = toolkit_roots()
needs_toolkit = pytest.mark.skipif(not ROOTS, reason="no CUDA toolkit is installed")
WANTED = ("driver_types.h", "cuda_runtime_api.h", "sm_30_intrinsics.h", "cuda_pipeline_primitives.h")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An index of a few headers."""
    opened = Store(tmp_path_factory.mktemp("toolkit") / "index.sqlite")
    part = Part("cuda", ROOTS[0] / "include", "13.0")
    few = [f for f in files_of(part) if isinstance(f, SourceFile) and (f.name in WANTED or "cp_async_bulk" in f.name)]
    add_source(opened, "cuda", uri="toolkit:cuda", files=few, version=part.version)
    return opened


@needs_toolkit
@pytest.mark.parametrize(
    ("query", "symbol"),
    [
        ("cudaStreamBeginCapture", "cudaStreamBeginCapture"),
        ("an illegal memory access was encountered cudaErrorIllegalAddress", "cudaErrorIllegalAddress"),
        ("page-lock host memory that is already allocated", "cudaHostRegister"),
        ("__shfl_xor_sync", "__shfl_xor_sync"),
        ("cp.async.bulk.commit_group", "cuda::ptx::cp_async_bulk_commit_group"),
        ("__pipeline_wait_prior", "__pipeline_wait_prior"),
    ],
)
def test_a_header_answers(store: Store, query: str, symbol: str) -> None:
    found = Searcher(store).search(query, limit=5)
    assert symbol in {s for passage in found for s in passage.symbols}
    assert found[0].source.startswith("toolkit:cuda/")


@needs_toolkit
def test_signature_and_comment_come_together(store: Store) -> None:
    (passage,) = Searcher(store).search("cudaMallocAsync", limit=1)
    assert "cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream);" in passage.text
    assert "Allocates memory with stream ordered semantics" in passage.text
    assert passage.libraries == ("cuda_runtime",)


@needs_toolkit
def test_internal_headers_are_left_out() -> None:
    names = [f.name for f in files_of(Part("cuda", ROOTS[0] / "include", ""))]
    assert "cuda.h" in names
    assert any(name.startswith("cccl/cub/block/") for name in names)
    assert not any("/detail/" in name or "/std/" in name for name in names)
    assert names == sorted(set(names))


def test_a_cutlass_tree_is_read_by_its_public_headers(tmp_path: Path) -> None:
    for name in ("cute/tensor.hpp", "cutlass/gemm/device/gemm.h", "cutlass/detail/hidden.h"):
        path = tmp_path / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("/// A thing that is documented.\nint thing();\n")
    names = [f.name for f in files_of(Part("cutlass", tmp_path / "include", ""))]
    assert names == ["cute/tensor.hpp", "cutlass/gemm/device/gemm.h"]
