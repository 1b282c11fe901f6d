"""Saves that failed unheard: the trainer is told of each once, without losing another save."""

from __future__ import annotations

import threading

from ckptmgr.errors import EarlierSaveFailed
from ckptmgr.future import SaveFuture, State


class Failures:
    """Watches the futures of saves.

    Args:
      tolerated: how many saves in a row may fail, unheard, before it is told.
    """

    def __init__(self, tolerated: int) -> None:
        self._tolerated = tolerated
        self._mutex = threading.Lock()
        self._unsettled: list[SaveFuture] = []
        self._in_a_row = 0

    def watch(self, future: SaveFuture) -> None:
        """Tell of this save if it fails."""
        with self._mutex:
            self._unsettled.append(future)

    def tell(self, future: SaveFuture | None) -> None:
        """Raise for the first failure that nobody has looked at and that is not tolerated.

        Raises:
          EarlierSaveFailed: there is one; its `.future` is `future`.
        """
        unheard: tuple[int | None, BaseException] | None = None
        with self._mutex:
            done = [f for f in self._unsettled if f.done()]
            self._unsettled = [f for f in self._unsettled if not f.done()]
            for ended in done:
                self._in_a_row = self._in_a_row + 1 if ended.state is State.FAILED else 0
                if self._in_a_row > self._tolerated and unheard is None:
                    error = ended.failure_unheard()
                    unheard = (ended.step, error) if error is not None else None
        if unheard is not None:
            step, error = unheard
            raise EarlierSaveFailed(
                f"the save of step {step} failed: {error}", step=step, future=future
            ) from error
