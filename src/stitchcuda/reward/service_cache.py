"""What was measured once, kept by content: in memory within a bound in bytes, and on disk for later processes.

Values are bytes; what they mean is the caller's business. Nothing here is needed for a right answer: a disk that is
full or damaged costs its use, and says so, and never a reward.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

SCHEMA = 1
"""Of the file; one of another version is left alone and not used."""
OVERHEAD = 256
"""Bytes that an entry takes in memory besides its value and its key."""
KEEP = 0.9
"""Share of the bound that is left when old entries are removed from disk."""
REFRESH_S = 3600.0
"""An entry that is read counts as used now, unless it was marked so within this time, seconds."""
WAIT_S = 30.0
"""Longest wait for another process that writes, seconds."""


class Lru:
    """Bytes by key; the least recently used go when there are more than ``limit`` bytes. Not for several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> bytes | None:
        """The value, which is the most recently used then."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep a value, unless it alone is larger than the bound."""
        self.drop(key)
        size = _size(key, value)
        if size > self.limit:
            return
        self._entries[key] = value
        self.bytes += size
        while self.bytes > self.limit:
            self.bytes -= _size(*self._entries.popitem(last=False))

    def drop(self, key: str) -> None:
        """Forget a key."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.bytes -= _size(key, value)


class Disk:
    """Bytes by key in one SQLite file that several processes may use at once; at most about ``limit`` bytes of values.

    Every write is whole or absent. ``remark`` gets a sentence when the file cannot be used; from then on nothing is
    kept in it.
    """

    def __init__(self, path: Path, limit: int, remark: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.limit, self.remark = path, limit, remark
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._read: set[str] = set()
        self._written = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
            self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._reader.execute("PRAGMA query_only=ON")
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def get(self, key: str) -> bytes | None:
        """The value, or None. Waits for no writer."""
        with self._reading:
            if self._reader is None:
                return None
            try:
                row = self._reader.execute("SELECT value, used FROM entry WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error as error:
                self._reader.close()
                self._reader = None
                self._remark(error)
                return None
        if row is None:
            return None
        value, used = row
        if time.time() - used > REFRESH_S:
            self._read.add(key)
        try:
            return zlib.decompress(value)
        except (zlib.error, TypeError):
            return None

    def put(self, key: str, value: bytes) -> None:
        """Keep a value; old ones go where there are too many. May wait for another process that writes."""
        packed = zlib.compress(value, 1)
        with self._lock:
            if self._connection is None or len(packed) > self.limit:
                return
            now = time.time()
            read, self._read = self._read, set()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("UPDATE entry SET used = ? WHERE key = ?", [(now, name) for name in read])
                self._connection.execute(
                    "INSERT OR REPLACE INTO entry (key, value, size, used) VALUES (?, ?, ?, ?)",
                    (key, packed, len(packed), now),
                )
                self._connection.execute("COMMIT")
                self._written += len(packed)
                if self._written > self.limit * (1 - KEEP) / 2:
                    self._written = 0
                    self._shrink(self._connection)
            except sqlite3.Error as error:
                self._give_up(error)

    def drop(self, key: str) -> None:
        """Forget a key."""
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.execute("DELETE FROM entry WHERE key = ?", (key,))
                except sqlite3.Error as error:
                    self._give_up(error)

    def bytes(self) -> int:
        """Of all values as they are kept."""
        with self._lock:
            return 0 if self._connection is None else _total(self._connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._reading:
            for connection in (self._connection, self._reader):
                if connection is not None:
                    connection.close()
            self._connection = self._reader = None

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise sqlite3.DatabaseError(f"it has version {version}, this package writes {SCHEMA}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, "
                "used REAL NOT NULL)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS entry_used ON entry (used, size)")
            connection.execute(f"PRAGMA user_version={SCHEMA}")
            connection.execute("COMMIT")
            self._shrink(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Remove what was not used for longest, where all are more than the bound."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            excess = _total(connection) - self.limit
            if excess > 0:
                excess += int(self.limit * (1 - KEEP))
                gone = []
                for key, size in connection.execute("SELECT key, size FROM entry ORDER BY used"):
                    gone.append((key,))
                    excess -= size
                    if excess <= 0:
                        break
                connection.executemany("DELETE FROM entry WHERE key = ?", gone)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _give_up(self, error: Exception) -> None:
        """Stop writing; what can be read stays readable."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._remark(error)

    def _remark(self, error: Exception) -> None:
        self.remark(
            f"the cache {self.path} cannot be used ({error}); new measurements are kept in memory only. "
            "Delete the file, or give it room"
        )


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value) + OVERHEAD


def _total(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT COALESCE(SUM(size), 0) FROM entry").fetchone()[0])
