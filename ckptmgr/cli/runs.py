"""What a command looks at: a run or a single checkpoint, its catalog, and what its writer says."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ckptmgr.catalog import Catalog
from ckptmgr.errors import InvalidOption, InvalidStep, NoSuchStep, StorageError
from ckptmgr.format.step import StepInfo, parse_step, step_name, step_number
from ckptmgr.notation import parse_retention
from ckptmgr.retention import KeepAll, Retention, Verdict, decide
from ckptmgr.status import Status, Work, read_status
from ckptmgr.storage.base import Storage
from ckptmgr.storage.url import at

SILENT = 30.0  # seconds without a word of a manager that is at work
_LONGEST = 40  # characters of a step, of which 19 are digits at the most
_OURS = (".lock", ".tmp-step-", ".trash-step-", ".damaged-step-", ".abandoned-step-")


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as it was looked at.

    Attributes:
      storage, catalog: where it lies, and the steps there are.
      status: what its last writer has said; None: nothing that is known.
      aside: the names of the steps that were set aside.
    """

    storage: Storage
    catalog: Catalog
    status: Status | None
    aside: tuple[str, ...]

    def step(self, text: str) -> int:
        """The number of a step that is there, given as that or as "newest".

        Raises:
          NoSuchStep, DamagedStep: it is not there, or not whole.
          InvalidOption: it is neither.
        """
        found = self.catalog.find(None if text == "newest" else number(text)).step
        assert found is not None
        return found

    def name(self, text: str) -> str:
        """The name of a step that is there, whole or not.

        Raises:
          NoSuchStep, InvalidOption: as for `step`.
        """
        damaged = self.catalog.damaged
        if text == "newest":
            there = [*self.catalog.steps, *damaged]
            return step_name(max(there) if there else self.step(text))
        step = number(text)
        return step_name(step if step in damaged else self.step(text))


def number(text: str) -> int:
    """The number of a step, given as that or by its name.

    Raises:
      InvalidOption: it is none.
    """
    if text.startswith("step-") and (found := step_number(text)) is not None:
        return found
    if not (text.isascii() and text.isdigit() and len(text) < _LONGEST):
        raise InvalidOption(f"a step is a number, such as 300, not {text[:_LONGEST]!r}")
    try:
        return parse_step(int(text))
    except InvalidStep as error:
        raise InvalidOption(error.message) from error


def look(url: str) -> Seen:
    """A run, to be looked at only.

    Raises:
      NoSuchStep: there is nothing of that name, or it is no run.
    """
    storage, name = at(url)
    if name:
        raise NoSuchStep("this is one checkpoint, not a run: try show or verify", file=url)
    return seen(storage, KeepAll())


def seen(storage: Storage, keep: Retention) -> Seen:
    """The run in a store.

    Raises:
      NoSuchStep: it is none.
    """
    names, status = storage.names(), _status(storage)
    if status is None and not any(step_number(n) is not None or n.startswith(_OURS) for n in names):
        raise NoSuchStep("this is no run: it holds no step and no lock", file=storage.root)
    catalog = Catalog(storage, keep)
    catalog.refresh()
    aside = tuple(n for n in sorted(names) if n.startswith((".damaged-step-", ".abandoned-step-")))
    return Seen(storage, catalog, status, aside)


def _status(storage: Storage) -> Status | None:
    """What the last writer has said; as it proves nothing, none where it cannot be read."""
    try:
        return read_status(storage)
    except StorageError:
        return None


@contextlib.contextmanager
def writing(url: str, keep: Retention | None = None) -> Iterator[Seen]:
    """A run, as its one writer.

    Raises:
      DirectoryLocked: a live manager writes it; nothing was changed.
    """
    found = look(url)
    found.storage.create()  # it is there; an object store is tried
    with found.storage.lock():
        yield seen(found.storage, keep or KeepAll())


def lives(status: Status) -> bool | None:
    """Whether the manager that said this is still there; None where that cannot be seen."""
    if status.closed:
        return False
    if status.host != socket.gethostname() or status.pid <= 0:
        return None
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return None
    return True


def works(status: Status | None, now: float) -> tuple[Work, ...]:
    """The saves and loads on their way, as far as their manager is not known to be gone.

    It says something every second while there are any; of one on another host nothing else shows.
    """
    if status is None or lives(status) is False:
        return ()
    return () if lives(status) is None and now - status.time > SILENT else status.works


def rules(seen: Seen, text: str | None) -> Retention | None:
    """The rules that were given, or those of the last writer; None where they are not known.

    Raises:
      InvalidOption: those that were given cannot be read.
    """
    if text is not None:
        return parse_retention(text)
    try:
        return parse_retention(seen.status.keep) if seen.status else None
    except InvalidOption:
        return None  # it has rules of its own


def verdict(steps: Mapping[int, StepInfo], keep: Retention) -> Verdict:
    """What the rules say of these steps."""
    return decide(keep, steps, {s: "pinned" for s, info in steps.items() if info.pinned})
