"""What a command looks at: a run or a single checkpoint, its catalog, and what its writer says."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ckptmgr.catalog import Catalog
from ckptmgr.errors import InvalidOption, NoSuchStep
from ckptmgr.format.step import StepInfo, parse_step, step_name, step_number
from ckptmgr.notation import parse_retention
from ckptmgr.retention import KeepAll, Retention, Verdict, decide
from ckptmgr.status import Status, read_status
from ckptmgr.storage.base import Storage
from ckptmgr.storage.url import at

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
            return step_name(max([*self.catalog.steps, *damaged], default=0))
        step = number(text)
        return step_name(step if step in damaged else self.step(text))


def number(text: str) -> int:
    """The number of a step.

    Raises:
      InvalidOption: it is none.
    """
    if not (text.isascii() and text.isdigit()):
        raise InvalidOption(f"a step is a number, or newest, not {text!r}")
    return parse_step(int(text))


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
    names, status = storage.names(), read_status(storage)
    if status is None and not any(step_number(n) is not None or n.startswith(_OURS) for n in names):
        raise NoSuchStep("this is no run: it holds no step and no lock", file=storage.root)
    catalog = Catalog(storage, keep)
    catalog.refresh()
    aside = tuple(n for n in sorted(names) if n.startswith((".damaged-step-", ".abandoned-step-")))
    return Seen(storage, catalog, status, aside)


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
    if status.host != socket.gethostname():
        return None
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
