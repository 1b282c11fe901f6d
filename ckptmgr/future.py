"""Futures of saves and loads: `concurrent.futures.Future` plus step, state and progress.

States change through one table, under one lock per future, so a `cancel()` that
returns True means that nothing will be committed, and one that returns False that the
commit has begun. The base class stays pending until the end; callbacks run in a thread
of their own, never in the service's, so they may call the manager.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
from absl import logging

from ckptmgr.errors import FORKED, ManagerClosed
from ckptmgr.format.step import StepInfo

T = TypeVar("T")


class State(StrEnum):
    """Where a save or a load stands."""

    QUEUED = "QUEUED"
    WRITING = "WRITING"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    READING = "READING"
    LOADED = "LOADED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.QUEUED: frozenset(
        {State.WRITING, State.READING, State.SKIPPED, State.FAILED, State.CANCELLED}
    ),
    State.WRITING: frozenset({State.COMMITTING, State.FAILED, State.CANCELLED}),
    State.COMMITTING: frozenset({State.COMMITTED, State.FAILED}),
    State.READING: frozenset({State.LOADED, State.FAILED, State.CANCELLED}),
    State.COMMITTED: frozenset(),
    State.LOADED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.SKIPPED: frozenset(),
}
_ACTIVE: Final = frozenset({State.WRITING, State.COMMITTING, State.READING})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a save or a load is, in bytes and leaves; totals are 0 until they are known."""

    bytes_done: int = 0
    bytes_total: int = 0
    leaves_done: int = 0
    leaves_total: int = 0

    @property
    def fraction(self) -> float:
        """The part of the bytes that is done, from 0 to 1; a tree without bytes counts as done."""
        return self.bytes_done / self.bytes_total if self.bytes_total else 1.0


