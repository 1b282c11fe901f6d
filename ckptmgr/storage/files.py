"""Files and directories: written through, read whole, their errors told as ours."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator

from ckptmgr.errors import (
    CheckpointError,
    MissingFile,
    NoFile,
    NoSpace,
    StorageError,
    TooManyOpenFiles,
    TruncatedFile,
)
from ckptmgr.storage.base import BLOCK, Bytes, refuse_foreign
from ckptmgr.storage.stage import Stages, write

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_NO_FILE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_new(path: str, parts: Iterable[Bytes], stages: Stages) -> None:
    """Write a new file and sync its bytes; its name is not durable yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        write(descriptor, parts, stages)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn an OSError into ours, with what the user can do about it."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        file = error.filename or path
        if isinstance(error, FileNotFoundError):
            raise MissingFile("this file is missing", file=file) from error
        if error.errno in _NO_FILE:
            raise NoFile(
                "this is no regular file, or does not lie in a directory", file=file
            ) from error
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles(
                f"{error.strerror}: close some, or raise the limit (ulimit -n)", file=file
            ) from error
        if error.errno in _NO_SPACE:
            raise NoSpace(
                f"{error.strerror}: free some space, inodes too, or keep fewer steps", file=file
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise StorageError(f"{error.strerror}: check owner and mode", file=file) from error
        raise StorageError(error.strerror or str(error), file=file) from error


@contextlib.contextmanager
def opened(root: str, key: str) -> Iterator[int]:
    """A regular file under `root` open for reading, never through a link."""
    path = f"{root}/{key}"
    with translated(path):
        refuse_links(root, key.rpartition("/")[0])
        # NONBLOCK: a FIFO in the place of a file must not hang the reader.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NoFile("this is no regular file", file=path)
            yield descriptor
        finally:
            os.close(descriptor)


def refuse_links(root: str, key: str) -> None:
    """Refuse to go through links under `root`: a step holds none, and they lead out of it.

    Raises:
      NoFile: one of the directories of `key` is a link.
    """
    path = root
    for part in filter(None, key.split("/")):
        path = f"{path}/{part}"
        if os.path.islink(path):
            raise NoFile("this is a link, not a directory", file=path)


def read_whole(descriptor: int, size: int, path: str) -> bytes:
    """The bytes of an open file of this size."""
    data = os.pread(descriptor, size, 0)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), len(data))
        if not more:
            raise TruncatedFile(f"the file ends at byte {len(data)}", file=path)
        data += more
    return data


class Blocks:
    """An open file from its beginning, a block at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __iter__(self) -> Iterator[bytes]:
        """Once more."""
        offset = 0
        while block := os.pread(self._descriptor, BLOCK, offset):
            yield block
            offset += len(block)


def fill(
    descriptor: int,
    buffer: memoryview,
    offset: int,
    path: str,
    seen: Callable[[memoryview], object],
) -> None:
    """Fill a buffer from an offset of an open file on; `seen` gets each block of it."""
    while buffer:
        count = os.preadv(descriptor, [buffer[:BLOCK]], offset)
        if count == 0:
            raise TruncatedFile(f"the file ends at byte {offset}", file=path)
        seen(buffer[:count])
        buffer, offset = buffer[count:], offset + count


def refuse_foreign_in(path: str) -> None:
    """Refuse to remove a step that somebody put files of their own into."""

    def tell(error: OSError) -> None:
        raise error

    files = [
        os.path.relpath(os.path.join(directory, name), path)
        for directory, inside, names in os.walk(path, onerror=tell)
        for name in [*names, *(n for n in inside if os.path.islink(os.path.join(directory, n)))]
    ]
    refuse_foreign(files, path)


def sync_directory(path: str) -> None:
    """Make the names in a directory last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: str) -> None:
    """Remove a directory and all in it, if it is there."""

    def tell(_: object, __: str, info: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):  # somebody else removes it too
            raise info[1]

    with translated(path):
        if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)  # nothing of ours: what a link leads to is not touched
        else:
            shutil.rmtree(path, onerror=tell)
