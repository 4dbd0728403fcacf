"""What agents have at hand becomes queries that say what matters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import pytest

from stitchcuda.knowledge.index import open_index
from stitchcuda.knowledge.queries import (
    MAX_QUERIES,
    advice_on,
    from_bottleneck,
    from_error,
    from_mismatch,
    from_operators,
    from_step,
)
from stitchcuda.knowledge.search import Searcher
from stitchcuda.profiling.model import Bottleneck

NVCC = """
In file included from /tmp/build/x/kernel.cu:3:
/tmp/build/x/kernel.cu(41): error: identifier "__shfl_xor" is undefined
      v += __shfl_xor(v, offset);
           ^
/tmp/build/x/kernel.cu(57): error: identifier "__shfl_xor" is undefined
ptxas /tmp/tmpxft_0001.ptx, line 77; error   : Instruction 'wgmma.mma_async' not supported on .target 'sm_90'
2 errors detected in the compilation of "/tmp/build/x/kernel.cu".
"""
TORCH = """Traceback (most recent call last):
  File "/srv/program.py", line 12, in forward
    return launch(x)
RuntimeError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call at address 0x7f33aa000000
"""


def test_an_error_text_becomes_its_telling_lines_without_places() -> None:
    queries = from_error(NVCC)
    assert queries[0] == 'error: identifier "__shfl_xor" is undefined'
    assert any("wgmma.mma_async" in q and "sm_90" in q for q in queries)
    assert not any("/tmp" in q or "kernel.cu" in q for q in queries)
    assert len(queries) == len(set(queries)) <= 3
    assert from_error(TORCH)[0] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert from_error("all is well\n") == []
    assert from_error("2 errors detected in the compilation of x.cu\nninja: build stopped: subcommand failed.") == []


def test_a_program_cannot_make_its_messages_expensive() -> None:
    started = time.monotonic()
    assert from_error("error " + "x" * 1_000_000 + "\n" + "error: real\n")[-1] == "error: real"
    assert time.monotonic() - started < 2


def test_wrong_values_become_their_pattern() -> None:
    detail = "first mismatch at [0, 4]: got 1, expected 2; 3 of 9 elements off (only the tail, from flat index 6 on)"
    assert from_mismatch(detail) == ["wrong values: only the tail, from flat index on"]
    assert from_mismatch("largest difference at [0]: got 1, expected 2") == []


@pytest.mark.parametrize("bottleneck", [b for b in get_args(Bottleneck) if b != "unknown"])
def test_every_bottleneck_a_profile_names_becomes_a_question(bottleneck: str) -> None:
    assert advice_on(bottleneck)
    assert advice_on("unknown") == ""


def test_a_step_becomes_what_is_to_be_written() -> None:
    queries = from_step("Fuse bias and GELU", ["linear", "gelu"], fusion="one kernel: epilogue", host="")
    assert queries == ["Fuse bias and GELU", "linear, gelu kernel", "one kernel: epilogue"]


def test_operators_become_the_pattern_that_they_make() -> None:
    assert from_operators(["conv2d", "relu"]) == ["conv2d, relu fused kernel"]
    assert from_operators(["linear", "matmul", "softmax"])[0] == "attention kernel"
    assert from_operators([]) == []


def test_findings_stay_as_they_are_but_bounded() -> None:
    assert from_bottleneck("stall: long scoreboard", "stall: long scoreboard", "") == ["stall: long scoreboard"]
    assert len(from_bottleneck(*(f"finding {n} " + "x" * 500 for n in range(20)))) == MAX_QUERIES


def test_an_error_text_finds_its_note(tmp_path: Path) -> None:
    store = open_index(tmp_path / "i.sqlite")
    (query, *_) = from_error(TORCH)
    assert "cuda_errors.md" in [p.reference.split("#")[0] for p in Searcher(store).search(query, limit=3)]
    store.close()
