"""The status of a manager: what it is doing, in a small file that others may watch.

It lies beside the lock, is replaced as a whole and seldom: at most once in the store's
`status_seconds` while something is going on, and at the end. It proves nothing; whoever
reads it looks at `time` to see how old it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from absl import logging

from ckptmgr.events import Event, SaveCommitted, SaveFailed, StepDeleted
from ckptmgr.future import CheckpointFuture
from ckptmgr.storage.base import Storage

_REMEMBERED: Final = 200  # deletions


class Work(msgspec.Struct, frozen=True):
    """A save or a load on its way, and how many of its bytes are done."""

    step: int | None
    state: str
    bytes_done: int
    bytes_total: int


class Saved(msgspec.Struct, frozen=True):
    """The last step that was committed: how much it holds, what it took, when that was.

    `stall` and `seconds` in seconds, `time` in seconds since the epoch, like all times here.
    """

    step: int | None
    nbytes: int
    stall: float
    seconds: float
    time: float


class Failed(msgspec.Struct, frozen=True):
    """The last save that failed."""

    step: int | None
    error: str
    time: float


class Status(msgspec.Struct, frozen=True):
    """What a manager says of itself.

    Attributes:
      host, pid: where it is.
      time: when it said so.
      keep: its retention rules, as they are written.
      closed: whether it has ended.
      works: the saves and loads, the one that runs first.
      in_flight_bytes, borrowed_bytes, limit_bytes: of its limiter.
      saved, failed: the last save of either kind.
      deleted: the last steps that were deleted, and why.
    """

    host: str
    pid: int
    time: float
    keep: str
    closed: bool = False
    works: tuple[Work, ...] = ()
    in_flight_bytes: int = 0
    borrowed_bytes: int = 0
    limit_bytes: int = 0
    saved: Saved | None = None
    failed: Failed | None = None
    deleted: dict[int, str] = {}


def read_status(storage: Storage) -> Status | None:
    """What the last manager that wrote to a run has said; None where none did.

    Raises:
      StorageError: it cannot be read. One that another version wrote is logged, and none.
    """
    data = storage.status()
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Status)
    except (msgspec.MsgspecError, RecursionError) as error:
        logging.warning("the status of %s cannot be read: %s", storage.root, error)
        return None


@dataclass(frozen=True, slots=True)
class Board:
    """What of a run is known but for its works; changed by pure functions of events."""

    saved: Saved | None = None
    failed: Failed | None = None
    deleted: tuple[tuple[int, str], ...] = ()


def noted(board: Board, event: Event, now: float) -> Board:
    """The board after an event. Pure."""
    if isinstance(event, SaveCommitted):
        saved = Saved(event.step, event.nbytes, event.stall, event.seconds, now)
        return Board(saved, board.failed, board.deleted)
    if isinstance(event, SaveFailed):
        return Board(board.saved, Failed(event.step, str(event.error), now), board.deleted)
    if isinstance(event, StepDeleted) and event.step is not None:
        deleted = (*board.deleted, (event.step, event.why))[-_REMEMBERED:]
        return Board(board.saved, board.failed, deleted)
    return board


def after(former: Board, board: Board) -> Board:
    """What is known of a run by two managers, the later one's word last. Pure."""
    return Board(
        board.saved or former.saved,
        board.failed or former.failed,
        (*former.deleted, *board.deleted)[-_REMEMBERED:],
    )


def work(future: CheckpointFuture[Any]) -> Work:
    """What a future says of itself."""
    progress = future.progress
    return Work(future.step, future.state, progress.bytes_done, progress.bytes_total)
