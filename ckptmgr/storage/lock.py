"""Locks by flock: of a directory's one writer, and of a step that is being replaced.

The kernel drops a lock when its holder dies, so it is never stale; the text in the
writer's lock file is for people.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

from ckptmgr.errors import DirectoryLocked, StepExists, StorageError

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


@contextlib.contextmanager
def exclusive_lock(path: str) -> Iterator[None]:
    """Hold the lock file at `path`; another holder is refused at once, in this process too.

    Raises:
      DirectoryLocked: somebody else holds it; the text names host and process.
      StorageError: the file cannot be made, or the file system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(
            f"the lock file cannot be opened: {error.strerror}", file=path
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 256, 0).decode("utf-8", "replace").strip()
            raise DirectoryLocked(
                f"another manager writes this directory ({holder or 'its name is not known'}); "
                "close it, or open with read_only=True",
                file=path,
            ) from error
        except OSError as error:
            raise StorageError(
                f"the directory cannot be locked: {error.strerror}", file=path
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"host {socket.gethostname()}, pid {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(record: str, former: bytes | None) -> Iterator[None]:
    """Be the only one who replaces the step whose commit record is the file `record`.

    Where the file system has no locks this relies on what `former` says.

    Raises:
      StepExists: somebody else replaces it now or has done so; it no longer has `former`.
    """
    try:
        descriptor = os.open(record, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        if former is not None:
            raise StepExists("it was removed meanwhile", file=record) from error
        descriptor = None
    if descriptor is None:
        yield  # no commit record, no step
        return
    try:
        _lock_against(descriptor, record)
        # What was opened may have been replaced before it was locked.
        with open(record, "rb") as now:
            same = os.path.samestat(os.fstat(now.fileno()), os.fstat(descriptor))
            if not same or former not in (None, now.read()):
                raise StepExists("it was changed meanwhile; try again", file=record)
        yield
    finally:
        os.close(descriptor)


def _lock_against(descriptor: int, record: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StepExists("another writer replaces it now; try again", file=record) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
