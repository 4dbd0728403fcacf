"""Ranking: which passages answer a query.

Lexical first: candidates from the full-text index by the query's rarer terms and from the symbol table, scored by
BM25F over title, symbols and body (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework") with
boosts for exact symbols and for covering the whole query. With an embedder, the nearest vectors are fused in by
reciprocal rank (Cormack et al. 2009). Storing is in ``knowledge.store``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stitchcuda.knowledge.model import Passage
from stitchcuda.knowledge.store import Store
from stitchcuda.knowledge.tagging import arch_fits, normalize_arch
from stitchcuda.knowledge.tokens import query_symbols, query_tokens

if TYPE_CHECKING:
    from stitchcuda.knowledge.embedding import Embedder, VectorCache

K1, B = 1.2, 0.75
TITLE, SYMBOL, BODY = 2.5, 3.0, 1.0
"""Weights of an occurrence in a title, among declared symbols, in the text."""
EXACT = 0.8
"""What an exact symbol adds, in units of the symbol's own idf."""
CONTINUED = 0.4
"""Share of that for the later passages of one declaration: its signature and brief come first."""
COVERAGE = 0.5
"""Share of the score that depends on how much of the query's idf mass a passage covers."""
NOTE_PRIOR = 1.15
"""Notes and prose against declarations, for queries that name no symbol: advice before reference."""
EXACT_SHARE = 0.3
"""Factor on the vectors' share when the query names a symbol that is declared here: the words know better then."""
RRF = 20
"""The constant of reciprocal-rank fusion. Smaller than the usual 60: the first places of the lexical ranking are
right more often than those of general-purpose vectors."""
POSTINGS_BUDGET = 2000
"""Postings that one query may touch in the full-text index; its rarest terms come first."""
RANKED_BUDGET = 4_000
"""Postings up to which a conjunction of common terms is ranked by SQLite's own BM25, about 1 ms a thousand: a query
of one common word spends all of it."""
CANDIDATES = 60
"""Passages that each full-text query may bring to the exact scoring."""
REPEAT = 0.75
"""Factor on the score of a passage for every better one of the same title: five overloads are one answer."""
SIBLING = 0.97
"""The same for every better one of the same document, up to four."""
DEPRECATED = 0.8
"""Factor on what says that it is deprecated: the reader should meet its successor first."""
MAX_TERMS = 18
_LONGEST_QUERY = 4000


def _quote(term: str) -> str:
    return '"' + term.replace('"', '""') + '"'


def _diversified(scored: list[tuple[float, int, str, int]]) -> list[tuple[int, float]]:
    """Order by score, each passage discounted by the better ones that share its title or its document."""
    titles: dict[str, int] = {}
    documents: dict[int, int] = {}
    out = []
    for score, chunk, title, document in sorted(scored, key=lambda item: (-item[0], item[1])):
        repeats = titles[title] = titles.get(title, -1) + 1
        siblings = documents[document] = documents.get(document, -1) + 1
        out.append((chunk, score * REPEAT**repeats * SIBLING ** min(siblings, 4)))
    out.sort(key=lambda item: (-item[1], item[0]))
    return out


