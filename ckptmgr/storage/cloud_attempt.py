"""An attempt on an object store: data under a name of its own, which nobody sees until it points.

Every put is create-only, so no two attempts write over each other, and one that is tried
again after its reply was lost is known by its bytes. A marker says of all data that no
pointer leads to that it is in the making, or to be removed.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import msgspec
from absl import logging

from ckptmgr.errors import CheckpointError, StepExists, StorageError, StoreUnavailable
from ckptmgr.format.step import COMMIT_RECORD, nonce, step_number
from ckptmgr.storage.base import Bytes, refuse_foreign
from ckptmgr.storage.objects import Object, Objects, absent
from ckptmgr.storage.pointer import Pointer, pointed

ATTEMPTS: Final = ".attempts/"


class Marker(msgspec.Struct, frozen=True):
    """Data that no pointer may lead to: its prefix, and since when."""

    data: str
    since: float
    given_up: bool = False


class Steps(Protocol):
    """What an attempt asks of its store."""

    objects: Objects

    def seconds_held(self) -> float:
        """How long this writer is the one; raises where it is no longer."""

    def removing(self, name: str) -> AbstractContextManager[Callable[[], float]]:
        """A context in which nobody else reads, holds or removes a step, and for how long."""

    def published(self, name: str, data: str) -> None:
        """A step is there, and where its data lies."""

    def read(self, key: str, limit: int, *, fresh: bool = False) -> bytes:
        """The whole of a file."""


class CloudAttempt:
    """A step being put.

    Args:
      store: where.
      name: what it will be called.
    """

    def __init__(self, store: Steps, name: str) -> None:
        self._store = store
        self._objects = store.objects
        self._name = name
        self._data = f"{name}/{nonce()}"
        self._marking = threading.Lock()
        self._marked = self._shared = self._joined = self._published = self._doubtful = False
        self._late = False  # a put that was given up may still arrive
        self._replaced: str | None = None
        self._paths: set[str] = set()

    def share(self) -> str:
        """Mark the data, for others to find it."""
        self._shared = True
        self._mark()
        return f".tmp-{self._name}-{self._data.rpartition('/')[2]}"

    def join(self, shared: str) -> None:
        """The data of the other attempt, whose marker must be visible from here."""
        self._data = f"{self._name}/{shared.rpartition('-')[2]}"
        self._shared = self._joined = self._marked = True
        if not self._is_marked():
            raise StorageError(
                "what process 0 has put is not to be seen from this one: they must write to one "
                "store",
                file=f"{self._objects.root}/{self._data}",
            )

    def sync(self) -> None:
        """What the store has answered for is durable."""

    def put(self, path: str, parts: Iterable[Bytes]) -> None:
        """One object."""
        self._mark()
        key = f"{self._data}/{path}"
        with self._marking:
            again = path in self._paths
            self._paths.add(path)
        # Where no other process puts, a condition would cost another request.
        only = absent() if self._shared else None
        try:
            taken = again or self._objects.put(key, b"".join(parts), only=only) is None
        except StoreUnavailable:
            self._late = True
            raise
        if taken:
            raise StepExists("this file was put before", file=f"{self._objects.root}/{key}")

    def link(self, key: str, path: str, nbytes: int | None) -> bool:
        """Object stores have no links."""
        return False

    def copy(self, key: str, path: str) -> None:
        """Read and put again."""
        self.put(path, [self._store.read(key, sys.maxsize)])

    def _mark(self) -> None:
        with self._marking:
            if not self._marked:
                mark(self._objects, self._data)
                self._marked = True

    def publish(self, record: bytes, *, replace: bool, former: bytes | None = None) -> None:
        """The pointer, create-only or in the place of the one that was read."""
        self._mark()
        if not self._is_marked():
            raise StorageError(
                "what was put took so long that another writer has removed it",
                file=f"{self._objects.root}/{self._data}",
            )
        mine = Pointer(self._data).joined(record)
        there = self._objects.get(self._key)
        if there is None:
            if former is not None:
                raise self._taken("it was removed meanwhile")
            self._point(mine, absent())
        elif not replace:
            raise self._taken("something of this name is there already")
        else:
            self._replace(there, mine, former)
        self._published = True
        self._store.published(self._name, self._data)

    @property
    def _key(self) -> str:
        return f"{self._name}/{COMMIT_RECORD}"

    def _taken(self, why: str) -> StepExists:
        file = f"{self._objects.root}/{self._key}"
        return StepExists(why, step=step_number(self._name), file=file)

    def _replace(self, there: Object, mine: bytes, former: bytes | None) -> None:
        old, record = pointed(there.data, f"{self._objects.root}/{self._key}")
        if former not in (None, record):
            raise self._taken("it was changed meanwhile")
        refuse_others(self._objects, old.data)
        mark(self._objects, old.data)
        with self._store.removing(self._name) as left:
            self._point(mine, there.generation, left)
            self._replaced = old.data

    def _is_marked(self) -> bool:
        """Whether the data is still in the making."""
        found = self._objects.get(marker_of(self._data))
        return found is not None and not msgspec.json.decode(found.data, type=Marker).given_up

    def _point(
        self, mine: bytes, only: bytes, left: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Put the pointer while this writer is the one.

        Raises:
          StepExists: another was quicker.
          StoreUnavailable: nobody knows whether it is there; then nothing is removed.
        """
        seconds = min(self._store.seconds_held(), left(), self._objects.deadline)
        try:
            done = self._objects.put(self._key, mine, only=only, seconds=seconds)
        except StoreUnavailable:
            self._doubtful = True
            there = self._objects.get(self._key)
            if there is None or there.data != mine:
                raise
            done = there.generation
            self._doubtful = False
        if done is None:
            raise self._taken("it was changed meanwhile")

    def remove(self) -> None:
        """Remove what is left: unpublished data, or that of the step that was replaced."""
        if self._joined or not self._marked or self._doubtful:
            return  # who shared it does, or nobody before its marker has aged
        try:
            if not self._published:
                remove_data(self._objects, self._data)
                if self._shared or self._late:  # what still comes is for who sweeps
                    mark(self._objects, self._data, given_up=True)
                return
            self._objects.delete(marker_of(self._data))
            if self._replaced is not None:
                remove_data(self._objects, self._replaced)
        except CheckpointError as error:
            logging.warning("objects below %s are left for now: %s", self._data, error)


def marker_of(data: str) -> str:
    """The key of the marker of some data."""
    return ATTEMPTS + data.replace("/", "-")


def mark(objects: Objects, data: str, *, given_up: bool = False) -> None:
    """Say that no pointer may lead to some data."""
    objects.put(marker_of(data), msgspec.json.encode(Marker(data, time.time(), given_up)))


def remove_data(objects: Objects, data: str) -> None:
    """Remove data that no pointer leads to, then its marker."""
    objects.delete_all(f"{data}/")
    objects.delete(marker_of(data))


def refuse_others(objects: Objects, data: str) -> None:
    """Refuse to remove data among which lie objects that are not ours.

    Raises:
      StorageError: they do.
    """
    prefix = f"{data}/"
    name = data.partition("/")[0]
    files = [key.removeprefix(prefix) for key in objects.keys(prefix)]
    refuse_foreign(files, f"{objects.root}/{name}")
