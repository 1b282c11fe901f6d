"""Locks by flock: of a directory's one writer, and of a step that is read, held or replaced.

The kernel drops a lock when its holder dies, so it is never stale; the text in the
writer's lock file is for people. A lock belongs to the open file, which a forked child
has too: it lets go of all of them at once, so that its parent's end is the lock's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from ckptmgr.errors import DirectoryLocked, StepDeleted, StepExists, StepHeld, StorageError
from ckptmgr.storage.files import refuse_links, translated

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
# Nothing is in its place, or a link, a directory, a socket.
_NO_RECORD = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO})
_HELD: set[int] = set()  # the descriptors of locks, for a forked child to close


def _let_go_in_child() -> None:
    for descriptor in _HELD:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextlib.contextmanager
def _descriptor(path: str, flags: int, mode: int = 0o600) -> Iterator[int]:
    """An open file whose lock ends with this context, or in a forked child at once."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    _HELD.add(descriptor)
    owner = os.getpid()
    try:
        yield descriptor
    finally:
        if os.getpid() == owner:
            _HELD.discard(descriptor)
            # Not by closing it alone: a child that was just forked may not have let go yet.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: str) -> Iterator[Callable[[], None]]:
    """Hold the lock file at `path`; another holder is refused at once, in this process too.

    What it gives is to be called before anything is changed: it makes sure that the lock
    still is that of the directory, and makes a lock file anew that somebody removed.

    Raises:
      DirectoryLocked: somebody else holds it; the text names host and process.
      StorageError: the file cannot be made, or the file system has no locks; later, the
        directory was removed, moved or replaced.
    """
    root, mutex = os.path.dirname(path), threading.Lock()
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(_locked(path))
        with translated(root):
            directory = stack.enter_context(_descriptor(root, os.O_RDONLY | os.O_DIRECTORY))

        def ensure() -> None:
            nonlocal held
            with mutex:
                if not _is_at(directory, root):
                    raise StorageError(
                        "the directory was removed, moved or replaced while this manager had it "
                        "open; close the manager and open a new one",
                        file=root,
                    )
                if not _is_at(held, path):
                    logging.warning("the lock file was removed, and is made anew: %s", path)
                    held = stack.enter_context(_locked(path))

        yield ensure


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(_descriptor(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StorageError(
                f"the lock file cannot be opened: {error.strerror}", file=path
            ) from error
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
                f"the directory cannot be locked: {error.strerror}; on a file system without "
                "locks two writers would not know of each other",
                file=path,
            ) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError("the lock is no regular file; remove it", file=path)
        os.ftruncate(descriptor, 0)
        since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        text = f"host {socket.gethostname()}, pid {os.getpid()}, since {since}\n"
        os.pwrite(descriptor, text.encode(), 0)
        yield descriptor


@contextlib.contextmanager
def shared(root: str, key: str) -> Iterator[None]:
    """Keep the step whose commit record is the file `key` from being deleted or replaced.

    Waits while somebody else deletes or replaces it, which is a rename long.

    Raises:
      StepDeleted: it is no longer there.
    """
    record = os.path.join(root, key)
    while True:
        with contextlib.ExitStack() as stack:
            try:
                refuse_links(root, os.path.dirname(key))
                descriptor = stack.enter_context(_descriptor(record, os.O_RDONLY))
            except FileNotFoundError as error:
                raise StepDeleted("the step was deleted", file=record) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                logging.log_first_n(
                    logging.WARNING,
                    "this file system has no locks: a step that is read may be deleted: %s",
                    1,
                    record,
                )
            if _is_at(descriptor, record):
                yield
                return


@contextlib.contextmanager
def exclusively(record: str, former: bytes | None) -> Iterator[None]:
    """Be the only one who has to do with the step whose commit record is the file `record`.

    Does not wait. Where the file system has no locks this relies on what `former` says.

    Raises:
      StepHeld: somebody reads, holds or replaces it now.
      StepExists: it is another one by now, or no longer has `former`.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(_descriptor(record, os.O_RDWR))
        except OSError as error:
            if error.errno not in _NO_RECORD:
                raise
            if former is not None:
                raise StepExists("it was removed meanwhile", file=record) from error
            yield  # no commit record, no step
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StepHeld(
                "it is being read, held or replaced; try again later", file=record
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        # What was opened may have been replaced before it was locked.
        same = former is None or os.pread(descriptor, len(former) + 1, 0) == former
        if not (same and _is_at(descriptor, record)):
            raise StepExists("it was changed meanwhile; try again", file=record)
        yield


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
