"""The lock file of a directory's one writer: flock, with the holder's name inside.

The kernel drops the lock when its holder dies, so it is never stale; the text in the
file is for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from ckptmgr.errors import DirectoryLocked, StorageError


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
