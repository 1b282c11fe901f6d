"""What a store must do. Every store passes the same contract suite.

A store holds named steps; a key is `<step name>/<path>`. A step comes into being in an
attempt, where its files are put one by one, and becomes visible all at once when the
attempt is published. An attempt that is left unpublished leaves nothing behind. Every
failure is one of ours: MissingFile, NoFile, TruncatedFile, NoSpace, StepExists, StorageError.
Calls block and come from several threads at a time, never from the event loop's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias

from ckptmgr.errors import StorageError
from ckptmgr.format.step import foreign, step_number

Bytes: TypeAlias = bytes | memoryview
BLOCK: Final = 1 << 20  # bytes: what is moved at a time stays in the processor's cache


class Attempt(Protocol):
    """A step in the making. Several processes may put files into one; one of them publishes it."""

    def share(self) -> str:
        """Let attempts of other processes join this one, by the name that this returns."""

    def join(self, shared: str) -> None:
        """Go on as a part of the attempt that was shared under this name.

        Raises:
          StorageError: it is not there: the store is not the same for all processes.
        """

    def sync(self) -> None:
        """Make what was put durable for whoever publishes it: the names of the files too."""

    def put(self, path: str, parts: Iterable[Bytes]) -> None:
        """Store a new file made of `parts`, durable on return. They may be gone through again."""

    def link(self, key: str, path: str, nbytes: int | None) -> bool:
        """Let a file of a published step, at `key` in the store, be here as well, without a copy.

        Neither is ever changed. False, and nothing is here, where the store cannot do that or
        does it no more for this file, or where it is missing or has not `nbytes` bytes.
        """

    def copy(self, key: str, path: str) -> None:
        """Store a file of a published step, at `key` in the store, here as well, durable on return.

        Raises:
          MissingFile: it is not there.
        """

    def publish(self, record: bytes, *, replace: bool, former: bytes | None = None) -> None:
        """Add the commit record and make the step visible, durable on return.

        `former`: the commit record that what is replaced must have.

        Raises:
          StepExists: the name is taken and `replace` is False, or what is there is no longer
            `former`; it is untouched.
          StepHeld: what is there is being read, held or replaced; it is untouched.
          StorageError: what is there holds files that we do not write; it is untouched.
        """


class Storage(Protocol):
    """A place for steps.

    Attributes:
      root: its name for people.
      write_tasks, read_tasks: how many puts, and how many reads, at a time serve it best.
      status_seconds: how long a status stands at least before the next.
    """

    root: str
    write_tasks: int
    read_tasks: int
    status_seconds: float

    def create(self) -> None:
        """Make the place itself where it is missing; what it lies in must be there."""

    def lock(self) -> AbstractContextManager[object]:
        """Become its one writer until the context ends.

        Raises:
          DirectoryLocked: another live writer holds it.
        """

    def ensure_locked(self) -> None:
        """See that what `lock` took, if it did, is held still: before a step is begun.

        Raises:
          StorageError: the place is no longer the one that was locked; whatever deletes a step or
            sets one aside raises this by itself.
          DirectoryLocked: another writer came in.
        """

    def taken(self, name: str) -> bool:
        """Whether anything has the name of a step. Quick enough for the trainer's thread."""

    def free_bytes(self) -> int | None:
        """The room that is left, where that is known."""

    def names(self) -> list[str]:
        """What lies at the top: steps, and whatever else is there."""

    def read(self, key: str, limit: int, *, fresh: bool = False) -> bytes:
        """The whole of a file of at most `limit` bytes; if `fresh`, past what is cached of it."""

    def read_into(
        self,
        key: str,
        buffer: memoryview,
        *,
        offset: int,
        size: int,
        seen: Callable[[memoryview], object] = len,
    ) -> None:
        """Fill `buffer` from `offset` on, of a file that must be `size` bytes long.

        `seen` is called with each part of it, in order, as soon as it is filled.
        """

    def nbytes(self, name: str) -> int:
        """The bytes of all files of a step."""

    def attempt(self, name: str) -> AbstractContextManager[Attempt]:
        """Begin a step of this name."""

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Keep a step from being deleted or replaced, by any process, until the context ends.

        Raises:
          StepDeleted: it is not there, or no longer.
        """

    def delete(self, name: str) -> None:
        """Remove a step; a crash in between leaves nothing that counts as one.

        Raises:
          StepHeld: somebody reads, holds or replaces it now; it is untouched.
          StorageError: it holds files that we do not write; it is untouched.
        """

    def set_aside(self, name: str, kind: str) -> str:
        """Give a step a name under which it is none, and which it keeps; returns it.

        Raises:
          StepHeld: somebody reads, holds or replaces it now; it is untouched.
        """

    def add(self, key: str, data: bytes) -> None:
        """Put a small file into a published step, in the place of a former one, durable on return.

        Whoever looks sees all of it or nothing. For who keeps the step meanwhile.
        """

    def discard(self, key: str) -> None:
        """Remove a file that was added."""

    def files(self, key: str) -> list[str]:
        """The names of the files in a directory of a step; none where it is not there."""

    def tell_status(self, data: bytes) -> None:
        """Keep what the one writer says of itself; whoever looks sees all of it, or the former."""

    def status(self) -> bytes | None:
        """What the last writer that said something of itself has said."""

    def sweep(self) -> list[str]:
        """Remove what dead writers left, for the one writer only; returns the names."""


def refuse_foreign(files: Iterable[str], path: str) -> None:
    """Refuse to remove a step that holds files, given by their paths in it, that are not ours.

    Raises:
      StorageError: it does.
    """
    others = foreign(files)
    if others:
        raise StorageError(
            f"it holds files that are not ckptmgr's and is left alone; move out {others[:4]}",
            step=step_number(os.path.basename(path)),
            file=path,
        )
