"""Symbols stay whole and are found by their parts."""

from __future__ import annotations

import pytest

from stitchcuda.knowledge.tokens import index_tokens, is_symbol, query_symbols, query_tokens, stem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cp.async.bulk.tensor", {"cp.async.bulk.tensor", "cp.async", "cp.async.bulk", "bulk", "tensor"}),
        ("cublasLtMatmulDescSetAttribute", {"cublasltmatmuldescsetattribute", "cublas", "lt", "matmul", "set"}),
        ("__shfl_xor_sync", {"__shfl_xor_sync", "shfl_xor_sync", "shfl", "xor", "sync"}),
        ("cub::BlockReduce::Sum", {"cub::blockreduce::sum", "cub::blockreduce", "sum", "block"}),
        ("cuBLASLt", {"cublaslt", "cublas"}),
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", {"max", "dynamic", "shared", "bytes"}),
        ("sm_90a", {"sm_90a", "sm"}),
        ("l1tex__t_requests.sum", {"l1tex__t_requests.sum", "l1tex__t_requests", "l1tex", "request"}),
    ],
)
def test_a_symbol_is_indexed_whole_and_by_its_parts(text: str, expected: set[str]) -> None:
    found = set(index_tokens(text))
    missing = {token for token in expected if token not in found and stem(token) not in found}
    assert not missing


def test_a_query_by_parts_meets_the_symbol() -> None:
    document = set(index_tokens("cudaStreamBeginCapture"))
    assert set(query_tokens("begin capturing a stream")) & document >= {
        stem("begin"),
        stem("capturing"),
        stem("stream"),
    }


def test_an_abbreviation_in_a_symbol_is_found_by_its_word() -> None:
    assert stem("asynchronous") in index_tokens("cudaMallocAsync")
    assert stem("allocate") in index_tokens("cudaMallocAsync")


def test_the_whole_symbol_weighs_more_than_its_parts() -> None:
    weights = query_tokens("cudaMallocAsync")
    assert weights["cudamallocasync"] == 1.0
    assert max(weight for token, weight in weights.items() if token != "cudamallocasync") < 0.5


@pytest.mark.parametrize(
    "words",
    [("coalesced", "coalescing"), ("tiles", "tiling", "tile"), ("synchronize", "synchronisation"), ("copies", "copy")],
)
def test_forms_of_a_word_meet(words: tuple[str, ...]) -> None:
    assert len({stem(word) for word in words}) == 1


def test_words_are_no_symbols_and_symbols_are() -> None:
    assert not any(map(is_symbol, ["memory", "Hopper", "CUDA", "the"]))
    assert all(map(is_symbol, ["float4", "cudaMalloc", "sm_90", "wgmma.mma_async", "cute::copy"]))
    assert query_symbols("why does cute::copy not use cp.async") == ["cute::copy", "copy", "cp.async"]


def test_stop_words_and_endless_tokens_are_left_out() -> None:
    assert index_tokens("the of and " + "x" * 500) == []