class CheckpointFuture(Future[T]):
    """What saves and loads share. Await it under asyncio or trio, or use it as any Future.

    Cancelling a task that awaits it does not cancel the work; `cancel()` does, until
    the commit begins.
    """

    def __init__(self, step: int | None, dispatch: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.step = step
        self.progress = Progress()
        self._stage = State.QUEUED
        self._heard = False
        self._over = False
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        # Who waits does so here: Ctrl-C can leave the lock of a Condition taken, and the base
        # class's is one that the service needs.
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        self._callbacks: list[Callable[[Future[T]], object]] | None = []
        self._dispatch = dispatch
        # The class's function, not a bound method: a future in a cycle with itself would
        # keep its result, a whole restored tree perhaps, until the garbage collector runs.
        super().add_done_callback(CheckpointFuture._on_done)  # type: ignore[arg-type]  # it is ours

    @property
    def state(self) -> State:
        """The state it is in now."""
        return self._stage

    def advance(self, to: State) -> bool:
        """Move to a state that is not final; False where it was cancelled. For the service."""
        with self._mutex:
            if self._stage is State.CANCELLED:
                return False
            self._enter(to)
            return True

    def resolve(self, to: State, outcome: T | BaseException) -> None:
        """Move to a final state and hand over its result or exception. For the service."""
        with self._mutex:
            if self._stage is State.CANCELLED:
                return
            self._enter(to)
        if isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def _enter(self, to: State) -> None:
        if to not in TRANSITIONS[self._stage]:
            raise AssertionError(f"{self._stage} cannot become {to}")
        self._stage = to

    def cancel(self) -> bool:
        """Give the work up. True: nothing is committed. False: the commit has begun or is done."""
        self._refuse_child()
        with self._mutex:
            if State.CANCELLED not in TRANSITIONS[self._stage]:
                return self._stage is State.CANCELLED
            self._stage = State.CANCELLED
        super().cancel()
        return not self.set_running_or_notify_cancel()

    def running(self) -> bool:
        """Whether it is being written, committed or read now."""
        return self._stage in _ACTIVE

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, or raise what the work failed with.

        Raises:
          TimeoutError: `timeout` seconds went by first.
          concurrent.futures.CancelledError: it was cancelled.
          ManagerClosed: this is a forked child, and it had not ended before the fork.
        """
        try:
            self._wait(timeout)
            return super().result()
        finally:
            self._heard = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what the work failed with, or None. Raises like `result`."""
        try:
            self._wait(timeout)
            return super().exception()
        finally:
            self._heard = self.done()

    def _wait(self, timeout: float | None) -> None:
        if self._over:
            return
        self._refuse_child()
        if not self._unfinished.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError(f"{self!r} has not ended within {timeout} s")
        self._unfinished.release()

    def _refuse_child(self) -> None:
        """Nobody ends it in a forked child, and its locks may be taken for ever."""
        if os.getpid() != self._pid and not self._over:
            raise ManagerClosed(FORKED)

    def failure_unheard(self) -> BaseException | None:
        """What it failed with, if nobody has asked yet; asking this counts. For the manager."""
        if self._stage is not State.FAILED or self._heard or not self.done():
            return None
        return self.exception()

    def __await__(self) -> Generator[object, None, T]:
        """Wait for the result in a task of any asyncio or trio loop."""
        self._refuse_child()
        yield from settled(self).__await__()
        return self.result()

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(future)` at the end, in a thread of its own; at once, here, if it has ended."""
        with self._mutex:
            if self._callbacks is not None:
                self._callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def add_wakeup(self, wake: Callable[[Future[T]], object]) -> None:
        """Call `wake(future)` in whichever thread ends it. It must neither block nor hold it."""
        super().add_done_callback(wake)

    def _on_done(self) -> None:
        self._over = True
        self._unfinished.release()
        with self._mutex:
            callbacks, self._callbacks = self._callbacks or [], None
        if callbacks:
            self._dispatch(lambda: self._run(callbacks))

    def _run(self, callbacks: list[Callable[[Future[T]], object]]) -> None:
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # noqa: BLE001  # the caller's code must not end ours, nor stop the next
                logging.exception("a callback of %s failed", self)

    def __repr__(self) -> str:
        """For example `<SaveFuture step 100 WRITING 45%>`."""
        step = "" if self.step is None else f" step {self.step}"
        done = f" {self.progress.fraction:.0%}" if self._stage in _ACTIVE else ""
        return f"<{type(self).__name__}{step} {self._stage}{done}>"


class SaveFuture(CheckpointFuture[StepInfo | None]):
    """A save. Its result is the `StepInfo` of what was committed, durable by then.

    `.structure` is the tree that is being saved as `jax.ShapeDtypeStruct`s. A save that
    was skipped because the manager was busy has state SKIPPED and the result None.
    """

    def __init__(
        self,
        step: int | None,
        dispatch: Callable[[Callable[[], None]], None],
        structure: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(step, dispatch)
        self._describe = structure

    @property
    def structure(self) -> object:
        """The tree that is being saved, with a `jax.ShapeDtypeStruct` for each array."""
        return self._describe()


class LoadFuture(CheckpointFuture[Any]):
    """A load. Its result is the restored tree.

    `.structure` is the saved tree as `jax.ShapeDtypeStruct`s once the manifest has been
    read, None before.
    """

    def __init__(self, step: int | None, dispatch: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(step, dispatch)
        self._describe: Callable[[], object] | None = None

    def knows(self, structure: Callable[[], object]) -> None:
        """The manifest has been read. For the service."""
        self._describe = structure

    @property
    def structure(self) -> object:
        """The saved tree with a `jax.ShapeDtypeStruct` for each array; None before it is known."""
        return self._describe and self._describe()


async def settled(future: Future[T]) -> None:
    """Return once `future` is done, in a task of any asyncio or trio loop; never touches it."""
    done = anyio.Event()
    loop: Any = anyio.lowlevel.current_token().native_token  # asyncio's loop, or trio's token
    soon = getattr(loop, "run_sync_soon", None) or loop.call_soon_threadsafe

    def wake(_: object) -> None:
        # A loop that has ended has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            soon(done.set)

    if isinstance(future, CheckpointFuture):
        future.add_wakeup(wake)
    else:
        future.add_done_callback(wake)
    await done.wait()
