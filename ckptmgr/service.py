"""The service: one daemon thread with an anyio event loop that saves and loads.

Saves wait in a queue and run one at a time; loads run beside them. The trainer's
threads meet the loop in two places only: the queue, under one condition, and the
futures. The store's lock is the thread's, and so is let go when the last work has ended.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from absl import logging
from anyio.abc import TaskGroup

from ckptmgr.callbacks import Callbacks
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import FORKED, CheckpointError, ManagerClosed, WaitTimeout
from ckptmgr.events import SaveDropped
from ckptmgr.format.step import StepInfo
from ckptmgr.future import CheckpointFuture, LoadFuture, SaveFuture, State
from ckptmgr.jobs import Ledger, OnBusy, SaveJob, outcome_of
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.handover import Handover
from ckptmgr.queue import SaveQueue
from ckptmgr.saver import Saver

END_SECONDS: Final = 600.0  # how long close(), and the interpreter's exit, wait at the most
INTERRUPTED_SECONDS: Final = 30.0  # the same after Ctrl-C
_JOIN_SECONDS: Final = 5.0


class Service:
    """Runs the saves and loads of one directory until it is closed.

    Args:
      saver: takes each save through its stages.
      ledger: the books of the directory.
      coordinator: how it agrees with the services of other processes.
      max_pending: how many saves may wait behind the one being written.
      writer: take the lock and sweep; False only reads.
    """

    def __init__(
        self,
        saver: Saver,
        ledger: Ledger,
        coordinator: Coordinator,
        max_pending: int,
        *,
        writer: bool,
    ) -> None:
        self._saver = saver
        self._ledger = ledger
        self._writer = writer
        self._alone = coordinator.count == 1
        self._pid = os.getpid()
        self._queue = SaveQueue(max_pending, coordinator, self.check_open, self._ended)
        self._lock, self._changed = self._queue.lock, self._queue.changed
        self._snapshots = threading.Lock()
        self._loads: set[LoadFuture] = set()
        self._new_loads: deque[tuple[LoadFuture, Callable[[], Awaitable[object]]]] = deque()
        self._closing = False
        self._callbacks = Callbacks()
        self.dispatch = self._callbacks.dispatch
        self._soon: Callable[[Callable[[], object]], None]  # set by the loop, before it opens
        self._work: Sequence[asyncio.Event] = ()  # the loop's: there may be something to do
        self._failure: BaseException | None = None  # why it did not open
        self._opening = threading.Lock()
        self._opening.acquire()
        self._thread = threading.Thread(target=self._run, name="ckptmgr", daemon=True)
        self._runs = threading.Lock()  # Thread.join() is not sure after Ctrl-C (before 3.13)
        self._runs.acquire()
        atexit.register(self.close_quietly)
        try:
            self._thread.start()
            self._opening.acquire()  # until the thread lets go of it
        except BaseException:
            self.finish()
            self._end()  # whatever opened by then has let go of the directory
            raise
        if self._failure is not None:
            raise self._failure

    # The trainer's side: any thread but the service's own.

    def save(self, job: SaveJob, limiter: ByteLimiter, on_busy: OnBusy, *, borrow: bool) -> bool:
        """Queue a save and take its snapshot; False where it is skipped because of `on_busy`.

        Blocks for the snapshot, for room under the limiter, and for a place in the queue if
        `on_busy` is "wait". Whatever it raises, nothing is left behind.
        """
        # One after the other, in the order of the queue: a snapshot that waits for room must
        # never wait for copies of a save that stands behind it.
        with self._snapshots:
            self._withdraw_orphans(self._queue.jobs())
            try:
                admitted = self._queue.admit(job, on_busy, self.topic)
            except CheckpointError as error:
                self.tell(job, error)
                raise
            if not admitted:
                job.future.resolve(State.SKIPPED, None)
                self._ledger.tell(SaveDropped(step=job.future.step, why="skipped"))
                return False
            try:
                job.take(job.planned.plan, job.planned.arrays, limiter, job.handover, borrow=borrow)
                job.planned.arrays.clear()
                job.stall = time.perf_counter() - job.began
                job.handover.close()
            except BaseException as error:
                self._withdraw(job, error)
                raise
        return True

    def _withdraw_orphans(self, jobs: Sequence[SaveJob]) -> None:
        """Take out saves whose snapshot will never be complete; while none is being taken.

        Ctrl-C may come at any place, also where the thread that it interrupts cleans up.
        """
        for job in jobs:
            if job.fault is None and not job.handover.closed and not job.future.done():
                self._withdraw(job, CheckpointError("it was interrupted"))

    def _settle(self) -> None:
        """As `_withdraw_orphans`, unless a thread is at it, which then does that itself."""
        jobs = self._queue.jobs()  # first: who began one of these has left the lock, if it is free
        if not self._snapshots.locked():
            self._withdraw_orphans(jobs)

    def ticket(self, on_busy: OnBusy) -> int:
        """What a save has to show where the processes decide together who is let in."""
        return self._queue.ticket(on_busy)

    def void(self, ticket: int) -> None:
        """A save fails before it comes here."""
        self._queue.void(ticket, self.topic)

    def check_process(self) -> None:
        """Raise ManagerClosed in a forked child: there is no thread there, and no lock is sure."""
        if os.getpid() != self._pid:
            raise ManagerClosed(FORKED)

    def check_open(self) -> None:
        """Raise ManagerClosed where no work is taken any more."""
        self.check_process()
        if self._closing:
            raise ManagerClosed("this manager was closed")

    def _withdraw(self, job: SaveJob, cause: BaseException) -> None:
        """After a failed snapshot; on return nothing of the save is left, and all know why."""
        error = cause
        if not isinstance(error, CheckpointError):
            error = CheckpointError(f"the snapshot failed: {cause!r}")
        with self._lock:
            runs = job is self._queue.active
            job.reason = error
            job.future.cancel()
            if not runs:
                self.tell(job, error)
            self._changed.wait_for(lambda: job is not self._queue.active)

    @property
    def topic(self) -> str:
        """What the processes call this directory when they agree."""
        return self._saver.topic

    def tell(self, job: SaveJob, error: CheckpointError) -> None:
        """Have the other processes told, in its turn, why this one does not make a save.

        Where the service takes no work any more they hear nothing.
        """
        if self._alone:
            return
        future, handover = SaveFuture(job.future.step, self.dispatch), Handover(self.kick)
        fault = replace(job, future=future, handover=handover, fault=error, ticket=0)
        with self._lock:
            if not self._closing:
                self._queue.push(fault)
        handover.close()

    def kick(self) -> None:
        """There is something to do."""
        for work in self._work:
            self._soon(work.set)

    def pending(self) -> list[int]:
        """The steps that wait or are being written, in the order of their saves."""
        self.check_process()
        jobs = [job for job in self._queue.jobs() if job.fault is None]
        return [job.future.step for job in jobs if job.future.step is not None]

    def futures(self) -> list[CheckpointFuture[Any]]:
        """Of the saves that run or wait, and the loads."""
        with self._lock:
            return [*(job.future for job in self._queue.jobs()), *self._unfinished_loads()]

    def load(self, future: LoadFuture, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` beside the saves; its result or error goes into `future`."""
        self.check_process()
        with self._lock:
            self.check_open()
            self._new_loads.append((future, work))  # all or nothing, should Ctrl-C come here
        self.kick()

    def wait(self, timeout: float | None = None) -> None:
        """Block until no save waits or runs.

        Raises:
          WaitTimeout: `timeout` seconds went by first; the saves go on.
        """
        self.check_process()
        self._settle()
        with self._lock:
            if not self._changed.wait_for(self._queue.is_empty, timeout):
                raise WaitTimeout(f"saves are still running after {timeout} s: {self.pending()}")

    def finish(self) -> None:
        """Take no more work; the thread ends by itself after what there is."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self.kick()

    def close(self, timeout: float = END_SECONDS) -> None:
        """Finish what waits and runs, then end the thread and let the lock go.

        Raises:
          WaitTimeout: it took longer; what was not finished by then is cancelled.
        """
        if os.getpid() != self._pid:
            return
        self.finish()
        if self._thread is threading.current_thread():
            return  # garbage collection called: this thread ends by itself, after what there is
        self._settle()
        late: list[int] = []
        try:
            with self._lock:
                if not self._changed.wait_for(self._is_idle, timeout):
                    late = self.pending()
        finally:
            self._end()
        if late:
            raise WaitTimeout(f"gave up saves that were not done within {timeout} s: {late}")

    def _is_idle(self) -> bool:
        return self._queue.is_empty() and not self._unfinished_loads()

    def _unfinished_loads(self) -> set[LoadFuture]:
        return self._loads.union(future for future, _ in self._new_loads)

    def _end(self) -> None:
        """Cancel what is left and see the threads off, within seconds whatever they do."""
        self._saver.given_up = True
        for future in self.futures():
            future.cancel()
        self._callbacks.join(_JOIN_SECONDS)
        if self._runs.acquire(timeout=_JOIN_SECONDS):
            self._runs.release()

    def close_quietly(self, timeout: float = END_SECONDS) -> None:
        """Close where nobody can be raised to: at exit, in garbage collection, under an error."""
        try:
            self.close(timeout)
        except CheckpointError as error:
            logging.error("on closing: %s", error)

    def _ended(self, future: Future[StepInfo | None]) -> None:
        """A save's future ended; where by `cancel()`, take the job out of the queue or stop it."""
        if not future.cancelled():
            return
        with self._lock:
            jobs = [job for job in self._queue.jobs() if job.future is future]
            for job in jobs:
                job.handover.abandon()
                if job.scope is not None:
                    self._soon(job.scope.cancel)
                self._queue.remove(job)
        for job in (job for job in jobs if job.fault is None):
            self._ledger.tell(SaveDropped(step=job.future.step, why="cancelled"))

    # The loop's side.

    def _run(self) -> None:
        try:
            with self._saver.opened(writer=self._writer):
                anyio.run(self._main)
        except BaseException as error:  # noqa: BLE001  # the thread's end: it goes to who waits
            if self._work:
                logging.error("the checkpoint service ended: %r", error)
                self._fail_all(error)
            else:
                self._failure = error
                self._opening.release()
        finally:
            atexit.unregister(self.close_quietly)
            self._runs.release()

    def _fail_all(self, cause: BaseException) -> None:
        """The thread ends before its time: nobody is to wait for it."""
        error = CheckpointError(f"the checkpoint service ended: {cause!r}; open a new manager")
        error.__cause__ = cause
        with self._lock:
            self._closing = True
            futures, jobs = self.futures(), self._queue.clear()
            self._loads.clear()
            self._new_loads.clear()
        for job in jobs:
            job.handover.abandon()
        for future in (future for future in futures if not future.done()):
            future.resolve(State.FAILED, error)

    async def _main(self) -> None:
        self._soon = partial(_call_soon, asyncio.get_running_loop())
        saves, loads = asyncio.Event(), asyncio.Event()
        async with anyio.create_task_group() as tasks:
            self._work = (saves, loads)
            self._opening.release()
            tasks.start_soon(self._start_loads, loads, tasks)
            await self._saves(saves)
            tasks.cancel_scope.cancel()  # no load is left by then

    async def _start_loads(self, work: asyncio.Event, tasks: TaskGroup) -> None:
        """Start each load as it comes, beside the saves."""
        while True:
            work.clear()  # before the look: what comes after it sets it again
            with self._lock:
                while self._new_loads:
                    self._loads.add(self._new_loads[0][0])
                    tasks.start_soon(self._load, *self._new_loads.popleft())
            await work.wait()

    async def _saves(self, work: asyncio.Event) -> None:
        """Save one after the other until the service closes."""
        while True:
            work.clear()
            with self._lock:
                job = self._queue.next()
                if self._closing and self._is_idle():
                    return
            if job is None:
                await work.wait()
                continue
            try:
                await self._save(job)
            finally:
                job.handover.abandon()
                if not job.future.done():  # only where the service itself fails
                    job.future.resolve(State.FAILED, CheckpointError("the service ended"))
                self._queue.done()

    async def _save(self, job: SaveJob) -> None:
        outcome: StepInfo | CheckpointError | None = None
        with anyio.CancelScope() as job.scope:
            outcome = await outcome_of(self._saver.save(job), "save", job.future.step)
        if isinstance(outcome, CheckpointError):
            if job.fault is None:  # that one was raised where it came up
                told = anyio.to_thread.run_sync(self._ledger.failed, job.failed(outcome))
                await outcome_of(told, "telling", job.future.step)
            job.future.resolve(State.FAILED, outcome)
        elif outcome is not None:
            self._ledger.tell(job.committed(outcome))
            job.future.resolve(State.COMMITTED, outcome)
            tidy = self._ledger.retain if self._saver.leads else self._ledger.follow
            failed = await outcome_of(anyio.to_thread.run_sync(tidy), "retention", job.future.step)
            if failed is not None:
                logging.error("nothing was deleted: %s", failed)

    async def _load(self, future: LoadFuture, work: Callable[[], Awaitable[object]]) -> None:
        try:
            with anyio.CancelScope() as scope:
                future.add_wakeup(lambda ended: ended.cancelled() and self._soon(scope.cancel))
                if future.advance(State.READING):
                    outcome = await outcome_of(work(), "load", future.step)
                    failed = isinstance(outcome, CheckpointError)
                    future.resolve(State.FAILED if failed else State.LOADED, outcome)
        finally:
            with self._lock:
                self._loads.discard(future)
                self._changed.notify_all()
            self.kick()


def _call_soon(loop: asyncio.AbstractEventLoop, wake: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # a loop that has ended has nothing left to wake
        loop.call_soon_threadsafe(wake)