class Searcher:
    """Searches one store. Cheap to make; keep it to keep the vectors loaded."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store, self.embedder = store, embedder
        self._vectors: VectorCache | None = None
        self._counted: tuple[tuple[int, int], tuple[int, float]] | None = None

    def search(
        self,
        query: str,
        *,
        limit: int = 5,
        arch: Sequence[str] = (),
        libraries: Sequence[str] = (),
        kinds: Sequence[str] = (),
        exclude: Iterable[int] = (),
        without_sources: Sequence[str] = (),
    ) -> list[Passage]:
        """The best passages for ``query``, best first.

        ``arch`` keeps passages that hold for one of these architectures (or for all), ``libraries`` those about one
        of them, ``kinds`` those of these kinds; ``exclude`` leaves out chunks by id, ``without_sources`` whole
        sources by their URI, or by its beginning where it ends in ``*``. Raises ValueError for an unknown architecture.
        """
        query = query[:_LONGEST_QUERY]
        total, mean_length = self._totals()
        if total == 0 or not query.strip():
            return []
        allowed = self._allowed_tagsets(arch, libraries)
        if allowed is not None and not allowed:
            return []
        banned = frozenset(exclude)
        if not kinds:  # snippets come by operators and shapes alone, where what is excluded is known
            banned |= {row[0] for row in self.store.connection.execute("SELECT chunk FROM snippets")}
        where = self._where(allowed, kinds, self._source_ids(without_sources))
        lexical = self._lexical(query, total, mean_length, where, banned)
        ranked = lexical if self.embedder is None else self._fused(query, lexical, where, banned)
        return self.passages(ranked[:limit])

    def _totals(self) -> tuple[int, float]:
        generation = self.store.generation()
        if self._counted is None or self._counted[0] != generation:
            self._counted = (generation, self.store.totals())
        return self._counted[1]

    # -- filters

    def _allowed_tagsets(self, arch: Sequence[str], libraries: Sequence[str]) -> list[int] | None:
        """Ids of the tag sets that pass, None when everything does."""
        if not arch and not libraries:
            return None
        wanted, names = normalize_arch(arch), {library.lower() for library in libraries}
        rows = self.store.connection.execute("SELECT id, arch, libraries FROM tagsets")
        return [
            i
            for i, have, libs in rows
            if (not wanted or arch_fits(have.split(), wanted)) and (not names or names & set(libs.split()))
        ]

    def _source_ids(self, patterns: Sequence[str]) -> list[int]:
        """Ids of the sources that ``patterns`` name."""
        if not patterns:
            return []
        whole = {pattern for pattern in patterns if not pattern.endswith("*")}
        beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        rows = self.store.connection.execute("SELECT id, uri FROM sources")
        return [i for i, uri in rows if uri in whole or uri.startswith(beginnings)]

    @staticmethod
    def _where(allowed: list[int] | None, kinds: Sequence[str], without: list[int]) -> str:
        """SQL on chunks ``c``, empty without filters; the values are ours, never the user's."""
        clauses = []
        if allowed is not None:
            clauses.append(f"c.tagset IN ({','.join(map(str, allowed))})")
        if kinds:
            clauses.append(f"c.kind IN ({','.join(repr(k) for k in kinds if k.isalpha())})")
        if without:
            ids = ",".join(map(str, without))
            clauses.append(f"c.document IN (SELECT id FROM documents WHERE source NOT IN ({ids}))")
        return " AND ".join(clauses)

    # -- lexical

    def _lexical(
        self,
        query: str,
        total: int,
        mean: float,
        where: str,
        banned: frozenset[int],
    ) -> list[tuple[int, float]]:
        weights = query_tokens(query)
        counts = self._document_counts(weights)
        idf = {t: math.log(1 + (total - n + 0.5) / (n + 0.5)) for t, n in counts.items() if n > 0}
        terms = sorted(idf, key=lambda t: -idf[t] * weights[t])[:MAX_TERMS]
        symbols = query_symbols(query)
        candidates: dict[int, None] = {}
        for row in self._by_symbol(symbols, where):
            candidates[row] = None
        for expression, ranked in self._expressions(terms, weights, counts):
            for row in self._by_text(expression, where, ranked=ranked):
                candidates[row] = None
        kept = [c for c in candidates if c not in banned][: 3 * CANDIDATES]
        return self._score(kept, {t: weights[t] * idf[t] for t in terms}, symbols, idf, total, mean)

    def _document_counts(self, weights: Mapping[str, float]) -> dict[str, int]:
        marks = ",".join("?" * len(weights))
        rows = self.store.connection.execute(
            f"SELECT term, documents FROM terms WHERE term IN ({marks})", list(weights)
        )
        return dict(rows)

    @staticmethod
    def _expressions(
        terms: list[str], weights: Mapping[str, float], counts: Mapping[str, int]
    ) -> list[tuple[str, bool]]:
        """Full-text queries whose union holds the candidates, and whether each can afford to be ranked.

        Any of the rarer terms, as many as the budget allows, ranked. For the common ones left over: passages that
        hold all of them, ones that hold them in the title, and pairs of the rarest, ranked where their postings are
        few enough to count (BM25 in SQLite walks every posting of every term), else as they come.
        """
        rare: list[str] = []
        spent = 0
        for term in sorted(terms, key=lambda t: counts[t]):
            if spent + counts[term] > POSTINGS_BUDGET:
                break
            rare.append(term)
            spent += counts[term]
        out = [(" OR ".join(map(_quote, rare)), True)] if rare else []
        left = sorted((t for t in terms if t not in rare and weights[t] >= 0.5), key=lambda t: counts[t])
        if not left:
            return out
        groups = dict.fromkeys((tuple(left), tuple(left[:3]), tuple(left[:2])))
        for group in groups:
            ranked = sum(counts[t] for t in group) <= RANKED_BUDGET
            words = " AND ".join(map(_quote, group))
            if not ranked:
                out.append((f"{{title symbols}} : ({words})", False))
            out.append((words, ranked))
        return out

    def _by_symbol(self, symbols: list[str], where: str) -> list[int]:
        if not symbols:
            return []
        marks = ",".join("?" * len(symbols))
        sql = f"SELECT DISTINCT c.id FROM symbols s JOIN chunks c ON c.id = s.chunk WHERE s.form IN ({marks})"
        sql += f" AND {where}" if where else ""
        return [row[0] for row in self.store.connection.execute(f"{sql} LIMIT {CANDIDATES}", symbols)]

    def _by_text(self, expression: str, where: str, *, ranked: bool) -> list[int]:
        order = f"AND rank MATCH 'bm25({TITLE}, {SYMBOL}, {BODY})' ORDER BY rank" if ranked else ""
        join, condition = ("JOIN chunks c ON c.id = p.rowid", f"AND {where}") if where else ("", "")
        sql = f"SELECT p.rowid FROM passages p {join} WHERE passages MATCH ? {condition} {order} LIMIT {CANDIDATES}"
        return [row[0] for row in self.store.connection.execute(sql, (expression,))]

    def _score(
        self,
        ids: list[int],
        mass: Mapping[str, float],
        symbols: list[str],
        idf: Mapping[str, float],
        total: int,
        mean: float,
    ) -> list[tuple[int, float]]:
        if not ids:
            return []
        marks = ",".join(map(str, ids))
        db = self.store.connection
        exact: dict[int, float] = {}
        if symbols:
            ceiling = math.log(1 + total / 0.5)
            forms = ",".join("?" * len(symbols))
            rows = db.execute(
                f"SELECT form, chunk FROM symbols WHERE form IN ({forms}) AND chunk IN ({marks})", symbols
            )
            for form, chunk in rows:
                exact[chunk] = exact.get(chunk, 0.0) + idf.get(form, ceiling)
        padded = [(f" {term} ", worth) for term, worth in mass.items()]
        whole_mass = sum(mass.values()) or 1.0
        scored: list[tuple[float, int, str, int]] = []
        beginnings: dict[str, int] = {}
        rows = db.execute(
            "SELECT p.rowid, p.title, p.symbols, p.body, c.length, c.kind, c.document "
            "FROM passages p JOIN chunks c ON c.id = p.rowid "
            f"WHERE p.rowid IN ({marks}) ORDER BY p.rowid"
        )
        for chunk, title, declared, body, length, kind, document in rows:
            title, body = f" {title} ", f" {body} "
            declared = f" {declared} " if declared else ""
            norm = 1 - B + B * length / max(mean, 1.0)
            score = covered = 0.0
            for term, worth in padded:
                tf = TITLE * title.count(term) + BODY * body.count(term) / norm
                if declared:
                    tf += SYMBOL * declared.count(term)
                if not tf:
                    continue
                score += worth * tf * (K1 + 1) / (tf + K1)
                covered += worth
            score *= 1 - COVERAGE + COVERAGE * covered / whole_mass
            if not symbols and kind != "symbol":
                score *= NOTE_PRIOR
            if not symbols and " deprecat " in title:
                score *= DEPRECATED
            beginning = beginnings.setdefault(title, chunk) == chunk
            score += EXACT * exact.get(chunk, 0.0) * (1.0 if beginning else CONTINUED)
            scored.append((score, chunk, title, document))
        return _diversified(scored)

    # -- vectors

    def _fused(
        self,
        query: str,
        lexical: list[tuple[int, float]],
        where: str,
        banned: frozenset[int],
    ) -> list[tuple[int, float]]:
        from stitchcuda.knowledge.embedding import VectorCache

        assert self.embedder is not None
        if self._vectors is None:
            self._vectors = VectorCache(self.store, self.embedder)
        nearest = self._vectors.nearest(query, CANDIDATES)
        if nearest:
            marks = ",".join(str(chunk) for chunk, _ in nearest)
            sql = f"SELECT c.id FROM chunks c WHERE c.id IN ({marks})"
            sql += f" AND {where}" if where else ""
            passing = {row[0] for row in self.store.connection.execute(sql)} - banned
            nearest = [item for item in nearest if item[0] in passing]
        fused: dict[int, float] = {}
        share = self.embedder.weight * (EXACT_SHARE if self._by_symbol(query_symbols(query), "") else 1.0)
        for weight, ranking in ((1.0, lexical), (share, nearest)):
            for rank, (chunk, _) in enumerate(ranking):
                fused[chunk] = fused.get(chunk, 0.0) + weight / (RRF + rank + 1)
        return sorted(fused.items(), key=lambda item: (-item[1], item[0]))

    # -- results

    def passages(self, ranked: Sequence[tuple[int, float]]) -> list[Passage]:
        """Load passages by chunk id, in the order given; ids that are gone are left out."""
        if not ranked:
            return []
        rows = self.store.connection.execute(
            "SELECT c.id, c.kind, c.anchor, c.title, c.symbols, c.text, d.name, s.uri, s.version, t.arch, t.libraries "
            "FROM chunks c JOIN documents d ON d.id = c.document JOIN sources s ON s.id = d.source "
            f"JOIN tagsets t ON t.id = c.tagset WHERE c.id IN ({','.join(str(chunk) for chunk, _ in ranked)})"
        )
        loaded = {row[0]: row[1:] for row in rows}
        out = []
        for chunk, score in ranked:
            if chunk not in loaded:
                continue
            kind, anchor, title, symbols, text, name, uri, version, arch, libraries = loaded[chunk]
            out.append(
                Passage(
                    chunk_id=chunk,
                    reference=f"{name}#{anchor}" if anchor else name,
                    title=" > ".join(json.loads(title)),
                    text=text,
                    source=uri if uri.endswith(name) else f"{uri}/{name}",
                    version=version,
                    score=round(score, 6),
                    kind=kind,
                    symbols=tuple(json.loads(symbols)),
                    arch=tuple(arch.split()),
                    libraries=tuple(libraries.split()),
                )
            )
        return out
