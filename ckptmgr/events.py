"""Events: what happens to the steps of a run, as values, told in order.

Each is logged in one line, its durations go to jax.monitoring, and it is handed to the
trainer's function in a thread of its own: that may call the manager, what it raises is
logged, and nothing waits for it but the end of `close()`, and that not for long.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from absl import logging

from ckptmgr.errors import CheckpointError
from ckptmgr.units import leaves, size, span

_END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a step. `str(event)` is the line that is logged of it.

    Attributes:
      step: its number.
    """

    step: int | None
    level: ClassVar[int] = logging.INFO

    def durations(self) -> Mapping[str, float]:
        """What took how many seconds, by its name below `/ckptmgr/` in jax.monitoring."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStarted(Event):
    """The first byte of a save is about to be written: `nbytes` of them, in so many `leaves`."""

    nbytes: int
    leaves: int
    level: ClassVar[int] = logging.DEBUG

    def __str__(self) -> str:
        return f"step {self.step}: saving {size(self.nbytes)} in {leaves(self.leaves)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted(Event):
    """A step is durable.

    Attributes:
      path: where it lies.
      nbytes, leaves: what it holds.
      stall: the seconds that `save()` kept the trainer.
      seconds: from the call of `save()` until it was durable.
    """

    path: str
    nbytes: int
    leaves: int
    stall: float
    seconds: float

    def durations(self) -> Mapping[str, float]:
        """The stall, and the time until it was durable."""
        return {"save/stall_secs": self.stall, "save/durable_secs": self.seconds}

    def __str__(self) -> str:
        return (
            f"step {self.step}: committed {size(self.nbytes)} in {leaves(self.leaves)} after "
            f"{span(self.seconds)}, {span(self.stall)} of them in save()"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """A save failed with `error`, so many `seconds` after its call; nothing was committed."""

    error: CheckpointError
    seconds: float
    level: ClassVar[int] = logging.ERROR

    def durations(self) -> Mapping[str, float]:
        """The time until it was known."""
        return {"save/failed_secs": self.seconds}

    def __str__(self) -> str:
        return f"a save failed: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDropped(Event):
    """A save was not made: "skipped" as the manager was busy, or "cancelled"."""

    why: Literal["skipped", "cancelled"]

    def __str__(self) -> str:
        return f"step {self.step}: the save was {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDeleted(Event):
    """A step was deleted, in so many `seconds`; `why`: by which rule, or by whom."""

    why: str
    seconds: float
    level: ClassVar[int] = logging.DEBUG

    def durations(self) -> Mapping[str, float]:
        """The time it took."""
        return {"delete/secs": self.seconds}

    def __str__(self) -> str:
        return f"step {self.step}: deleted, {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDamaged(Event):
    """A step was found damaged; it stays on disk, and is none of the good ones."""

    error: Exception
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return f"step {self.step} is damaged and is passed over: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMoved(Event):
    """A step lies at `path` now, and is none any more.

    Attributes:
      path: where.
      why: "damaged", and its number was saved again; "abandoned", by `rollback`.
    """

    path: str
    why: Literal["damaged", "abandoned"]
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return f"step {self.step} was set aside, {self.why}: it lies in {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStarted(Event):
    """A step is about to be read."""

    level: ClassVar[int] = logging.DEBUG

    def __str__(self) -> str:
        return f"step {self.step}: restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFinished(Event):
    """A step was restored: `nbytes` in so many `leaves` were read and checked in `seconds`."""

    nbytes: int
    leaves: int
    seconds: float

    def durations(self) -> Mapping[str, float]:
        """The time it took."""
        return {"restore/secs": self.seconds}

    def __str__(self) -> str:
        return (
            f"step {self.step}: restored {size(self.nbytes)} in {leaves(self.leaves)} in "
            f"{span(self.seconds)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed(Event):
    """A step could not be restored; whoever asked is raised the `error`."""

    error: CheckpointError
    seconds: float

    def durations(self) -> Mapping[str, float]:
        """The time until it was known."""
        return {"restore/failed_secs": self.seconds}

    def __str__(self) -> str:
        return f"step {self.step}: not restored: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(Event):
    """The newest step that is whole was restored; the newer ones in `passed` are damaged."""

    passed: Sequence[int]
    level: ClassVar[int] = logging.WARNING

    def __str__(self) -> str:
        return f"step {self.step} was restored, as the newer ones are damaged: {list(self.passed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Event):
    """The manager has ended, and lets its run go."""

    step: None = None
    level: ClassVar[int] = logging.DEBUG

    def __str__(self) -> str:
        return "the manager has ended"


class Events:
    """Hands events on.

    Args:
      listener: called with each, in a thread of its own; None: nobody listens.
      measure: called with the name and the seconds of each duration.
      observers: called with each, where it happens; they must be quick.
    """

    def __init__(
        self,
        listener: Callable[[Event], object] | None = None,
        measure: Callable[[str, float], object] = lambda _name, _seconds: None,
        observers: Sequence[Callable[[Event], object]] = (),
    ) -> None:
        self._listener = listener
        self._measure = measure
        self._observers = observers
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._mutex = threading.RLock()  # the manager's finalizer may come while it is held
        self._thread: threading.Thread | None = None
        if listener is not None:
            atexit.register(self.close)  # before the service's, which so comes first at exit

    def tell(self, event: Event) -> None:
        """This happened. Whatever fails of those who are told, nothing is raised."""
        _guarded(event, logging.log, event.level, "%s", event)
        for name, seconds in event.durations().items():
            _guarded(event, self._measure, f"/ckptmgr/{name}", seconds)
        for observer in self._observers:
            _guarded(event, observer, event)
        if self._listener is not None:
            _guarded(event, self._hand_on, event, self._listener)

    def _hand_on(self, event: Event, listener: Callable[[Event], object]) -> None:
        with self._mutex:
            self._waiting.put(event)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, args=(listener,), name="ckptmgr events", daemon=True
                )
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Wait until all was told, a few seconds at the most."""
        atexit.unregister(self.close)
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


def _guarded(event: Event, call: Callable[..., object], *arguments: object) -> None:
    """Call handlers of logs, listeners of jax.monitoring, and observers: code of the trainer's."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001  # it is told, if that can be done
        with contextlib.suppress(Exception):
            logging.exception("an observer failed for %s", event)
