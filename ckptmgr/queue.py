"""The queue of saves: those that wait and the one that runs, and who is let in when it is full.

Everything is decided under one condition, which the service shares. With several
processes the queue of each is as far as it is, so where time decides, process 0 does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import StepExists
from ckptmgr.format.step import StepInfo
from ckptmgr.jobs import OnBusy, SaveJob


class SaveQueue:
    """Saves in the order in which they will run.

    Args:
      max_pending: how many may wait behind the one that runs.
      coordinator: how the processes agree on who is let in.
      check_open: raises where no save is taken any more; called under the condition.
      ended: is told of each save whose future ends.

    Attributes:
      lock: under which all of it changes; changed: its condition.
      active: the save that runs.
    """

    def __init__(
        self,
        max_pending: int,
        coordinator: Coordinator,
        check_open: Callable[[], None],
        ended: Callable[[Future[StepInfo | None]], None],
    ) -> None:
        # Entered as it is: Ctrl-C can come while a Condition enters its lock in Python.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.active: SaveJob | None = None
        self._max_pending = max_pending
        self._coordinator = coordinator
        self._check_open = check_open
        self._ended = ended
        self._waiting: deque[SaveJob] = deque()
        self._tickets = 0

    def jobs(self) -> list[SaveJob]:
        """The one that runs, and those that wait."""
        with self.lock:
            return [*([self.active] if self.active else []), *self._waiting]

    def ticket(self, on_busy: OnBusy) -> int:
        """The number of a save that process 0 lets in or not: the same in all processes.

        To be asked for once in each save(), whatever becomes of it.
        """
        if on_busy == "wait" or self._coordinator.count == 1:
            return 0
        with self.lock:
            self._tickets += 1
            return self._tickets

    def void(self, ticket: int, topic: str) -> None:
        """A save fails before it asks for its place: where process 0 does, the others must know."""
        if ticket and self._coordinator.index == 0:
            self._coordinator.follow(f"{topic}/busy/{ticket}", lambda: b"go")

    def admit(self, job: SaveJob, on_busy: OnBusy, topic: str) -> bool:
        """Give a save its place; False where it is skipped. Blocks by `on_busy`.

        Raises:
          StepExists: a save of that name waits or runs, and this one does not overwrite.
          ManagerClosed: no save is taken any more.
        """
        if job.ticket:
            return self._admit_as_told(job, on_busy, topic)
        with self.lock:
            while True:
                self._refuse(job)
                if self._has_room():
                    break
                if on_busy == "skip":
                    return False
                if on_busy == "replace" and self._waiting:
                    self._waiting[0].future.cancel()  # its wakeup takes it out of the queue
                else:
                    self.changed.wait()
            self._append(job)
        return True

    def _admit_as_told(self, job: SaveJob, on_busy: OnBusy, topic: str) -> bool:
        """As process 0 says."""

        def say() -> bytes:
            with self.lock:
                if self._has_room():
                    return b"go"
                if on_busy == "skip":
                    return b"skip"
                self.changed.wait_for(lambda: self._has_room() or self._oldest() is not None)
                oldest = None if self._has_room() else self._oldest()
                return b"go" if oldest is None else str(oldest.ticket).encode()

        told = self._coordinator.follow(f"{topic}/busy/{job.ticket}", say).decode()
        if told == "skip":
            return False
        with self.lock:
            for other in self.jobs() if told != "go" else ():
                if other.ticket == int(told):
                    other.future.cancel()
            self._refuse(job)
            self._append(job)
        return True

    def _oldest(self) -> SaveJob | None:
        """The save that waits longest; one that only tells of a fault is none."""
        return next((other for other in self._waiting if other.fault is None), None)

    def _refuse(self, job: SaveJob) -> None:
        self._check_open()
        # One that has ended may still stand there as the one that runs.
        others = [o for o in self.jobs() if o.fault is None and not o.future.done()]
        if not job.replace and any(other.name == job.name for other in others):
            raise StepExists("a save of this step is queued already", step=job.future.step)

    def _has_room(self) -> bool:
        return len(self._waiting) + (self.active is not None) <= self._max_pending

    def _append(self, job: SaveJob) -> None:
        job.future.add_wakeup(self._ended)  # first: another thread may replace it at once
        self._waiting.append(job)

    def push(self, job: SaveJob) -> None:
        """Take what has no snapshot to wait for, however many wait already."""
        with self.lock:
            self._waiting.append(job)

    def next(self) -> SaveJob | None:
        """The save that is to run now, if there is one; under the condition."""
        if self._waiting:
            self.active = self._waiting.popleft()
        return self.active

    def done(self) -> None:
        """The one that ran has ended."""
        with self.lock:
            self.active = None
            self.changed.notify_all()

    def remove(self, job: SaveJob) -> None:
        """Take a save out that waits."""
        with self.lock:
            if job in self._waiting:
                self._waiting.remove(job)
                self.changed.notify_all()

    def clear(self) -> list[SaveJob]:
        """Take all of them out, the one that runs too."""
        with self.lock:
            jobs = self.jobs()
            self.active = None
            self._waiting.clear()
            self.changed.notify_all()
        return jobs

    def is_empty(self) -> bool:
        """Whether none waits or runs."""
        return not self._waiting and self.active is None
