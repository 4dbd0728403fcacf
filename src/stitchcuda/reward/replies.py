"""A reply log in memory, for askings that belong to no run: nothing is resumed, so nothing is kept."""

from __future__ import annotations

from stitchcuda.agents.roles import ReplyRecord, RequestKey


class Replies:
    """Holds the replies of one conversation while it lasts."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._records: dict[RequestKey, ReplyRecord] = {}

    def find(self, key: RequestKey) -> ReplyRecord | None:
        """The reply to a request that was made before."""
        return self._records.get(key)

    def append(self, record: ReplyRecord) -> None:
        """Keep a reply."""
        self._records[record.key] = record
