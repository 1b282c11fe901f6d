"""Callbacks: what futures call at their end, each time in a thread of its own, so it may block."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Callbacks:
    """The threads that run the callbacks of one service's futures."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may come while it is held
        self._threads: list[threading.Thread] = []

    def dispatch(self, callbacks: Callable[[], None]) -> None:
        """Run the callbacks of a future."""
        thread = threading.Thread(target=callbacks, name="ckptmgr callbacks", daemon=True)
        with self._mutex:
            thread.start()
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def join(self, seconds: float) -> None:
        """Wait for each that still runs, so long at the most."""
        with self._mutex:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(seconds)
