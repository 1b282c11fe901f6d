"""The order that survives a power cut, in one place: how a step comes, is replaced, and goes.

Rule 1. A file's bytes are synced as it is written. A sync that fails is final: the kernel may
        have dropped the bytes and forgotten the error, so nothing is tried on that file again.
Rule 2. The commit record is written after everything that it vouches for has been synced.
Rule 3. Every directory that has got an entry is synced, the lowest first, before the rename:
        a file whose name is lost is lost.
Rule 4. The rename makes the step visible, whole or not at all; the sync of the parent makes
        that last. Only then is anybody told.
Rule 5. What is replaced takes the temporary name in that same rename, and is removed only
        after the sync: a power cut that undoes the rename must find it.
Rule 6. A step goes by a rename too, synced before anything in it is removed: half a step is
        never under a step's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckptmgr.errors import StepExists
from ckptmgr.format.step import COMMIT_RECORD, step_number
from ckptmgr.storage.files import refuse_foreign_in, sync_directory, translated
from ckptmgr.storage.lock import exclusively
from ckptmgr.storage.rename import exchange, rename_new


def sync_all(directories: Iterable[str]) -> None:
    """Rule 3."""
    for directory in sorted(directories, key=lambda path: -path.count(os.sep)):
        with translated(directory):
            sync_directory(directory)


def make_last(path: str) -> None:
    """The second half of rule 4: the name that a rename has given stays."""
    with translated(path):
        sync_directory(os.path.dirname(path))


def appear(directory: str, final: str) -> None:
    """Give a step its name, where nothing has it yet: the first half of rule 4.

    Raises:
      StepExists: something has the name.
    """
    with translated(final):
        try:
            rename_new(directory, final)
        except FileExistsError as error:
            step = step_number(os.path.basename(final))
            raise StepExists(
                "something of this name is there already", step=step, file=final
            ) from error


def take_place(directory: str, final: str, former: bytes | None) -> None:
    """Swap a step with the one that has its name, which must be `former` if that is given.

    Rule 5: until the new name was made to last, neither of the two may be removed.

    Raises:
      StepExists: it is another one by now.
      StepHeld: somebody reads or holds it, or replaces it now.
      StorageError: it holds files that we do not write.
    """
    with translated(final), exclusively(os.path.join(final, COMMIT_RECORD), former):
        refuse_foreign_in(final)
        exchange(directory, final)


def set_aside(path: str, other: str, *, to_be_removed: bool) -> None:
    """Move a step to another name; rule 6.

    Raises:
      StepHeld: somebody reads or holds it.
      StorageError: it is to be removed, and holds files that we do not write.
    """
    with translated(path), exclusively(os.path.join(path, COMMIT_RECORD), None):
        if to_be_removed:
            refuse_foreign_in(path)
        rename_new(path, other)
        sync_directory(os.path.dirname(path))
