"""The handover: pieces of a snapshot on their way from the trainer's thread to those that write."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ckptmgr.limiter import Lease
from ckptmgr.pipeline.layout import File
from ckptmgr.pipeline.plan import PlannedArray
from ckptmgr.tree.handlers import Array


class Piece(NamedTuple):
    """The bytes of one file, `start` to `stop` of a host array, and the lease on that array.

    `array` has the codec that they go through, if any; `host` is then the chunk itself.
    `small` are arrays on their way to the host, each with the byte of `host` it begins at.
    """

    file: File
    host: Array
    start: int
    stop: int
    lease: Lease
    array: PlannedArray | None = None
    small: Sequence[tuple[int, Array]] = ()

    def data(self) -> memoryview:
        """The bytes; for those that write, as the trainer's thread is not to wait for them."""
        host = np.asarray(self.host)
        for start, array in self.small:
            part = np.asarray(array)
            np.ndarray(part.shape, part.dtype, host, start)[...] = part
        return np.ascontiguousarray(host).reshape(-1).view(np.uint8).data[self.start : self.stop]


class Handover:
    """Pieces on their way from the trainer's thread to those that write.

    A piece that nobody will write any more is released by whoever holds it last.

    Attributes:
      closed: all pieces have been handed over.
    """

    def __init__(self, began: Callable[[], None]) -> None:
        self._began = began  # called once, at the first push: the service sleeps until then
        self._lock = threading.RLock()  # entered as it is, as the queue's
        self._changed = threading.Condition(self._lock)
        self._pieces: deque[Iterator[Piece]] = deque()
        self.closed = False
        self._abandoned = False

    def push(self, pieces: Iterable[Piece], *, wake: bool) -> bool:
        """Hand pieces over; False where nobody wants them, so the rest need not be made.

        They are asked for one after the other, by those that write.

        `wake` those that write. Without it they hear at the next push or `close`: threads
        that start to work now would take the interpreter from the trainer's.
        """
        with self._lock:
            if not self._abandoned:
                self._pieces.append(iter(pieces))
                if wake:
                    self._notify()
                return True
        for piece in pieces:
            piece.lease.release()
        return False

    def close(self) -> None:
        """There are no more pieces; the last ones may still be unknown to those that write."""
        with self._lock:
            self.closed = True
            self._notify()

    def abandon(self) -> None:
        """Release what is here and refuse what is still to come."""
        with self._lock:
            self._abandoned = True
            pieces, self._pieces = self._pieces, deque()
            self._changed.notify_all()
        for piece in itertools.chain.from_iterable(pieces):
            piece.lease.release()

    def get(self) -> Piece | None:
        """Block for the next piece; None after the last, or once they are abandoned."""
        with self._lock:
            while True:
                self._changed.wait_for(lambda: self._pieces or self.closed or self._abandoned)
                if not self._pieces:
                    return None
                for piece in self._pieces[0]:
                    return piece
                self._pieces.popleft()

    def _notify(self) -> None:
        self._changed.notify_all()
        began, self._began = self._began, _nothing
        began()


def _nothing() -> None:
    pass
