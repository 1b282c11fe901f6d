"""Memory: a store for tests and examples that passes the same contract suite as the disk."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ckptmgr.errors import (
    DirectoryLocked,
    MissingFile,
    StepDeleted,
    StepExists,
    StepHeld,
    StorageError,
    TruncatedFile,
)
from ckptmgr.format.step import COMMIT_RECORD, step_number, temporary_name
from ckptmgr.storage.base import Bytes, refuse_foreign


class MemoryStorage:
    """Steps as a dict of their files; shared by all managers that are given the same object."""

    write_tasks = 2
    read_tasks = 2
    status_seconds = 1.0

    def __init__(self, root: str = "memory") -> None:
        self.root = root
        self.steps: dict[str, dict[str, bytes]] = {}
        self.replacing = threading.Lock()
        self.shared: dict[str, dict[str, bytes]] = {}  # by attempts that others may join
        self.said: bytes | None = None
        self._writer = threading.Lock()
        self._readers: Counter[str] = Counter()

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

    def ensure_locked(self) -> None:
        """Nobody takes it away."""

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
            return (self.shared.get(name) or self.steps[name])[path]
        except KeyError as error:
            raise MissingFile("this file is missing", file=key) from error

    def read(self, key: str, limit: int, *, fresh: bool = False) -> bytes:
        """The bytes of a file."""
        data = self._file(key)
        if len(data) > limit:
            raise TruncatedFile(f"{len(data)} bytes where at most {limit} are allowed", file=key)
        return data

    def read_into(
        self,
        key: str,
        buffer: memoryview,
        *,
        offset: int,
        size: int,
        seen: Callable[[memoryview], object] = len,
    ) -> None:
        """Copy a part of a file."""
        data = self._file(key)
        if len(data) != size:
            raise TruncatedFile(f"{len(data)} bytes long, not {size}", file=key)
        if offset + len(buffer) > size:
            raise TruncatedFile(f"the file ends at byte {size}", file=key)
        buffer[:] = data[offset : offset + len(buffer)]
        seen(buffer)

    def nbytes(self, name: str) -> int:
        """Of those that are there."""
        return sum(map(len, self.steps.get(name, {}).values()))

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

    def reading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Counted, under the lock that replacing takes."""
        return self._reading(name)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        with self.replacing:
            if COMMIT_RECORD not in self.steps.get(name, {}):
                raise StepDeleted("the step was deleted", file=name)
            self._readers[name] += 1
        try:
            yield
        finally:
            with self.replacing:
                self._readers[name] -= 1

    def _refuse_read(self, name: str) -> None:
        if self._readers[name]:
            raise StepHeld("it is being read or held; try again later", file=name)

    def check_free(self, name: str) -> None:
        """Refuse to touch a step that is read, or holds files of others; under the lock."""
        self._refuse_read(name)
        refuse_foreign(self.steps.get(name, ()), name)

    def delete(self, name: str) -> None:
        """Forget a step."""
        with self.replacing:
            self.check_free(name)
            if name not in self.steps:
                raise MissingFile("this step is missing", file=name)
            del self.steps[name]

    def set_aside(self, name: str, kind: str) -> str:
        """Another key."""
        other = temporary_name(name, kind)
        with self.replacing:
            self._refuse_read(name)
            if name not in self.steps:
                raise MissingFile("this step is missing", file=name)
            self.steps[other] = self.steps.pop(name)
        return other

    def add(self, key: str, data: bytes) -> None:
        """Replaced, never changed."""
        name, _, path = key.partition("/")
        with self.replacing:
            if name not in self.steps:
                raise MissingFile("this step is missing", file=name)
            self.steps[name] = {**self.steps[name], path: data}

    def discard(self, key: str) -> None:
        """Without that file."""
        name, _, path = key.partition("/")
        with self.replacing:
            if path not in self.steps.get(name, {}):
                raise MissingFile("this file is missing", file=key)
            self.steps[name] = {p: data for p, data in self.steps[name].items() if p != path}

    def files(self, key: str) -> list[str]:
        """Those whose path begins so."""
        name, _, path = key.partition("/")
        inside = self.steps.get(name, {})
        return sorted(p.rpartition("/")[2] for p in inside if p.rpartition("/")[0] == path)

    def tell_status(self, data: bytes) -> None:
        """Kept beside the steps."""
        self.said = data

    def status(self) -> bytes | None:
        """What was kept."""
        return self.said

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

    def put(self, path: str, parts: Iterable[Bytes]) -> None:
        """Keep a copy."""
        if path in self._files:
            raise StepExists("this file was put before", file=path)
        self._files[path] = b"".join(parts)

    def link(self, key: str, path: str, nbytes: int | None) -> bool:
        """The same bytes."""
        name, _, file = key.partition("/")
        data = self._storage.steps.get(name, {}).get(file)
        if data is None or len(data) != (len(data) if nbytes is None else nbytes):
            return False
        self.put(path, [data])
        return True

    def copy(self, key: str, path: str) -> None:
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
            self._storage.check_free(self._name)
            steps[self._name] = {**self._files, COMMIT_RECORD: record}
