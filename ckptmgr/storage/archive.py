"""A checkpoint in one file: a zip of its directory, read in place and never written to.

Its files are stored as they are, so a part of one is read without the rest; what is
compressed is refused, as it may be larger than any memory.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from ckptmgr.errors import MissingFile, StorageError, TruncatedFile
from ckptmgr.format.step import COMMIT_RECORD

MAGIC: Final = b"PK\x03\x04"
_BLOCK: Final = 1 << 20
# What zipfile raises of bytes that are something else.
_NO_ZIP: Final = (OSError, zipfile.BadZipFile, ValueError, EOFError, RuntimeError)


def is_archive(path: str) -> bool:
    """Whether a file is a zip."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class ArchiveStorage:
    """The one checkpoint of a zip, under the name of the file.

    Args:
      path: that file.

    Raises:
      StorageError: it is no zip, or holds no checkpoint of ours.
    """

    write_tasks = 1
    read_tasks = 4
    status_seconds = 1.0

    def __init__(self, path: str) -> None:
        self.root, self.name = os.path.split(path)
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self._members = {info.filename: info for info in self._zip.infolist()}
        except _NO_ZIP as error:
            raise StorageError(f"this zip cannot be read: {error}", file=path) from error
        if COMMIT_RECORD not in self._members:
            raise StorageError("this zip holds no checkpoint of ckptmgr's", file=path)

    def _member(self, key: str) -> zipfile.ZipInfo:
        name, _, path = key.partition("/")
        info = self._members.get(path) if name == self.name else None
        if info is None:
            raise MissingFile("this file is missing", file=f"{self._path}/{path}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise StorageError("it is compressed: store it", file=f"{self._path}/{path}")
        return info

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[Any]:
        try:
            with self._zip.open(self._member(key)) as file:
                yield file
        except _NO_ZIP as error:
            raise StorageError(f"cannot be read: {error}", file=f"{self.root}/{key}") from error

    def taken(self, name: str) -> bool:
        """Whether it is the one there is."""
        return name == self.name

    def names(self) -> list[str]:
        """The one there is."""
        return [self.name]

    def free_bytes(self) -> int | None:
        """Nothing is written."""
        return None

    def read(self, key: str, limit: int, *, fresh: bool = False) -> bytes:
        """The whole of a file."""
        size = self._member(key).file_size
        if size > limit:
            raise TruncatedFile(
                f"{size} bytes where at most {limit} are allowed", file=f"{self.root}/{key}"
            )
        with self._opened(key) as file:
            data: bytes = file.read()
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
        """A part of a file."""
        there = self._member(key).file_size
        if there != size or offset + len(buffer) > size:
            raise TruncatedFile(f"{there} bytes long, not {size}", file=f"{self.root}/{key}")
        with self._opened(key) as file:
            file.seek(offset)
            for start in range(0, len(buffer), _BLOCK):
                part = buffer[start : start + _BLOCK]
                part[:] = file.read(len(part))
                seen(part)

    def nbytes(self, name: str) -> int:
        """Of all files."""
        return sum(info.file_size for info in self._members.values())

    def files(self, key: str) -> list[str]:
        """The names of the files right below."""
        prefix = key.partition("/")[2]
        prefix = f"{prefix}/" if prefix else ""
        found = (name.removeprefix(prefix) for name in self._members if name.startswith(prefix))
        return sorted(name for name in found if "/" not in name)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Nobody removes anything from it."""
        self._member(f"{name}/{COMMIT_RECORD}")
        yield

    def status(self) -> bytes | None:
        """Nobody writes."""
        return None

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StorageError("a zip is only read: extract it to change it", file=self._path)

    create = lock = ensure_locked = attempt = delete = set_aside = _refuse
    add = discard = tell_status = sweep = _refuse


def archive(directory: str, path: str) -> None:
    """Write a checkpoint's directory as a zip, its commit record last."""
    files = sorted(
        os.path.relpath(os.path.join(folder, file), directory)
        for folder, _, names in os.walk(directory)
        for file in names
    )
    files.sort(key=lambda name: name == COMMIT_RECORD)
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED, allowZip64=True) as target:
        for name in files:
            target.write(os.path.join(directory, name), name)
