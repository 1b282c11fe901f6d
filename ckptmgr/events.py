"""Events: what happens to a run, told to a function of the trainer's, in order.

It is called in a thread of its own, so it may call the manager, and what it raises is
logged. Nothing waits for it but the end of `close()`, and that not for long.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from absl import logging

_END_SECONDS: Final = 5.0
Kind = Literal["committed", "failed", "deleted", "damaged", "set aside", "abandoned"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a step.

    Attributes:
      kind: "committed"; "failed", of a save; "deleted", by retention or `delete`; "damaged":
        found so and passed over; "set aside": damaged, and its number was saved again;
        "abandoned", by `rollback`.
      step: its number; None for a tree outside a run.
      message: what there is to say of it: why it failed, what is damaged, where it lies now.
    """

    kind: Kind
    step: int | None
    message: str


class Events:
    """Hands events on.

    Args:
      listener: called with each; None: nobody listens.
    """

    def __init__(self, listener: Callable[[Event], object] | None = None) -> None:
        self._listener = listener
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def tell(self, kind: Kind, step: int | None, message: str) -> None:
        """This happened."""
        if self._listener is None:
            return
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._listener,), name="ckptmgr events", daemon=True
                )
                self._thread.start()
            self._waiting.put(Event(kind, step, message))

    def close(self) -> None:
        """Wait until all was told, a few seconds at the most."""
        with self._mutex:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    def _run(self, listener: Callable[[Event], object]) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                listener(event)
            except BaseException:  # noqa: BLE001  # of the trainer's function, whatever it is
                logging.exception("on_event failed for %s", event)
