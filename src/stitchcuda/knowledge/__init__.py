"""Knowledge: what the agents (and people) can look up: documents the user adds, the toolkit's headers, our notes,
and programs that won earlier runs. One SQLite file, no service.

    store = open_index()
    passages = Searcher(store).search("bank conflicts in a transpose", arch=["sm_90"])
    text = render(Retriever(Searcher(store)).retrieve(["..."], arch="sm_90", budget_tokens=1500))
"""

from __future__ import annotations

from stitchcuda.knowledge.index import default_path, open_index
from stitchcuda.knowledge.ingest import add_source
from stitchcuda.knowledge.model import AddReport, Chunk, Passage, Refusal, SourceInfo, Tags
from stitchcuda.knowledge.retriever import Retriever, citations, render
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.snippets import add_run, find_snippets
from stitchcuda.knowledge.store import Store

__all__ = [
    "AddReport", "Chunk", "Passage", "Refusal", "Retriever", "Searcher", "SourceInfo", "Store", "Tags", "add_run",
    "add_source", "citations", "default_path", "find_snippets", "open_index", "render",
]  # fmt: skip
