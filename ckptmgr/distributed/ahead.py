"""Announcing ahead: what depends on time is decided by process 0, one offer before it counts.

At each step offered process 0 decides for the next one, and says so in the background.
The others fetch it in the background too, so that by the next offer it is here. An
announcement is known by the step it was made at: all processes are offered the same.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from ckptmgr.distributed.coordinator import Coordinator


class Ahead:
    """An answer for each step offered, the same in all processes.

    Args:
      coordinator: how they agree.
      topic: what this is called between them.
      first: the answer for the first step.
    """

    def __init__(self, coordinator: Coordinator, topic: str, *, first: bytes) -> None:
        self._coordinator = coordinator
        self._topic = topic
        self._step = -1
        self._now = first
        self._next: Future[bytes] | None = None

    def at(self, step: int) -> bytes:
        """The answer for a step, the same at each call for it.

        Blocks only where process 0 has not yet been offered the step before.

        Raises:
          ProcessSilent: it was not within the timeout.
        """
        if step > self._step and self._next is not None:
            self._now = self._next.result()
        return self._now

    def announce(self, step: int, following: bytes) -> None:
        """What process 0 decides at a step for the one after it; once, and never going back."""
        if step <= self._step:
            return
        self._step = step
        self._next = Future()
        # A daemon: what nobody asks for any more is not to keep the interpreter from its end.
        threading.Thread(
            target=self._follow, args=(step, following, self._next), daemon=True
        ).start()

    def _follow(self, step: int, following: bytes, found: Future[bytes]) -> None:
        try:
            answer = self._coordinator.follow(f"{self._topic}/ahead/{step}", lambda: following)
        except BaseException as error:  # noqa: BLE001  # it goes to who asks
            found.set_exception(error)
        else:
            found.set_result(answer)
