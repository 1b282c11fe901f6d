"""Linux's renames with conditions, which Python's os module does not have. man 2 renameat2."""

from __future__ import annotations

import ctypes
import errno
import os

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def exchange(first: str, second: str) -> None:
    """Swap two paths in one step: at no moment is either missing.

    Raises:
      OSError: one is missing, or the file system cannot do it.
    """
    renameat2(first, second, _RENAME_EXCHANGE)


def rename_new(source: str, target: str) -> None:
    """Rename where nothing has the other name: not even an empty directory is replaced.

    Raises:
      FileExistsError: something has it.
      OSError: the source is missing.
    """
    try:
        renameat2(source, target, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # A file system that knows no conditions (some NFS): looked at first, then.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(source, target)


def renameat2(source: str, target: str, flags: int) -> None:
    """The system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
