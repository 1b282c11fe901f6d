"""An attempt on local files: a step in a temporary directory, one of several processes' perhaps."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable
from typing import Final

from absl import logging

from ckptmgr.errors import MissingFile, NoFile, NoSpace, StepExists, StorageError
from ckptmgr.format.step import COMMIT_RECORD, temporary_name
from ckptmgr.storage import durable
from ckptmgr.storage.base import Bytes
from ckptmgr.storage.files import (
    DIRECTORY_MODE,
    Blocks,
    opened,
    refuse_links,
    remove_tree,
    translated,
    write_new,
)
from ckptmgr.storage.stage import Stages

# As many steps may share a file, then it is written anew: a bad sector of it harms all of them.
MOST_LINKS: Final = 50
# Gone meanwhile; another file system, a file of another owner, too many links, no links at all.
_NO_LINK = frozenset(
    {
        errno.ENOENT,
        errno.EXDEV,
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    }
)


class LocalAttempt:
    """A step being written in a temporary directory; nothing is made before the first put.

    Args:
      root: where the step will lie.
      name: what it will be called.
      stages: the buffers of its writers.
      make_room: removes what nobody needs; whether there was anything.
      no_link: is told why a file could not be linked.
    """

    def __init__(
        self,
        root: str,
        name: str,
        stages: Stages,
        make_room: Callable[[], bool],
        no_link: Callable[[OSError], None],
    ) -> None:
        self.directory = os.path.join(root, temporary_name(name, "tmp"))
        self._root = root
        self._name = name
        self._stages = stages
        self._make_room = make_room
        self._no_link = no_link
        self._shared = False
        self._joined = False
        self._made: set[str] = set()
        self._swapped = False  # the directory now holds the step that was replaced
        self._durable = False
        self._mutex = threading.Lock()

    def share(self) -> str:
        """Make the directory, for others to find it."""
        self._shared = True
        with translated(self.directory):
            self._make(self.directory)
        return os.path.basename(self.directory)

    def join(self, shared: str) -> None:
        """The directory of the other attempt, which must be visible from here."""
        self.directory = os.path.join(self._root, shared)
        self._shared = self._joined = True
        if not os.path.isdir(self.directory):
            raise StorageError(
                "a directory that process 0 has made is not to be seen from this one: they must "
                "write to a file system that they share",
                file=self.directory,
            )
        self._made.add(self.directory)

    def sync(self) -> None:
        """Sync every directory that files were put into, and those above, bottom-up."""
        durable.sync_all(self._made)

    def put(self, path: str, parts: Iterable[Bytes]) -> None:
        """Write and fdatasync a new file."""
        full = os.path.join(self.directory, path)
        try:
            self._write(full, parts)
        except NoSpace:
            # Once more, as another file: of the first one nothing can be known any more.
            with contextlib.suppress(OSError):
                os.unlink(full)
            if not self._make_room():
                raise
            self._write(full, parts)

    def link(self, key: str, path: str, nbytes: int | None) -> bool:
        """A hard link; False where the file system, or the owner of the file, allows none."""
        source, full = os.path.join(self._root, key), os.path.join(self.directory, path)
        try:
            with translated(source):
                refuse_links(self._root, os.path.dirname(key))
                found = os.lstat(source)
        except (MissingFile, NoFile):
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_nlink >= MOST_LINKS:
            return False
        if nbytes not in (None, found.st_size):
            return False
        with translated(full):
            self._make(os.path.dirname(full))
            try:
                os.link(source, full, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._no_link(error)
                return False
            return True

    def copy(self, key: str, path: str) -> None:
        """A block at a time."""
        with opened(self._root, key) as descriptor:
            self.put(path, Blocks(descriptor))

    def _write(self, full: str, parts: Iterable[Bytes]) -> None:
        with translated(full):
            self._make(os.path.dirname(full))
            write_new(full, parts, self._stages)

    def _make(self, directory: str) -> None:
        """Make a directory and those above it up to the temporary one, each once."""
        with self._mutex:
            missing = []
            while directory not in self._made and directory != self._root:
                missing.append(directory)
                directory = os.path.dirname(directory)
            for path in reversed(missing):
                try:
                    os.mkdir(path, DIRECTORY_MODE)
                except FileExistsError:
                    if not self._shared:
                        raise
                self._made.add(path)

    def publish(self, record: bytes, *, replace: bool, former: bytes | None = None) -> None:
        """The record, the directories, the rename, the parent: in this order."""
        self.put(COMMIT_RECORD, [record])
        self.sync()
        final = os.path.join(self._root, self._name)
        if former is not None and not os.path.lexists(final):
            raise StepExists("it was removed meanwhile", file=final)
        if replace and os.path.lexists(final):
            durable.take_place(self.directory, final, former)
            self._swapped = True
        else:
            durable.appear(self.directory, final)
        durable.make_last(final)
        self._durable = True

    def remove(self) -> None:
        """Remove what is left: the unpublished files, or the step that they replaced.

        Not where the swap of the two may not be durable: a power cut could undo it, and would
        then find the name of the former step on what was removed.
        """
        if self._joined:
            return  # it is removed by the process that shared it
        if self._swapped and not self._durable:
            logging.error("the former step is left at %s", self.directory)
            return
        try:
            remove_tree(self._aside() if self._shared else self.directory)
        except StorageError as error:
            if not self._swapped:
                raise
            logging.warning("the former step could not be removed: %s", error)

    def _aside(self) -> str:
        """The directory under another name, where processes that still write cannot find it."""
        trash = os.path.join(self._root, temporary_name(self._name, "trash"))
        with translated(self.directory), contextlib.suppress(FileNotFoundError):
            os.rename(self.directory, trash)
        return trash
