"""What is looked up for a request: queries, budget, filters, winning programs, and what happens when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.agents import Feedback
from stitchcuda.agents.lookup import REFERENCE_TOKENS, SNIPPET_TOKENS, Library, queries_for
from stitchcuda.agents.references import Citation, References
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.knowledge.fingerprint import fingerprint_of
from stitchcuda.knowledge.index import open_index
from stitchcuda.knowledge.ingest import add_documents
from stitchcuda.knowledge.model import Chunk
from stitchcuda.knowledge.reading import prepare
from stitchcuda.knowledge.retriever import tokens_of
from stitchcuda.knowledge.snippets import add_run
from tests.agents.support import SOURCE, code_request, evaluation, plan_request, profile, program, verify_request
from tests.knowledge.test_snippets import make_run

FEEDBACK = Feedback(route="optimise", diagnosis="The row is read twice.", evidence="", suggestion="Use registers.")
LOG = 'kernels.cu(12): error: identifier "__shfl_down" is undefined\n1 error detected in the compilation of "k.cu".\n'


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "knowledge.sqlite"


@pytest.fixture
def library(index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.delenv("STITCHCUDA_EMBEDDER", raising=False)
    with Library(index=index) as opened:
        yield opened


def failed() -> Evaluation:
    return evaluation("build_failed", message="The build failed.", log=LOG)


def test_the_planner_asks_about_operators_and_the_bottleneck() -> None:
    queries = queries_for(plan_request("cuda"))
    assert "softmax" in queries[0]
    assert any("memory bound" in query for query in queries)


def test_a_draft_asks_about_its_step() -> None:
    queries = queries_for(code_request("cuda"))
    assert queries[:2] == ["scale and softmax in one row kernel", "mul, softmax kernel"]
    assert "whole forward in a CUDA graph" in queries


def test_a_repair_asks_about_the_error_first() -> None:
    queries = queries_for(code_request("cuda", failed=program(), evaluation=failed(), feedback=FEEDBACK))
    assert queries[0] == 'error: identifier "__shfl_down" is undefined'
    assert not any("1 error detected" in query for query in queries)


def test_an_improvement_asks_about_the_suggestion_first() -> None:
    queries = queries_for(code_request("cuda", program=program(), evaluation=evaluation(), feedback=FEEDBACK))
    assert queries[:2] == ["Use registers.", "The row is read twice."]


def test_a_verdict_asks_about_the_programs_bottleneck_or_its_failure() -> None:
    assert "memory bound" in queries_for(verify_request("cuda", profile=profile("program")))[0]
    assert "__shfl_down" in queries_for(verify_request("cuda", evaluation=failed()))[0]


def test_an_error_brings_the_note_about_it_with_its_source(library: Library) -> None:
    found = library.look_up(verify_request("cuda", evaluation=failed()))
    assert "warp_divergence.md#correctness-since-volta" in [c.reference for c in found.citations[:3]]
    assert all(c.words in found.text for c in found.citations)
    assert found.problem == ""


def test_what_is_shown_is_bounded(library: Library) -> None:
    for request in (plan_request("cuda"), code_request("cuda"), verify_request("cuda", profile=profile("program"))):
        found = library.look_up(request)
        assert found.citations
        marks = 60 * len(found.citations) + 400
        assert tokens_of(found.text) < REFERENCE_TOKENS + marks / 3


def test_a_processor_is_told_nothing_about_cuda_but_what_the_user_added(index: Path, library: Library) -> None:
    assert library.look_up(code_request("cpu")).citations == []
    chunk = prepare(Chunk(("Softmax with AVX-512",), "A softmax row kernel keeps the row in the first-level cache."))
    add_documents(open_index(index, writable=True), "mine", [("simd.md", "SIMD", "1", [chunk])])
    assert [c.source for c in library.look_up(code_request("cpu")).citations] == ["mine/simd.md"]


def test_the_coder_is_shown_a_program_that_won_on_like_operators_and_shapes(
    index: Path, library: Library, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", SOURCE.replace("self.scale", "self.factor"))
    (run / "best" / "kernel.cu").write_text("// " + "x" * 40_000)
    add_run(open_index(index, writable=True), run)
    found = library.look_up(code_request("cuda"))
    assert "Verified program for" in found.citations[-1].title
    assert tokens_of(found.text) < REFERENCE_TOKENS + SNIPPET_TOKENS + 400
    for other in (plan_request("cuda"), verify_request("cuda", profile=profile("program")), code_request("cpu")):
        assert "Verified program for" not in library.look_up(other).text


def test_a_program_of_an_excluded_task_is_not_shown(index: Path, library: Library, tmp_path: Path) -> None:
    add_run(open_index(index, writable=True), make_run(tmp_path / "run", SOURCE))
    assert "Verified program for" in library.look_up(code_request("cuda")).text
    with Library(index=index, excluded_tasks=[fingerprint_of(SOURCE)]) as careful:
        assert "Verified program for" not in careful.look_up(code_request("cuda")).text


def test_an_index_that_cannot_be_used_is_said_and_costs_nothing_else(index: Path, library: Library) -> None:
    index.write_text("not a database, and long enough to be taken for one" * 50)
    found = library.look_up(plan_request("cuda"))
    assert (found.text, found.citations) == ("", [])
    assert "knowledge index" in found.problem


def test_an_embedder_that_fails_costs_its_vectors_only(
    index: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCHCUDA_EMBEDDER", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("STITCHCUDA_EMBEDDING_MODEL", "none")
    with open_index(index, writable=True).writing() as db:
        db.execute("INSERT INTO vectors SELECT id, 'endpoint:none', ? FROM chunks", (bytes(8),))
    found = library.look_up(plan_request("cuda"))
    assert found.citations
    assert found.problem.startswith("looked up by words alone")
    monkeypatch.setenv("STITCHCUDA_EMBEDDER", str(index.parent / "no such folder"))
    library.close()
    assert library.look_up(plan_request("cuda")).citations


def test_names_of_passages_become_words_and_others_are_dropped() -> None:
    citation = Citation(id="K1", reference="a.md#b", title="A > B", source="notes/a.md", version="1", sha256="0")
    references = References(citations=[citation])
    assert references.cited(["k1", "[K1]", "K9", "the guide", ""]) == ["A > B (notes/a.md 1)"]
