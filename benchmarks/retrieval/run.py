"""Retrieval quality: recall@5 and MRR of the index, beside plain BM25 over the same passages in the same run.

    python benchmarks/retrieval/run.py [--parts cuda] [--embedder FOLDER] [--misses] [--write]

Questions are JSON lines in the ``*.jsonl`` files here: ``question``; ``answers``, any of which counts as found
(``NOTE.md#section`` or ``NOTE.md`` for the notes, ``symbol:NAME`` for a declaration in the toolkit's headers);
``kind`` (``question``, ``symbol``, ``error``, ``profiler``); ``arch``, optional; ``written_before_index``. Questions
whose answers are all headers that are not installed here are left out, and counted as left out. ``--parts`` keeps to
the named parts of the toolkit, so that machines with more installed compare; else all that is installed is indexed.

``--write`` updates ``benchmarks/results/retrieval.json`` (``retrieval-MODEL.json`` with an embedder). Exit status 1
when recall@5 is below 0.90, or below 0.95 with an embedder.

Plain BM25 is SQLite FTS5 with its default tokenizer over title and text, the words of the question joined by OR.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from provenance import host_provenance, write_json

from stitchcuda.knowledge.embedding import embed_missing, embedder_from
from stitchcuda.knowledge.index import open_index
from stitchcuda.knowledge.ingest import add_source
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store
from stitchcuda.knowledge.toolkit import files_of, installed_parts

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
DEPTH = 10


@dataclass(frozen=True)
class Question:
    """One question with the passages that answer it."""

    text: str
    answers: tuple[str, ...]
    kind: str
    arch: str
    before: bool
    file: str


def load_questions(folder: Path = HERE) -> list[Question]:
    """All questions of the ``*.jsonl`` files."""
    out = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                row = json.loads(line)
                before = bool(row["written_before_index"])
                answers = tuple(row["answers"])
                out.append(Question(row["question"], answers, row["kind"], row.get("arch", ""), before, path.stem))
    return out


def answering_chunks(store: Store, question: Question) -> set[int]:
    """Ids of the chunks that count as right."""
    db = store.connection
    ids: set[int] = set()
    for answer in question.answers:
        if answer.startswith("symbol:"):
            rows = db.execute("SELECT chunk FROM symbols WHERE form = ?", (answer[7:].lower(),))
        else:
            name, _, anchor = answer.partition("#")
            rows = db.execute(
                "SELECT c.id FROM chunks c JOIN documents d ON d.id = c.document JOIN sources s ON s.id = d.source "
                "WHERE s.uri = 'notes' AND d.name = ? AND (? = '' OR c.anchor = ?)",
                (name, anchor, anchor),
            )
        ids.update(row[0] for row in rows)
    return ids


class PlainBM25:
    """The baseline: FTS5 as it comes."""

    def __init__(self, store: Store) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE plain USING fts5(title, text)")
        rows = store.connection.execute("SELECT id, title, text FROM chunks")
        self._db.executemany(
            "INSERT INTO plain(rowid, title, text) VALUES (?,?,?)",
            ((i, " ".join(json.loads(t)), x) for i, t, x in rows),
        )

    def search(self, text: str, limit: int) -> list[int]:
        """Chunk ids, best first."""
        words = dict.fromkeys(re.findall(r"\w+", text))
        expression = " OR ".join(f'"{word}"' for word in words)
        sql = "SELECT rowid FROM plain WHERE plain MATCH ? ORDER BY bm25(plain) LIMIT ?"
        return [row[0] for row in self._db.execute(sql, (expression, limit))]


def figures(ranks: list[int | None]) -> dict[str, float | int]:
    """recall@1, recall@5 and MRR (over the first ten) of the ranks at which a right passage came, None for never."""
    n = max(1, len(ranks))
    return {
        "n": len(ranks),
        "recall@1": round(sum(r is not None and r <= 1 for r in ranks) / n, 4),
        "recall@5": round(sum(r is not None and r <= 5 for r in ranks) / n, 4),
        "mrr": round(sum(1 / r for r in ranks if r is not None) / n, 4),
    }


def rank_of(found: list[int], right: set[int]) -> int | None:
    """The rank, from 1, of the first right passage; None if it is not among ``found``."""
    return next((n for n, chunk in enumerate(found, 1) if chunk in right), None)


def main() -> int:
    """Build a fresh index of notes and toolkit, ask every question, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--embedder", help="folder of a sentence-transformers model, or the base URL of an embeddings endpoint"
    )
    parser.add_argument("--embedding-model")
    parser.add_argument("--write", action="store_true", help="update the results file")
    parser.add_argument("--misses", action="store_true", help="print the questions that were missed")
    parser.add_argument("--parts", nargs="+", help="parts of the toolkit to index; all that are installed by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_index(Path(folder) / "index.sqlite", writable=True)
        for part in installed_parts():
            if arguments.parts and part.name not in arguments.parts:
                continue
            add_source(store, part.name, uri=f"toolkit:{part.name}", files=files_of(part), version=part.version)
        results = evaluate(store, arguments.embedder, arguments.embedding_model, show_misses=arguments.misses)
        store.close()
    print_table(results)
    table = results["figures"]
    embedded = [name for name in table if name.startswith("with ")]
    if arguments.write:
        suffix = "-" + re.sub(r"\W+", "-", embedded[0].split(":")[-1]) if embedded else ""
        write_json(RESULTS / f"retrieval{suffix}.json", results)
    good = table["lexical"]["all"]["recall@5"] >= 0.90
    good = good and all(table[name]["all"]["recall@5"] >= 0.95 for name in embedded)
    return 0 if good else 1


def evaluate(store: Store, embedder: str | None, model: str | None, *, show_misses: bool) -> dict[str, Any]:
    """Ask every question of every method; figures by method and by group of questions."""
    questions = load_questions()
    right = {q: answering_chunks(store, q) for q in questions}
    asked = [q for q in questions if right[q]]
    plain, lexical = PlainBM25(store), Searcher(store)
    methods = {"plain BM25": lambda q: plain.search(q.text, DEPTH)}
    methods["lexical"] = lambda q: [
        p.chunk_id for p in lexical.search(q.text, limit=DEPTH, arch=[q.arch] if q.arch else [])
    ]
    vectors = embedder_from(embedder, model)
    if vectors is not None:
        embed_missing(store, vectors)
        fused = Searcher(store, vectors)
        methods[f"with {vectors.name}"] = lambda q: [
            p.chunk_id for p in fused.search(q.text, limit=DEPTH, arch=[q.arch] if q.arch else [])
        ]
    table: dict[str, dict[str, dict[str, float | int]]] = {}
    for name, search in methods.items():
        groups: dict[str, list[int | None]] = defaultdict(list)
        for question in asked:
            rank = rank_of(search(question), right[question])
            when = "written before the index" if question.before else "written after"
            for group in ("all", f"kind {question.kind}", when, f"file {question.file}"):
                groups[group].append(rank)
            if show_misses and name != "plain BM25" and (rank is None or rank > 5):
                print(f"{name} missed ({rank}): {question.text}  -> {', '.join(question.answers[:3])}")
        table[name] = {group: figures(ranks) for group, ranks in sorted(groups.items())}
    chunks, _ = store.totals()
    return {
        "provenance": host_provenance() | {"sqlite": sqlite3.sqlite_version},
        "sources": {
            s.uri: {"version": s.version, "documents": s.documents, "chunks": s.chunks} for s in store.sources()
        },
        "chunks": chunks,
        "questions": len(questions),
        "left_out": len(questions) - len(asked),
        "figures": table,
    }


def print_table(results: dict[str, Any]) -> None:
    """Figures as a table on stdout."""
    table = results["figures"]
    print(f"{results['questions']} questions ({results['left_out']} left out), {results['chunks']} passages")
    for method, groups in table.items():
        for group, f in groups.items():
            found = f"recall@1 {f['recall@1']:.3f}  recall@5 {f['recall@5']:.3f}  MRR {f['mrr']:.3f}"
            print(f"{method:22} {group:28} n={f['n']:<4} {found}")


if __name__ == "__main__":
    raise SystemExit(main())
