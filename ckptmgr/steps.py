"""The steps of a run, as any process may look at them, hold them and say more of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import anyio.to_thread

from ckptmgr.catalog import Catalog
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import CheckpointError, ManagerClosed, NoSuchStep
from ckptmgr.format.step import StepInfo, parse_step, step_name
from ckptmgr.future import LoadFuture
from ckptmgr.limiter import ByteLimiter, LimiterStatistics
from ckptmgr.options import require
from ckptmgr.pipeline import notes
from ckptmgr.pipeline.verify import VerifyReport, verify
from ckptmgr.pipeline.workers import left_in_thread
from ckptmgr.retention import Verdict, ranked
from ckptmgr.service import Service
from ckptmgr.storage.base import Storage

_POLL_SECONDS: Final = 0.1


class Steps:
    """What a CheckpointManager knows of the steps there are."""

    _storage: Storage
    _limiter: ByteLimiter
    _catalog: Catalog
    _service: Service
    _coordinator: Coordinator
    _read_only: bool

    def all_steps(self) -> list[int]:
        """The committed steps, lowest first."""
        return list(self._look().steps)

    def latest_step(self) -> int | None:
        """The highest committed step; None where there is none."""
        return max(self._look().steps, default=None)

    def best_step(self, metric: str, mode: Literal["min", "max"] = "min") -> int:
        """The committed step with the lowest ("min") or highest ("max") metric.

        Raises:
          NoSuchStep: no step has that metric as a number.
        """
        require(mode in ("min", "max"), "mode", "'min' or 'max'", mode)
        best = ranked(self._look().steps, metric, mode)
        if not best:
            raise NoSuchStep(f"no committed step has the metric {metric!r}")
        return best[0]

    def info(self, step: int) -> StepInfo:
        """What is known of a committed step.

        Raises:
          NoSuchStep: it is not committed.
        """
        return self._look().find(parse_step(step))

    def explain(self) -> Verdict:
        """Why each committed step is kept; why each that this manager deleted, or will, is not."""
        return self._look().explain()

    def statistics(self) -> LimiterStatistics:
        """The bytes that are in flight now: copied, borrowed, and the most that were copied."""
        return self._limiter.statistics()

    def verify(self, step: int | Literal["newest"] = "newest") -> VerifyReport:
        """Read everything of a step and check it; blocks until that is done.

        What the system has cached is read anew from the disk. Says all that is wrong, and does
        not raise for it; a step that is not whole counts as damaged from then on.

        Raises:
          NoSuchStep: there is no such step.
        """
        if isinstance(step, str) and step == "newest":
            number = max([*self._look().steps, *self._catalog.damaged], default=None)
        else:
            number = parse_step(step)
        if number is None or number not in {*self._look().steps, *self._catalog.damaged}:
            raise NoSuchStep("there is no such step to verify", step=number)
        future = LoadFuture(number, self._service.dispatch)

        async def work() -> object:
            # What it says is of the step that is kept there meanwhile, and of no later one.
            async with left_in_thread(self._storage.reading(step_name(number))):
                report = await verify(self._storage, step_name(number), self._limiter, number)
                if report.whole:
                    await anyio.to_thread.run_sync(self._catalog.recover, number)
                else:
                    await anyio.to_thread.run_sync(self._catalog.damage, number, report.error())
                return report

        self._service.load(future, work)
        found: VerifyReport = future.result()
        return found

    @contextmanager
    def hold(self, step: int) -> Iterator[StepInfo]:
        """Keep a step there: while the block runs no process deletes or replaces it.

            with manager.hold(step):
                score = evaluate(manager.restore(step))
                manager.annotate(step, metrics={"score": score})

        Raises:
          StepDeleted: it was deleted before it could be held.
          NoSuchStep: it is not committed.
          DamagedStep: it was found damaged.
        """
        info = self.info(step)
        with self._storage.reading(step_name(parse_step(step))):
            yield info

    def annotate(
        self,
        step: int,
        metrics: Mapping[str, object] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Say more of a committed step, from any process; durable on return.

        What was said before stays, but for equal names. The writer's retention sees it at its
        next pass, which in the manager that writes is now.

        Raises:
          InvalidOption: metrics are no scalars, or metadata is not plain JSON.
          NoSuchStep, StepDeleted: the step is not there.
        """
        notes.annotate(self._storage, self._name_of(step), metrics, metadata)
        self._noted()

    def pin(self, step: int) -> None:
        """Keep a step whatever the rules say, from any process; durable on return.

        Raises:
          NoSuchStep, StepDeleted: the step is not there.
        """
        notes.pin(self._storage, self._name_of(step))
        self._noted()

    def unpin(self, step: int) -> None:
        """Leave a step to the rules again.

        Raises:
          NoSuchStep, StepDeleted: the step is not there.
        """
        notes.unpin(self._storage, self._name_of(step))
        self._noted()

    def _name_of(self, step: int) -> str:
        """The name of a step that is there."""
        number = parse_step(step)
        self._look().find(number)
        return step_name(number)

    def _noted(self) -> None:
        """A note was written: the one writer looks which steps to keep."""
        with contextlib.suppress(ManagerClosed):
            self._service.check_open()  # one that was closed, or forked, is no writer any more
            if not self._read_only and self._coordinator.index == 0:
                self._catalog.retain()

    def delete(self, step: int) -> None:
        """Delete a committed step, whatever the rules say. With several processes all call it.

        Raises:
          NoSuchStep: it is not committed.
          DamagedStep: it was found damaged; `rollback` moves such a step away.
          StepHeld: somebody reads or holds it, or it is pinned.
          StorageError: it cannot be deleted, or holds files that are not ours.
        """
        number = parse_step(step)
        self._check_writable()
        self.info(number)

        def act(_: Sequence[bytes]) -> bytes:
            self._catalog.delete(number, "delete() was called")
            return b""

        self._agree(f"delete/{number}", b"", act)
        self._catalog.forget([number])

    def rollback(self, step: int) -> list[int]:
        """Go back to a committed step: all newer ones are moved aside, and stay on disk.

        Waits for saves that run or wait. Newer steps, damaged ones too, become `.abandoned-*`
        directories, which nobody deletes but a person. Afterwards `step` is the latest, and
        their numbers are free. With several processes all call it. Returns what was moved.

        Raises:
          NoSuchStep, DamagedStep: `step` is not there to go back to.
          StepHeld: somebody reads or holds a newer one; those above it were moved.
        """
        number = parse_step(step)
        self._check_writable()
        self._service.wait()

        def act(_: Sequence[bytes]) -> bytes:
            self._catalog.refresh()
            self._catalog.find(number)
            newer = [s for s in {*self._catalog.steps, *self._catalog.damaged} if s > number]
            for other in sorted(newer, reverse=True):
                self._catalog.set_aside(other, "abandoned")
            return ",".join(map(str, sorted(newer))).encode()

        moved = self._agree(f"rollback/{number}", b"", act).decode()
        found = [int(other) for other in moved.split(",") if other]
        self._catalog.forget(found)
        return found

    def wait_for_step(self, after: int | None = None, timeout: float | None = None) -> int | None:
        """Block until there is a step above `after` (any, if that is None); the newest of them.

        For an evaluator beside the trainer: looks a few times a second, also for a directory
        that is not there yet. None where `timeout` seconds went by first.
        """
        least = -1 if after is None else parse_step(after)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            newest = max(self._look().steps, default=-1)
            if newest > least:
                return newest
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._service.check_open()
            time.sleep(_POLL_SECONDS)

    def _look(self) -> Catalog:
        """The catalog, read anew where another process writes."""
        if self._read_only:
            self._service.check_open()
        self._service.check_process()
        if self._read_only or self._coordinator.index:
            self._catalog.refresh()
        return self._catalog

    def _agree(
        self,
        topic: str,
        report: bytes | CheckpointError,
        decide: Callable[[Sequence[bytes]], bytes],
    ) -> bytes:
        """Decide for all processes; a reader decides for itself."""
        if self._read_only or self._coordinator.count == 1:
            if isinstance(report, CheckpointError):
                raise report
            return decide([report])
        return self._coordinator.agree(f"{self._service.topic}/{topic}", report, decide)

    def _check_writable(self) -> None:
        self._service.check_open()
        if self._read_only:
            raise ManagerClosed("this manager was opened with read_only=True and cannot save")
