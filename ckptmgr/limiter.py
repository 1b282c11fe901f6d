"""The in-flight limit: every byte that ckptmgr has allocated and not yet given back.

First come, first served, so small requests do not starve a large one. A request above
the whole limit waits until nothing else is out and then runs alone: it neither hangs
nor raises nor moves the limit. One limiter may serve several managers, so it is used
from any thread and any event loop. Views that are only borrowed from the trainer are
counted apart and never wait.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from ckptmgr.errors import InvalidOption
from ckptmgr.future import settled

_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = re.compile(rf"(\d{{1,18}})({'|'.join(_UNITS)})")


def parse_bytes(value: object, option: str, *, least: int = 1) -> int:
    """A number of bytes from an int or a str like "256MiB".

    Raises:
      InvalidOption: it is neither, or less than `least`; the text names `option`.
    """
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = int(match[1]) * _UNITS[match[2]] if match else value
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise InvalidOption(
            f"{option} is a number of bytes, at least {least}, or a text like '256MiB' "
            f"({', '.join(_UNITS)}), not {value!r}"
        )
    return size


def default_limit(*, on_cpu: bool) -> int:
    """2 GiB where arrays live in host memory, for most are viewed; else a quarter of it."""
    if on_cpu:
        return 2 << 30
    return max(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4, 1 << 30)


@dataclass(frozen=True, slots=True)
class LimiterStatistics:
    """What a limiter counts, in bytes; `waiting` in requests."""

    limit_bytes: int
    used_bytes: int
    borrowed_bytes: int
    peak_bytes: int
    waiting: int


class Lease:
    """Bytes on loan from a limiter until each of its holders has released it once."""

    __slots__ = ("_borrowed", "_holders", "_limiter", "nbytes")

    def __init__(self, limiter: ByteLimiter, nbytes: int, *, borrowed: bool) -> None:
        self.nbytes = nbytes
        self._limiter = limiter
        self._borrowed = borrowed
        self._holders = 1

    def share(self, holders: int) -> Self:
        """Let `holders` parties hold it instead of one. Before anyone released it."""
        self._holders = holders
        return self

    def part(self, nbytes: int) -> Lease:
        """So many of its bytes, on a lease of their own. Before anyone released it."""
        self.nbytes -= nbytes
        return Lease(self._limiter, nbytes, borrowed=self._borrowed)

    def release(self) -> None:
        """One holder is done; after the last the bytes are free. More calls change nothing."""
        self._limiter._release(self, borrowed=self._borrowed)  # noqa: SLF001  # its other half

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ByteLimiter:
    """At most `limit` bytes out at a time, over all who share it.

    Args:
      limit: bytes, or a text like "256MiB".

    Raises:
      InvalidOption: the limit is not a positive number of bytes.
    """

    def __init__(self, limit: int | str) -> None:
        self.limit_bytes = parse_bytes(limit, "limit")
        self._mutex = threading.Lock()
        self._used = self._borrowed = self._peak = 0
        # A waiting request is a future: granting it and giving it up exclude each other.
        self._waiting: deque[tuple[Future[Lease], int]] = deque()

    def acquire(self, nbytes: int) -> Lease:
        """Take `nbytes`, blocking until they are free. Release the lease, or use it in `with`."""
        with self._mutex:
            if not self._waiting and self._fits(nbytes):
                return self._lend(nbytes)
        request = self.request(nbytes)
        try:
            return request.result()
        except BaseException:
            self.give_up(request)
            raise

    async def acquire_async(self, nbytes: int) -> Lease:
        """Take `nbytes`, waiting in a task of any event loop until they are free."""
        request = self.request(nbytes)
        try:
            await settled(request)
        except BaseException:
            self.give_up(request)
            raise
        return request.result()

    def borrow(self, nbytes: int) -> Lease:
        """Count `nbytes` that belong to the trainer. Never waits."""
        with self._mutex:
            self._borrowed += nbytes
        return Lease(self, nbytes, borrowed=True)

    def statistics(self) -> LimiterStatistics:
        """What is out, and the most that was."""
        with self._mutex:
            return LimiterStatistics(
                self.limit_bytes, self._used, self._borrowed, self._peak, len(self._waiting)
            )

    def request(self, nbytes: int) -> Future[Lease]:
        """Ask for `nbytes`: a future of the lease, to wait for or to give up."""
        request: Future[Lease] = Future()
        with self._mutex:
            self._waiting.append((request, nbytes))
            granted = self._grant()
        self._hand_over(granted)
        return request

    def give_up(self, request: Future[Lease]) -> None:
        """Take a request back; where it was granted already, its bytes are free again."""
        if request.cancel():
            with self._mutex:
                granted = self._grant()  # who stood behind it may fit now
            self._hand_over(granted)
        elif not request.cancelled():
            request.result().release()

    def _release(self, lease: Lease, *, borrowed: bool) -> None:
        with self._mutex:
            lease._holders -= 1  # noqa: SLF001  # its other half
            if lease._holders != 0:  # noqa: SLF001
                return
            if borrowed:
                self._borrowed -= lease.nbytes
            else:
                self._used -= lease.nbytes
            granted = self._grant()
        self._hand_over(granted)

    def _grant(self) -> list[tuple[Future[Lease], Lease]]:
        granted = []
        while self._waiting:
            request, nbytes = self._waiting[0]
            if not request.cancelled() and not self._fits(nbytes):
                break
            self._waiting.popleft()
            if request.set_running_or_notify_cancel():
                granted.append((request, self._lend(nbytes)))
        return granted

    def _fits(self, nbytes: int) -> bool:
        return self._used + nbytes <= self.limit_bytes or self._used == 0

    def _lend(self, nbytes: int) -> Lease:
        self._used += nbytes
        self._peak = max(self._peak, self._used)
        return Lease(self, nbytes, borrowed=False)

    @staticmethod
    def _hand_over(granted: list[tuple[Future[Lease], Lease]]) -> None:
        # Outside the lock: a done-callback of the request may come back here.
        for request, lease in granted:
            request.set_result(lease)
