"""A store for tests: threads of one process stand for the processes of a job."""

from __future__ import annotations

import threading


class MemoryStore:
    """What the clients of one job share."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()


class MemoryClient:
    """A process's door to a MemoryStore; passes the same contract suite as jax.distributed's."""

    def __init__(self, store: MemoryStore, index: int, count: int) -> None:
        self.index = index
        self.count = count
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        """Store a value."""
        with self._store.changed:
            self._store.values[key] = value
            self._store.changed.notify_all()

    def get(self, key: str, seconds: float) -> bytes | None:
        """Wait for a value."""
        with self._store.changed:
            self._store.changed.wait_for(lambda: key in self._store.values, seconds)
            return self._store.values.get(key)

    def delete(self, key: str) -> None:
        """Remove a value."""
        with self._store.changed:
            self._store.values.pop(key, None)
