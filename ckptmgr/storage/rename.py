"""Linux's atomic exchange of two paths, which Python's os module does not have."""

from __future__ import annotations

import ctypes
import os

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # man 2 renameat2


def exchange(first: str, second: str) -> None:
    """Swap two paths in one step: at no moment is either missing.

    Raises:
      OSError: one is missing, or the file system cannot do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), second)
