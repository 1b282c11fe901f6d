"""Memory: a store for tests and examples that passes the same contract suite as the disk."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

from ckptmgr.errors import DirectoryLocked, MissingFile, StepExists, StorageError, TruncatedFile
from ckptmgr.format.step import COMMIT_RECORD, step_number, temporary_name
from ckptmgr.storage.base import Bytes, refuse_foreign


class MemoryStorage:
    """Steps as a dict of their files; shared by all managers that are given the same object."""

    write_tasks = 2
    read_tasks = 2

    def __init__(self, root: str = "memory") -> None:
        self.root = root
        self.steps: dict[str, dict[str, bytes]] = {}
        self.replacing = threading.Lock()
        self.shared: dict[str, dict[str, bytes]] = {}  # by attempts that others may join
        self._writer = threading.Lock()

    def create(self) -> None:
        """There is nothing to make."""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._writer.acquire(blocking=False):
            raise DirectoryLocked("another manager writes this memory", file=self.root)
        try:
            yield
        finally:
            self._writer.release()

    def lock(self) -> contextlib.AbstractContextManager[object]:
        """A lock of this object."""
        return self._locked()

    def taken(self, name: str) -> bool:
        """Whether a step has the name."""
        return name in self.steps

    def free_bytes(self) -> int | None:
        """Not known."""
        return None

    def names(self) -> list[str]:
        """The published steps."""
        return sorted(self.steps)

    def _file(self, key: str) -> bytes:
        name, _, path = key.partition("/")
        try:
            return self.steps[name][path]
        except KeyError as error:
            raise MissingFile("this file is missing", file=key) from error

    def read(self, key: str, limit: int) -> bytes:
        """The bytes of a file."""
        data = self._file(key)
        if len(data) > limit:
            raise TruncatedFile(f"{len(data)} bytes where at most {limit} are allowed", file=key)
        return data

    def read_into(self, key: str, buffer: memoryview, *, offset: int, size: int) -> None:
        """Copy a part of a file."""
        data = self._file(key)
        if len(data) != size:
            raise TruncatedFile(f"{len(data)} bytes long, not {size}", file=key)
        if offset + len(buffer) > size:
            raise TruncatedFile(f"the file ends at byte {size}", file=key)
        buffer[:] = data[offset : offset + len(buffer)]

    def attempt(self, name: str) -> contextlib.AbstractContextManager[MemoryAttempt]:
        """Files kept aside until they are published."""
        return self._attempt(name)

    @contextlib.contextmanager
    def _attempt(self, name: str) -> Iterator[MemoryAttempt]:
        attempt = MemoryAttempt(self, name)
        try:
            yield attempt
        finally:
            self.shared.pop(attempt.shared, None)

    def delete(self, name: str) -> None:
        """Forget a step."""
        refuse_foreign(self.steps.get(name, ()), name)
        try:
            del self.steps[name]
        except KeyError as error:
            raise MissingFile("this step is missing", file=name) from error

    def sweep(self) -> list[str]:
        """Nothing outlives its writer here."""
        return []


class MemoryAttempt:
    """A step being written into a dict of its own."""

    def __init__(self, storage: MemoryStorage, name: str) -> None:
        self.shared = temporary_name(name, "tmp")
        self._storage = storage
        self._name = name
        self._files: dict[str, bytes] = {}

    def share(self) -> str:
        """The dict may be found by the name."""
        self._storage.shared[self.shared] = self._files
        return self.shared

    def join(self, shared: str) -> None:
        """The dict of the other attempt."""
        try:
            self._files = self._storage.shared[shared]
        except KeyError as error:
            raise StorageError("the processes do not write to one store", file=shared) from error

    def sync(self) -> None:
        """What is in memory is as durable as it will be."""

    def put(self, path: str, parts: Sequence[Bytes]) -> None:
        """Keep a copy."""
        if path in self._files:
            raise StepExists("this file was put before", file=path)
        self._files[path] = b"".join(parts)

    def link(self, key: str, path: str) -> None:
        """The same bytes."""
        self.put(path, [self._storage.read(key, sys.maxsize)])

    def publish(self, record: bytes, *, replace: bool, former: bytes | None = None) -> None:
        """Show the files under their step."""
        steps = self._storage.steps
        with self._storage.replacing:
            there = steps.get(self._name, {})
            if there and not replace:
                raise StepExists(
                    "something of this name is there already",
                    step=step_number(self._name),
                    file=self._name,
                )
            if former is not None and there.get(COMMIT_RECORD) != former:
                raise StepExists("it was changed meanwhile", file=self._name)
            refuse_foreign(there, self._name)
            steps[self._name] = {**self._files, COMMIT_RECORD: record}
