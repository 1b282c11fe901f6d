"""A run as its writer ends it: waiting for what is queued, closing, and `with` blocks."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import anyio.to_thread

from ckptmgr.events import Events
from ckptmgr.failures import Failures
from ckptmgr.preemption import Preemption
from ckptmgr.run import Run
from ckptmgr.service import END_SECONDS, INTERRUPTED_SECONDS


class _Finalizer(Protocol):
    """What ends a manager that nobody holds any more."""

    def detach(self) -> object:
        """It is not needed any more."""


class Life(Run):
    """The ending half of a CheckpointManager, which makes what this ends."""

    _failures: Failures
    _preemption: Preemption
    _events: Events
    _end: _Finalizer

    def wait(self, timeout: float | None = None) -> None:
        """Block until every save so far is committed or has failed.

        Raises:
          WaitTimeout: `timeout` seconds went by first; the saves go on.
          EarlierSaveFailed: one failed unheard.
        """
        self._service.wait(timeout)
        self._failures.tell(None)

    def close(self, timeout: float | None = None) -> None:
        """Finish what is queued and end the service. More calls do nothing.

        Blocks at most `timeout` seconds, 600 by default; Ctrl-C ends it at once.

        Raises:
          WaitTimeout: it took longer; the saves that were not done are given up.
          EarlierSaveFailed: a save failed unheard.
        """
        try:
            self._service.close(END_SECONDS if timeout is None else timeout)
        finally:
            self._ended()
        self._failures.tell(None)

    def _ended(self) -> None:
        self._end.detach()
        self._preemption.close()
        self._events.close()

    def __enter__(self) -> Self:
        """The manager itself; the end of the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an exception of the block is never masked, and Ctrl-C shortens the wait."""
        if error is None:
            self.close()
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        self._service.close_quietly(INTERRUPTED_SECONDS if interrupted else END_SECONDS)
        self._ended()

    async def __aenter__(self) -> Self:
        """The manager itself, under asyncio or trio."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close without blocking the loop."""
        await anyio.to_thread.run_sync(self.__exit__, kind, error, trace)
