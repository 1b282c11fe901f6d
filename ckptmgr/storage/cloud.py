"""Object stores: S3 and what speaks like it, and GCS.

    step-00000100/checkpoint.json    a line that says where the data lies, then the commit record
    step-00000100/<nonce>/...        the data of one attempt, and what was noted since
    .attempts/<step name>-<nonce>    a marker of data that is not committed, or to be removed
    .holds/<step name>/<nonce>       who reads a step; .deleting/<step name> who removes it
    .lock                            the lease of the one writer; .status.json what it does

A step is there as long as its commit record is: it is put last, on the condition that
nothing is there, or what was read; and removed first. There are no links and no renames.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Final

from absl import logging

from ckptmgr.errors import (
    CheckpointError,
    ManagerClosed,
    MissingFile,
    StepHeld,
    StorageError,
    StoreUnavailable,
    TruncatedFile,
)
from ckptmgr.format.chunks import CHUNK_BYTES
from ckptmgr.format.step import COMMIT_RECORD, STATUS, temporary_name
from ckptmgr.storage import holds, probe
from ckptmgr.storage.cloud_attempt import (
    CloudAttempt,
    mark,
    refuse_others,
    remove_data,
)
from ckptmgr.storage.cloud_sweep import sweep
from ckptmgr.storage.lease import held
from ckptmgr.storage.objects import Object, Objects, absent
from ckptmgr.storage.pointer import pointed

_LOCK: Final = ".lock"
_STEP: Final = r"step-\d{8,19}"
_OURS: Final = re.compile(
    rf"{re.escape(_LOCK)}|{re.escape(STATUS)}|{re.escape(probe.PROBE)}\d+-[0-9a-f]{{16}}"
    rf"|(\.attempts|\.holds|\.deleting)/.+|(\.(damaged|abandoned)-)?{_STEP}(-[0-9a-f]{{16}})?/.+"
)
_SHARED: Final = re.compile(r"\.tmp-(.+)-([0-9a-f]{16})")
_SHOWN: Final = 4
_NEAR: Final = 64 << 10  # bytes that are read in vain for less than another request costs


class CloudStorage:
    """Steps below a prefix of a bucket.

    Args:
      objects: that prefix.
      lease_seconds: how long a writer or reader that died keeps others out.
      one_writer: trust the caller that nobody else writes, where the store cannot tell.
    """

    # Of requests that mostly wait for the network; with moto on loopback 8 are as fast as 16.
    write_tasks = 8
    read_tasks = 8
    status_seconds = 5.0

    def __init__(
        self, objects: Objects, *, lease_seconds: float = 30.0, one_writer: bool = False
    ) -> None:
        self.root = objects.root
        self.objects = objects
        self._seconds = lease_seconds
        self._one_writer = one_writer
        self._held: Callable[[], float] = lambda: objects.deadline
        self._where: dict[str, str] = {}  # of steps that were seen, where their data lies
        self._sizes: dict[str, int] = {}  # of objects that were looked at; they never change
        self._names: set[str] | None = None  # as far as this writer knows
        self._changes = 0  # of names; a listing that one of them may have missed is not kept
        self._knowing = threading.Lock()

    def create(self) -> None:
        """Try the store, and refuse a prefix that others use; there is nothing to make.

        Raises:
          StorageError: the bucket is missing, access is denied, the store ignores conditions
            or ranges, or the prefix holds objects that are not ours.
        """
        others = [key for key in self.objects.keys("") if _OURS.fullmatch(key) is None]
        if others:
            raise StorageError(
                f"this prefix holds {len(others)} objects that are not ckptmgr's, which are left "
                f"alone: {others[:_SHOWN]}; give the run a prefix of its own",
                file=self.root,
            )
        probe.probe(self.objects, one_writer=self._one_writer)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lease `.lock`, renewed by a thread of its own."""
        with held(self.objects, _LOCK, self._seconds) as lease:
            self._held = lease.ensure
            try:
                yield
            finally:
                self._held, self._names = _let_go, None

    def ensure_locked(self) -> None:
        """The lease is renewed."""
        self._held()

    def seconds_held(self) -> float:
        """How long the lease is held for certain; whoever took none has all the time there is."""
        return self._held()

    def published(self, name: str, data: str) -> None:
        """A step is there, and where its data lies."""
        self._where[name] = data
        with self._knowing:
            self._changes += 1
            if self._names is not None:
                self._names.add(name)

    def gone(self, name: str) -> None:
        """A step is none any more."""
        self._where.pop(name, None)
        with self._knowing:
            self._changes += 1
            if self._names is not None:
                self._names.discard(name)

    def taken(self, name: str) -> bool:
        """Whether it has a commit record; as was last seen, once the names were listed."""
        known = self._names
        if known is not None:
            return name in known
        return self.objects.get(f"{name}/{COMMIT_RECORD}") is not None

    def free_bytes(self) -> int | None:
        """There is no end of it."""
        return None

    def names(self) -> list[str]:
        """What has a commit record. Lists every key of the run: TensorStore knows no delimiter."""
        ending, changes = f"/{COMMIT_RECORD}", self._changes
        keys = self.objects.keys("")
        found = {key[: -len(ending)] for key in keys if key.endswith(ending)}
        found = {name for name in found if "/" not in name}
        with self._knowing:
            self._names = found if self._changes == changes else None
        return sorted(found)

    def _data(self, name: str, *, anew: bool = False) -> str:
        """Where the data of a step lies.

        Raises:
          MissingFile: there is no such step.
        """
        shared = _SHARED.fullmatch(name)
        if shared:
            return f"{shared[1]}/{shared[2]}"
        if anew or name not in self._where:
            self._pointed(name)
        return self._where[name]

    def _pointed(self, name: str) -> bytes:
        """The commit record of a step, whose data is where it says from now on."""
        key = f"{name}/{COMMIT_RECORD}"
        found = self.objects.get(key)
        if found is None:
            self._where.pop(name, None)
            raise MissingFile("this object is missing", file=f"{self.root}/{key}")
        pointer, record = pointed(found.data, f"{self.root}/{key}")
        self._where[name] = pointer.data
        return record

    def _bytes(self, key: str) -> bytes:
        """The whole of a file; looked for once more where its step may have been replaced."""
        name, _, path = key.partition("/")
        if path == COMMIT_RECORD:
            return self._pointed(name)
        for anew in (False, True):
            found = self.objects.get(f"{self._data(name, anew=anew)}/{path}")
            if found is not None:
                return found.data
        raise MissingFile("this object is missing", file=f"{self.root}/{key}")

    def read(self, key: str, limit: int, *, fresh: bool = False) -> bytes:
        """One request; nothing is cached on the way."""
        data = self._bytes(key)
        if len(data) > limit:
            raise TruncatedFile(
                f"{len(data)} bytes where at most {limit} are allowed", file=f"{self.root}/{key}"
            )
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
        """One request where nearly all is wanted; for a part the first looks for the end too."""
        stop = offset + len(buffer)
        if stop > size:
            raise TruncatedFile(f"the file ends at byte {size}", file=f"{self.root}/{key}")
        if size - len(buffer) <= _NEAR:
            data = self._bytes(key)
            if len(data) != size:
                raise TruncatedFile(
                    f"{len(data)} bytes long, not {size}", file=f"{self.root}/{key}"
                )
            data = data[offset:stop]
        else:
            data = self._part(key, offset, stop, size)
        buffer[:] = data
        seen(buffer)

    def _part(self, key: str, start: int, stop: int, size: int) -> bytes:
        name, _, path = key.partition("/")
        where = f"{self._data(name)}/{path}"
        if self._sizes.get(where) != size:
            self.objects.get_range(where, size - 1, size)
            try:
                self.objects.get_range(where, size, size + 1)
            except TruncatedFile:
                self._sizes[where] = size
            else:
                raise TruncatedFile(f"longer than {size} bytes", file=f"{self.root}/{key}")
        return self.objects.get_range(where, start, stop)

    def nbytes(self, name: str) -> int:
        """At most: as many chunks as there are objects, as a listing tells no sizes."""
        return CHUNK_BYTES * len(self.objects.keys(f"{self._data(name)}/"))

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[CloudAttempt]:
        """Data under a name of its own, removed unless it was published."""
        attempt = CloudAttempt(self, name)
        try:
            yield attempt
        finally:
            attempt.remove()

    def reading(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A hold that is renewed."""
        return holds.reading(self.objects, name, self._seconds)

    def removing(self, name: str) -> contextlib.AbstractContextManager[Callable[[], float]]:
        """Nobody else has to do with a step meanwhile; it gives how long that is for certain."""
        return holds.removing(self.objects, name)

    def delete(self, name: str) -> None:
        """The commit record, then the data."""
        self._held()
        key = f"{name}/{COMMIT_RECORD}"
        found = self._there(name)
        data = pointed(found.data, f"{self.root}/{key}")[0].data
        refuse_others(self.objects, data)
        mark(self.objects, data)
        with self.removing(name) as left:
            self._remove(name, found.generation, left())
        try:
            remove_data(self.objects, data)
        except CheckpointError as error:
            logging.warning("objects below %s are left for now: %s", data, error)

    def set_aside(self, name: str, kind: str) -> str:
        """Another pointer to the same data, then without the first."""
        self._held()
        found, other = self._there(name), temporary_name(name, kind)
        aside = f"{other}/{COMMIT_RECORD}"
        self.objects.put(aside, found.data, only=absent())
        try:
            with self.removing(name) as left:
                self._remove(name, found.generation, left())
        except StepHeld:  # it stays; after any other error nobody knows, and both lead to the data
            self.objects.delete(aside)
            raise
        return other

    def _there(self, name: str) -> Object:
        """The pointer of a step that is to go."""
        found = self.objects.get(f"{name}/{COMMIT_RECORD}")
        if found is None:
            self.gone(name)
            raise MissingFile("this step is missing", file=f"{self.root}/{name}")
        return found

    def _remove(self, name: str, only: bytes, seconds: float) -> None:
        """Remove a step's pointer, if it is that one; a reply that was lost is found out."""
        key = f"{name}/{COMMIT_RECORD}"
        try:
            gone = self.objects.delete(key, only=only, seconds=seconds)
        except StoreUnavailable:
            if self.objects.get(key) is not None:
                raise
            gone = True
        if not gone:
            raise StepHeld("it is being replaced; try again later", file=f"{self.root}/{name}")
        self.gone(name)

    def add(self, key: str, data: bytes) -> None:
        """Beside the step's data, and so gone with it."""
        name, _, path = key.partition("/")
        self.objects.put(f"{self._data(name, anew=True)}/{path}", data)

    def discard(self, key: str) -> None:
        """One request to see it, one to remove it."""
        name, _, path = key.partition("/")
        where = f"{self._data(name, anew=True)}/{path}"
        if self.objects.get(where) is None:
            raise MissingFile("this object is missing", file=f"{self.root}/{key}")
        self.objects.delete(where)

    def files(self, key: str) -> list[str]:
        """The names right below a prefix of a step's data; none where there is no step."""
        name, _, path = key.partition("/")
        try:
            prefix = f"{self._data(name)}/{path}/" if path else f"{self._data(name)}/"
        except MissingFile:
            return []
        found = (found.removeprefix(prefix) for found in self.objects.keys(prefix))
        return sorted(name for name in found if "/" not in name)

    def tell_status(self, data: bytes) -> None:
        """One put, for which nobody waits long."""
        self._held()
        self.objects.put(STATUS, data, seconds=self.status_seconds)

    def status(self) -> bytes | None:
        """One request."""
        found = self.objects.get(STATUS)
        return found.data if found else None

    def sweep(self) -> list[str]:
        """What dead writers left, as `cloud_sweep` says."""
        return sweep(self, self._seconds)

    def data_of(self, name: str) -> str:
        """Where the data of a step lies, as its pointer says now."""
        return self._data(name, anew=True)


def _let_go() -> float:
    raise ManagerClosed("the prefix is no longer this manager's to change")
