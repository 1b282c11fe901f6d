"""Leases: who writes a prefix of an object store, where there is no lock that dies with its holder.

A lease is an object that its holder puts again and again. Who finds one waits: where it
changes its holder lives, where it stays the same for as long as it says its holder is
dead, and it is taken over. No clocks are compared. A holder that cannot renew its lease
for that long has lost it by its own clock, and commits nothing any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from absl import logging

from ckptmgr.errors import CheckpointError, DirectoryLocked, StorageError
from ckptmgr.format.step import nonce
from ckptmgr.storage.objects import Objects, absent

_PARTS: Final = 3  # it is renewed so often while it lasts


class _Held(msgspec.Struct, frozen=True):
    """What a lease says: who holds it, its nonce, how often it was renewed, how long it lasts.

    `place` is where the pid is one: the machine since it was booted, and its pid namespace.
    """

    host: str
    pid: int
    place: str
    nonce: str
    renewed: int
    seconds: float

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class Lease:
    """A lease that is held, and renewed by a thread until `release`.

    Args:
      objects: where it lies.
      key: under which name.
      seconds: how long it lasts unless it is renewed.

    Raises:
      DirectoryLocked: somebody else holds it. Waits until that is sure.
    """

    def __init__(self, objects: Objects, key: str, seconds: float) -> None:
        self._objects = objects
        self._key = key
        self._mutex = threading.Lock()
        self._held = _Held(socket.gethostname(), os.getpid(), _place(), nonce(), 0, seconds)
        began = time.monotonic()
        self._generation = self._acquire()
        self._until = max(began, self._began) + seconds
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="ckptmgr lease", daemon=True)
        self._thread.start()

    def _acquire(self) -> bytes:
        seen, since = b"", 0.0
        while True:
            self._began = time.monotonic()
            found = self._objects.get(self._key)
            if found is None:
                only = absent()
            else:
                holder = self._decoded(found.data)
                if seen and found.generation != seen:
                    raise self._refusal(holder)
                if not seen:
                    seen, since = found.generation, time.monotonic()
                if not _is_dead(holder) and time.monotonic() - since < holder.seconds:
                    self._pause(holder.seconds)
                    continue
                logging.warning("the lease of %s has expired and is taken over", holder)
                only = found.generation
            mine = self._objects.put(self._key, msgspec.json.encode(self._held), only=only)
            if mine is not None:
                return mine
            seen = seen or b"-"  # somebody else was quicker

    @staticmethod
    def _pause(seconds: float) -> None:
        threading.Event().wait(seconds / 20)

    def _decoded(self, data: bytes) -> _Held:
        try:
            return msgspec.json.decode(data, type=_Held)
        except msgspec.MsgspecError as error:
            raise StorageError(
                "this is no lease of ours; remove it where nobody writes here",
                file=f"{self._objects.root}/{self._key}",
            ) from error

    def _refusal(self, holder: object) -> DirectoryLocked:
        return DirectoryLocked(
            f"another manager writes this prefix ({holder}); close it, or open with read_only=True",
            file=f"{self._objects.root}/{self._key}",
        )

    def ensure(self) -> float:
        """Renew the lease; the seconds that it is held for certain.

        Raises:
          DirectoryLocked: it was lost to somebody else, or could not be renewed for too long.
        """
        with self._mutex:
            self._renew_once()
            return self._until - time.monotonic()

    def _renew_once(self) -> None:
        self._refuse_lost()
        while True:
            began, left = time.monotonic(), self._until - time.monotonic()
            if left <= 0:
                break
            renewed = msgspec.structs.replace(self._held, renewed=self._held.renewed + 1)
            generation = self._objects.put(
                self._key,
                msgspec.json.encode(renewed),
                only=self._generation,
                seconds=min(left / 2, self._objects.deadline),  # and there is time for another
            )
            if generation is not None:
                self._held, self._generation = renewed, generation
                self._until = began + renewed.seconds
                return
            found = self._objects.get(self._key)
            holder = self._decoded(found.data) if found else None
            if found is None or holder is None or holder.nonce != self._held.nonce:
                self._lost = f"taken over by {holder}" if holder else "it was removed"
                raise self._refusal(holder or "its lease was removed")
            # One of our own that nobody answered for has got through.
            self._held, self._generation = holder, found.generation
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost is None and time.monotonic() > self._until:
            self._lost = "it could not be renewed in time"
        if self._lost is not None:
            raise DirectoryLocked(
                f"this manager no longer holds its lease: {self._lost}; open a new manager",
                file=f"{self._objects.root}/{self._key}",
            )

    def _renew(self) -> None:
        while not self._ended.wait(self._held.seconds / _PARTS):
            try:
                self.ensure()
            except DirectoryLocked as error:
                logging.error("%s", error)
                return
            except CheckpointError as error:
                logging.warning("the lease could not be renewed now: %s", error)

    def release(self) -> None:
        """Let go of it, so that the next need not wait."""
        self._ended.set()
        self._thread.join(self._objects.deadline)
        if self._lost is None:
            try:
                self._objects.delete(self._key, only=self._generation)
            except CheckpointError as error:
                logging.warning("the lease is left to expire: %s", error)


def _place() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux: then nobody is known to be dead
        return nonce()


def _is_dead(holder: _Held) -> bool:
    """Whether the holder was a process of this machine that is gone."""
    if holder.place != _place():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@contextlib.contextmanager
def held(objects: Objects, key: str, seconds: float) -> Iterator[Lease]:
    """Hold a lease until the context ends.

    Raises:
      DirectoryLocked: somebody else holds it.
    """
    lease = Lease(objects, key, seconds)
    try:
        yield lease
    finally:
        lease.release()
