"""Looking things up for the roles: queries from what a request is about, passages and winning programs within a budget.

The knowledge base itself is ``stitchcuda.knowledge``; how passages stand in a prompt is ``agents.prompting``.
Importing this file needs neither the index nor an embedder; the first look-up opens them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from stitchcuda.agents.references import Citation, References
from stitchcuda.agents.roles import CodeRequest, PlanRequest, VerifyRequest
from stitchcuda.errors import StitchError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import TensorFacts

if TYPE_CHECKING:
    from stitchcuda.knowledge.model import Passage
    from stitchcuda.knowledge.retriever import Retriever
    from stitchcuda.knowledge.store import Store

REFERENCE_TOKENS = 1_500
"""Estimated tokens of passages that one request shows."""
SNIPPET_TOKENS = 2_000
"""Estimated tokens of programs that won earlier runs, beside the passages, in a Coder's request."""

Request = PlanRequest | CodeRequest | VerifyRequest
Asked = TypeVar("Asked", PlanRequest, CodeRequest, VerifyRequest)


class Librarian(Protocol):
    """Whoever looks things up for the roles."""

    def look_up(self, request: Request) -> References:
        """What helps with ``request``. Never raises: what went wrong is said in ``problem``."""
        ...


class Library:
    """The knowledge index of this machine; a context manager. One thread at a time."""

    def __init__(
        self,
        *,
        index: Path | None = None,
        excluded_tasks: Sequence[str] = (),
        reference_tokens: int = REFERENCE_TOKENS,
        snippet_tokens: int = SNIPPET_TOKENS,
    ) -> None:
        """``index``: the index file, None for the user's own. ``excluded_tasks``: digests or fingerprints of tasks
        whose winning programs must never be shown, such as a benchmark's."""
        self._index = index
        self._excluded = tuple(excluded_tasks)
        self._reference_tokens, self._snippet_tokens = reference_tokens, snippet_tokens
        self._store: Store | None = None
        self._retriever: Retriever | None = None
        self._problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the index; the next look-up opens it again."""
        if self._store is not None:
            self._store.close()
        self._store = self._retriever = None

    def look_up(self, request: Request) -> References:
        """Passages for the request's queries; for the Coder also programs that won on like operators and shapes."""
        import sqlite3

        queries: list[str] = []
        try:
            queries = queries_for(request)
            passages = self._passages(request, queries)
        except (StitchError, OSError, sqlite3.Error, ValueError) as error:
            return References(queries=queries, problem=f"nothing could be looked up: {error}")
        from stitchcuda.knowledge.retriever import citations, render

        found = [Citation.model_validate(citation) for citation in citations(passages)]
        return References(queries=queries, text=render(passages), citations=found, problem=self._problem)

    def _passages(self, request: Request, queries: list[str]) -> list[Passage]:
        def retrieve() -> list[Passage]:
            return self._open().retrieve(
                queries,
                arch=_architecture(request.device),
                budget_tokens=self._reference_tokens,
                without_sources=() if request.device.target.kind == "cuda" else CUDA_ONLY,
            )

        passages = self._with_vectors_or_without(retrieve)
        if isinstance(request, CodeRequest):
            passages = [*passages, *self._snippets(request)]
        return passages

    def _with_vectors_or_without(self, retrieve: Callable[[], list[Passage]]) -> list[Passage]:
        """An embedder that fails costs its vectors, not the look-up."""
        try:
            return retrieve()
        except StitchError as error:
            if self._retriever is None or not self._retriever.forget_vectors():
                raise
            self._problem = f"looked up by words alone: {error}"
            return retrieve()

    def _snippets(self, request: CodeRequest) -> list[Passage]:
        target = request.device.target
        return self._open().snippets(
            _operators(request.task.source) or request.step.operators,
            [item.shape for item in request.facts.inputs if isinstance(item, TensorFacts)],
            target=target.arch if target.kind == "cuda" else "cpu",
            precision=request.task.precision,
            limit=1,
            budget_tokens=self._snippet_tokens,
        )

    def _open(self) -> Retriever:
        if self._retriever is None:
            from stitchcuda.knowledge.embedding import embedder_from
            from stitchcuda.knowledge.index import open_index
            from stitchcuda.knowledge.retriever import Retriever
            from stitchcuda.knowledge.search import Searcher

            self._store = open_index(self._index)
            try:
                named = os.environ.get("STITCHCUDA_EMBEDDER"), os.environ.get("STITCHCUDA_EMBEDDING_MODEL")
                vectors = embedder_from(*named)
            except StitchError as error:
                self._problem, vectors = f"looked up by words alone: {error}", None
            self._retriever = Retriever(Searcher(self._store, vectors), excluded_tasks=self._excluded)
        return self._retriever


CUDA_ONLY = ("notes", "toolkit:*")
"""Sources that say nothing about a processor."""


def _architecture(device: Device) -> tuple[str, ...]:
    return (device.target.arch,) if device.target.arch.startswith("sm_") else ()


def _operators(source: str) -> list[str]:
    """Operators that a task's source names; none where it cannot be read as Python."""
    from stitchcuda.knowledge.fingerprint import operators_of

    try:
        return operators_of(source)
    except (SyntaxError, ValueError, RecursionError):
        return []


def queries_for(request: Request) -> list[str]:
    """What to ask the knowledge base for a request: the bottleneck, the step, the error, whichever leads."""
    match request:
        case PlanRequest():
            return _of_plan(request)
        case CodeRequest():
            return _of_code(request)
        case VerifyRequest():
            return _of_verdict(request)


def _of_plan(request: PlanRequest) -> list[str]:
    from stitchcuda.knowledge.queries import advice_on, from_bottleneck, from_operators, unique

    profile = request.profile
    kernels = [kernel.operator.removeprefix("aten::") for kernel in profile.kernels[:3] if kernel.operator]
    return unique(
        [
            *from_operators(_operators(request.task.source)),
            *from_bottleneck(advice_on(profile.bottleneck), profile.suggestion),
            f"{', '.join(dict.fromkeys(kernels))} kernel" if kernels else "",
            request.attempts[-1].diagnosis if request.attempts else "",
        ]
    )


def _of_code(request: CodeRequest) -> list[str]:
    from stitchcuda.knowledge.queries import from_bottleneck, from_step, unique

    step = request.step
    about = from_step(step.title, step.operators, fusion=step.fusion, host=step.host)
    if request.feedback is None:
        return about
    told = from_bottleneck(request.feedback.suggestion, request.feedback.diagnosis)
    evaluation = request.evaluation
    if evaluation is None or evaluation.passed:
        return unique([*told, *about])
    return unique([*_of_failure(evaluation), *told, about[0] if about else ""])


def _of_verdict(request: VerifyRequest) -> list[str]:
    from stitchcuda.knowledge.queries import advice_on, from_bottleneck, from_step, unique

    evaluation, profile, step = request.evaluation, request.profile, request.step
    about = from_step(step.title, step.operators)
    if evaluation.passed:
        found = from_bottleneck(advice_on(profile.bottleneck), profile.suggestion) if profile else []
        return unique([*found, *about])
    return unique([*_of_failure(evaluation), *about])


def _of_failure(evaluation: Evaluation) -> list[str]:
    """The messages of a failed program, or how its wrong values lie."""
    from stitchcuda.knowledge.queries import from_error, from_mismatch

    if evaluation.status == "wrong_output" and evaluation.correctness is not None:
        wrong = [output.detail for output in evaluation.correctness.outputs if not output.ok]
        return from_mismatch(wrong[0]) if wrong else []
    return from_error(f"{evaluation.log}\n{evaluation.message}")
