"""The reporter: one thread that shows how saves and loads go, while any do.

It sleeps until one begins, then looks at the futures a few times a second: for the bars
of whoever sits before it, and for the status file that others watch.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from absl import logging

from ckptmgr.errors import CheckpointError
from ckptmgr.events import Closed, Event, RestoreStarted, SaveStarted
from ckptmgr.future import CheckpointFuture
from ckptmgr.limiter import ByteLimiter
from ckptmgr.status import Board, Status, after, noted, read_status, work
from ckptmgr.storage.base import Storage

_LOOK_SECONDS: Final = 0.1
_END_SECONDS: Final = 2.0


class Display(Protocol):
    """What shows people how far saves and loads are."""

    def show(self, futures: Sequence[CheckpointFuture[Any]]) -> None:
        """These are under way now, perhaps none any more; called a few times a second."""


class StatusFile:
    """Keeps the status of a manager in its run.

    Args:
      storage: that run; only its one writer may keep it.
      keep: the manager's rules, as they are written.
      limiter: what its works go through.
    """

    def __init__(self, storage: Storage, keep: str, limiter: ByteLimiter) -> None:
        self._storage = storage
        self._keep = keep
        self._limiter = limiter
        self._board = Board()
        self._former: Board | None = None  # what the manager before this one has said
        self._mutex = threading.RLock()  # a finalizer may come while it is held
        self._written = -float("inf")
        self.owed = False  # whether it would say something else by now

    def note(self, event: Event) -> None:
        """This happened."""
        with self._mutex:
            self._board = noted(self._board, event, time.time())
            self.owed = True

    @property
    def due_in(self) -> float:
        """The seconds after which it may be written again."""
        return max(0.0, self._written + self._storage.status_seconds - time.monotonic())

    def write(self, futures: Sequence[CheckpointFuture[Any]], *, closed: bool = False) -> None:
        """Write it; where that cannot be done, which may say nothing of a step, it is logged."""
        self.owed = bool(futures)  # before the look: what comes after it is owed
        if self._former is None:
            self._former = _former(self._storage)
        usage, board = self._limiter.statistics(), after(self._former, self._board)
        status = Status(
            host=socket.gethostname(),
            pid=os.getpid(),
            time=time.time(),
            keep=self._keep,
            closed=closed,
            works=tuple(work(future) for future in futures),
            in_flight_bytes=usage.used_bytes,
            borrowed_bytes=usage.borrowed_bytes,
            limit_bytes=usage.limit_bytes,
            saved=board.saved,
            failed=board.failed,
            deleted=dict(board.deleted),
        )
        self._written = time.monotonic()
        try:
            self._storage.tell_status(msgspec.json.encode(status))
        except CheckpointError as error:
            logging.log_first_n(logging.WARNING, "the status is not written: %s", 3, error)


def _former(storage: Storage) -> Board:
    """What the run was last said to have done."""
    try:
        status = read_status(storage)
    except CheckpointError:
        status = None
    if status is None:
        return Board()
    return Board(status.saved, status.failed, tuple(status.deleted.items()))


class Reporter:
    """Shows the works of one manager, from the first that starts to `Closed`.

    Args:
      status: where it is told to other processes, if this one writes.
      display: where it is shown to people, if they asked for it.

    Attributes:
      look: the futures of what waits or runs; the manager's service comes after its events.
    """

    def __init__(self, status: StatusFile | None, display: Display | None) -> None:
        self.look: Callable[[], Sequence[CheckpointFuture[Any]]] = tuple
        self._status = status
        self._display = display
        self._mutex = threading.RLock()  # a finalizer may come while it is held
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def heard(self, event: Event) -> None:
        """This happened; to be called where it does. After `Closed` nothing is shown any more."""
        if self._status is not None:
            self._status.note(event)
        if isinstance(event, Closed):
            self._close()
        elif self._status is not None or self._display is not None:
            if isinstance(event, SaveStarted | RestoreStarted):
                self._start()
            self._wake.set()

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="ckptmgr reporter", daemon=True)
                thread.start()
                self._thread = thread

    def _close(self) -> None:
        """Have said last that the manager has ended, if it ever began; the run is still its own.

        Not waited for for long: what is slow now must not keep the directory locked.
        """
        self._closing.set()
        self._wake.set()
        with self._mutex:
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._report():
                self._closing.wait(_LOOK_SECONDS)
            else:
                self._wake.wait(self._status.due_in if self._status and self._status.owed else None)
                self._wake.clear()
        self._show([])
        if self._status is not None:
            self._status.write((), closed=True)

    def _report(self) -> bool:
        """Show what there is; whether there is anything."""
        futures = [future for future in self.look() if not future.done()]
        self._show(futures)
        if self._status is not None and self._status.owed and not self._status.due_in:
            self._status.write(futures)
        return bool(futures)

    def _show(self, futures: Sequence[CheckpointFuture[Any]]) -> None:
        if self._display is None:
            return
        try:
            self._display.show(futures)
        except Exception:  # noqa: BLE001  # a terminal that has gone, say: the rest goes on
            logging.exception("progress is shown no more")
            self._display = None
