"""The source of a read: buffers as the limiter grants their bytes, and the parts that fill them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from ckptmgr.format.manifest import Grid
from ckptmgr.format.zarr import Shape
from ckptmgr.limiter import ByteLimiter, Lease

Index = tuple[slice | EllipsisType, ...]
Found = Mapping[tuple[int, str, int], np.ndarray]  # by leaf, array name and number of the part


@dataclass(frozen=True, slots=True)
class Part:
    """A range of one file to read: it goes to `target`, where each span has a digest.

    Where the file's bytes are no contiguous run of what is wanted, `target` is None: they
    are read aside, decoded where they have a codec, and copied to where they `go`: parts of
    an array of that dtype and shape, each with its place.
    """

    key: str
    size: int  # of the whole file; with a codec, the most that it can be
    checks: tuple[tuple[int, int, str, str], ...]  # start, stop, digest, leaf path
    target: memoryview | None
    dtype: np.dtype
    shape: Shape
    go: tuple[tuple[np.ndarray, Index], ...] = ()
    offset: int = 0
    grid: Grid | None = None  # given where it has a codec
    whole: bytes | None = None  # of metadata: what it must say; only checked, at most `size` long


@dataclass(slots=True)
class Group:
    """Arrays that share a buffer, complete when no part is left to read."""

    found: Found
    parts: list[Part]
    lease: Lease
    left: int


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer to be: its bytes, and what makes the group once they are granted."""

    nbytes: int
    make: Callable[[Lease], Group]


class Source:
    """Hands out the parts of one request after the other, each once its bytes are granted."""

    def __init__(
        self, requests: Iterator[Request], limiter: ByteLimiter, leases: contextlib.ExitStack
    ) -> None:
        self._requests = requests
        self._limiter = limiter
        self._leases = leases
        self._turn = threading.Lock()  # held while waiting for the limiter
        self._counting = threading.Lock()  # so this is another: what waits ends by a group's end
        self._waiting: Future[Lease] | None = None
        self._stopped = False
        self._parts = self._all()

    def next(self) -> tuple[Group, Part] | None:
        """The next part; None after the last, or once stopped."""
        with self._turn:
            return None if self._stopped else next(self._parts, None)

    def is_last_of(self, group: Group) -> bool:
        """Whether the part that was just filled was the last one of its group."""
        with self._counting:
            group.left -= 1
            return not group.left

    def stop(self) -> None:
        """Hand out no more, not even what waits for the limiter now."""
        self._stopped = True
        waiting = self._waiting
        if waiting is not None:
            self._limiter.give_up(waiting)

    def close(self) -> None:
        """Let go of the last group."""
        self._parts.close()

    def _all(self) -> Generator[tuple[Group, Part], None, None]:
        for request in self._requests:
            self._waiting = self._limiter.request(request.nbytes)
            if self._stopped:
                self._limiter.give_up(self._waiting)
            try:
                lease = self._waiting.result()
            except CancelledError:
                return
            self._leases.callback(lease.release)
            group = request.make(lease)
            for part in group.parts:
                yield group, part
