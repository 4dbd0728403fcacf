"""The data of a look-up: what was asked of the knowledge base, what it gave, and where that stands.

A look-up is an effect of the workflow: it is journaled whole, so that a resumed run shows the same words to the
model. Looking up is in ``agents.lookup``.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Citation(BaseModel):
    """One passage that was shown, by the number it has in the prompt."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="K1, K2, ...: unique within one request")
    reference: str = Field(description="document and section, such as 'softmax_kernels.md#row-softmax'")
    title: str
    source: str
    version: str = ""
    score: float = 0.0
    sha256: str = Field(description="of the passage's text as it was shown")

    @property
    def words(self) -> str:
        """For people: title, source and version."""
        version = f" {self.version}" if self.version else ""
        return f"{self.title} ({self.source}{version})"


class References(BaseModel):
    """What one request shows beside its own facts. ``text`` is quoted material, fenced as such: data, not orders."""

    model_config = ConfigDict(frozen=True)

    queries: list[str] = Field(default_factory=list)
    text: str = Field(default="", description="the passages as the prompt shows them; empty when nothing was found")
    citations: list[Citation] = Field(default_factory=list)
    problem: str = Field(default="", description="why the knowledge base could not be asked, or not fully")

    def cited(self, names: list[str]) -> list[str]:
        """The passages that ``names`` (such as 'K2' or '[k2]') mean, in words, each once; other names are dropped."""
        known = {citation.id: citation.words for citation in self.citations}
        found = (known.get(name.strip(" []().,").upper()) for name in names)
        return list(dict.fromkeys(words for words in found if words))
