"""Preemption: the machine is to be taken away; the next step offered is to be saved.

In one process SIGTERM says so. The handler is chained, not stolen: a former one is
called too, and gets its place back. Under jax.distributed jax itself listens to
SIGTERM, and its sync point names one step for all processes.
https://docs.jax.dev/en/latest/_autosummary/jax.experimental.multihost_utils.html
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from types import FrameType
from typing import Self

import jax
from absl import logging
from jax.experimental import multihost_utils


class Preemption:
    """Whether this process was told to end.

    Attributes:
      asked: it was, and the save that this asks for has not been queued yet.
      answered: such a save has been queued.
    """

    def __init__(self) -> None:
        self.asked = False
        self.answered = False
        self._listening = False
        self._former: object = None
        self._handler: object = None

    def listen(self) -> Self:
        """Take note of SIGTERM from now on, unless jax does."""
        if jax.distributed.is_initialized():
            return self
        if threading.current_thread() is not threading.main_thread():
            logging.warning(
                "OnPreemption() cannot see SIGTERM: the manager was not made in the main thread"
            )
            return self
        self._former = signal.getsignal(signal.SIGTERM)
        self._handler = _handler(weakref.ref(self), self._former)
        signal.signal(signal.SIGTERM, self._handler)  # type: ignore[arg-type]  # it is ours
        self._listening = True
        return self

    def close(self) -> None:
        """Give the signal back; where that cannot be, it is passed on to whoever had it before."""
        was, self._listening = self._listening, False
        in_main = threading.current_thread() is threading.main_thread()
        if was and in_main and signal.getsignal(signal.SIGTERM) is self._handler:
            signal.signal(signal.SIGTERM, self._former)  # type: ignore[arg-type]  # as it was

    def reached(self, step: int) -> bool:
        """Whether the step on offer is to be saved for it; to be asked once for every step."""
        if jax.distributed.is_initialized() and multihost_utils.reached_preemption_sync_point(step):
            self.asked = True
        return self.asked

    def answer(self) -> None:
        """The save that was asked for has been queued."""
        if self.asked:
            self.asked, self.answered = False, True

    @property
    def listening(self) -> bool:
        """Whether SIGTERM asks for a save."""
        return self._listening


def _handler(listener: weakref.ref[Preemption], former: object) -> object:
    """A handler of SIGTERM that keeps nobody alive."""

    def handle(number: int, frame: FrameType | None) -> None:
        preemption = listener()
        listening = preemption is not None and preemption.listening
        if preemption is not None and listening:
            preemption.asked = True
        if callable(former):
            former(number, frame)
        elif not listening and former is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)  # nobody is left who would end the process
            os.kill(os.getpid(), number)

    return handle
