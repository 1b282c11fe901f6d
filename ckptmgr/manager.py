"""The manager: the synchronous door that a trainer holds.

It checks what it is given, plans, has the snapshot taken in the caller's thread and
leaves the rest to the service. What a reader can do as well is in `run.py`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar, get_args

from jax import monitoring

from ckptmgr.cadence import Cadence, Offer, OnPreemption
from ckptmgr.catalog import Catalog
from ckptmgr.config import read_config
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import CheckpointError, EarlierSaveFailed, InvalidOption, StepExists
from ckptmgr.events import Event, Events
from ckptmgr.failures import Failures
from ckptmgr.format.step import parse_step, step_name
from ckptmgr.future import SaveFuture, State
from ckptmgr.interop.recognise import refuse_foreign_run
from ckptmgr.jobs import OnBusy, SaveJob, unplanned
from ckptmgr.life import Life
from ckptmgr.limiter import ByteLimiter
from ckptmgr.options import count, limiter, pack_size, require
from ckptmgr.pace import Pacer
from ckptmgr.pipeline import forms, reports
from ckptmgr.pipeline.handover import Handover
from ckptmgr.pipeline.header import Header, header
from ckptmgr.pipeline.leaf_options import LeafRules
from ckptmgr.pipeline.planner import Planner
from ckptmgr.preemption import Preemption
from ckptmgr.progress import display
from ckptmgr.reporter import Reporter, StatusFile
from ckptmgr.retention import KeepAll, Retention
from ckptmgr.saver import Saver
from ckptmgr.service import Service
from ckptmgr.storage.base import Storage
from ckptmgr.storage.url import ObjectStore, storage_of
from ckptmgr.tree.handlers import Handler
from ckptmgr.tree.per_process import Processes
from ckptmgr.tree.registry import Registry

T = TypeVar("T")
_ALL = KeepAll()


class CheckpointManager(Life):
    """Saves and restores the state of one run, without stalling it.

    `save()` blocks for the snapshot only and returns a future; a background thread writes,
    commits each step atomically and deletes what `keep` does not ask for. A step counts
    from the moment its future has a result; by then a power cut cannot take it.

        with CheckpointManager("run", when=Every(steps=100), keep=KeepLast(3)) as manager:
            step, state = manager.resume(state)
            while step < total:
                state = train_step(state, batches[step]); step += 1
                manager.maybe_save(step, state)

    Args:
      directory: the run: a path, made if it is missing, what it lies in must exist; or the URL
        of a prefix in an object store, s3://bucket/run or gs://bucket/run.
      when: which of the steps offered to `maybe_save` are saved; None: all.
      keep: which committed steps stay; the newest always does.
      in_flight_bytes: the most host memory that ckptmgr allocates at a time, in bytes or
        as a text like "256MiB", or a ByteLimiter shared with other managers. None: 2 GiB
        on CPU, a quarter of the free host memory on accelerators.
      on_busy: what `save` does while `max_pending` saves wait behind the one being
        written: "wait" for a place, "skip" this save, or "replace" the oldest that waits.
      max_pending: how many saves may wait; 0 or more.
      pack_below: arrays of fewer bytes share files; at most 16 MiB.
      leaf_options: pairs of a key path glob and LeafOptions, of which the first that matches
        a leaf says how it is stored; or a prefix tree of LeafOptions.
      handlers: for leaves of further classes, or to go before the built-in ones.
      read_only: only look and restore; needs no lock and writes nothing.
      tolerated_failures: how many saves in a row may fail, unheard, before the next
        `save` says so by raising EarlierSaveFailed.
      incremental: link the files of the newest step whose bytes have not changed instead of
        writing them. Each step stays whole by itself; but a linked file is one copy on the disk,
        which up to 50 steps share.
      verify_commits: read each step back from the disk before it becomes one, up to 32 MiB at a
        time beside the limit; where it is not what was written the save fails.
      borrow: view jax arrays on CPU instead of copying them. A donated step then
        allocates fresh memory while views are held; False copies, under the limit. An array
        that `jax.device_put` made of numpy memory shares it: do not write to that memory.
      progress: show how saves and restores go, in process 0: by bars where stderr is a terminal
        and rich is installed, else by a line in the log (absl's, INFO) every few seconds.
      on_event: called with each event (ckptmgr.events), in a thread of its own.
      storage: how to reach an object store (ObjectStore), or another place instead.
      coordinator: how several processes agree; `Coordinator(timeout=60)` waits for each other
        for a minute, the default for ten.

    Raises:
      InvalidOption: an argument has an impossible value.
      StorageError: the directory cannot be made or written; MissingFile: its parent is missing.
      DirectoryLocked: another live manager writes it.
    """

    def __init__(  # noqa: PLR0913  # the options of a whole run, each on its own
        self,
        directory: str | os.PathLike[str],
        *,
        when: Cadence | None = None,
        keep: Retention = _ALL,
        in_flight_bytes: int | str | ByteLimiter | None = None,
        on_busy: OnBusy = "wait",
        max_pending: int = 1,
        pack_below: int | str = "1MiB",
        leaf_options: object = (),
        handlers: Sequence[Handler] = (),
        read_only: bool = False,
        tolerated_failures: int = 0,
        incremental: bool = False,
        verify_commits: bool = False,
        borrow: bool = True,
        progress: bool = False,
        on_event: Callable[[Event], object] | None = None,
        storage: Storage | ObjectStore | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        require(when is None or isinstance(when, Cadence), "when", "a cadence or None", when)
        require(isinstance(keep, Retention), "keep", "a retention rule", keep)
        require(on_busy in get_args(OnBusy), "on_busy", "'wait', 'skip' or 'replace'", on_busy)
        self._when = when
        self._on_busy: OnBusy = on_busy
        self._borrow = borrow
        self._read_only = read_only
        self._listens = when is not None and when.includes(OnPreemption)
        self._preemption = Preemption()
        self._failures = Failures(count(tolerated_failures, "tolerated_failures"))
        self._storage = storage_of(directory, storage)
        if not read_only:
            refuse_foreign_run(self._storage.root)
        self._registry = Registry(handlers)
        rules = LeafRules(leaf_options)
        self._coordinator = coordinator or Coordinator()
        here = Processes(self._coordinator.index, self._coordinator.count)
        self._planner = Planner(self._registry, pack_size(pack_below), rules, processes=here)
        self._limiter = limiter(in_flight_bytes)
        require(on_event is None or callable(on_event), "on_event", "a function", on_event)
        leads = self._coordinator.index == 0
        reporter = Reporter(
            StatusFile(self._storage, repr(keep), self._limiter)
            if leads and not read_only
            else None,
            display() if progress and leads else None,
        )
        record = monitoring.record_event_duration_secs
        self._events = Events(on_event, record, [reporter.heard])
        self._catalog = Catalog(self._storage, keep, self._events)
        self._mutex = threading.Lock()
        pending = count(max_pending, "max_pending")
        saver = Saver(
            self._storage,
            self._catalog,
            self._coordinator,
            verify=verify_commits,
            incremental=incremental,
        )
        self._service = Service(
            saver, self._catalog, self._coordinator, pending, writer=not read_only
        )
        reporter.look = self._service.futures
        # A manager that nobody holds any more finishes its saves and lets the directory go.
        self._end = weakref.finalize(self, _finish, self._service, self._events)
        self._end.atexit = False  # both see to that themselves, before jax goes
        if self._listens:
            self._preemption.listen()
        self._forced: Counter[int] = Counter()
        self._pacer = Pacer(when, self._coordinator, self._service.topic)

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """The manager that a TOML file describes, and `options` beside it, which win.

            manager = CheckpointManager.from_config("configs/local.toml", directory="runs/a")

        Each key of the file is an argument of CheckpointManager; rules are text, as in
        keep = "KeepLast(3) | KeepEvery(steps=1000)". What is a function or an object is no text,
        so `handlers`, `on_event` and the like are given here. A relative directory is one below
        the working directory. configs/ holds examples that name every key.

        Raises:
          InvalidOption: it is no TOML, a key is unknown or a value impossible; names the key, and
            says what is allowed. Or no directory is given at all.
          MissingFile, StorageError: the file is not there, or cannot be read.
        """
        found = {**read_config(path), **options}
        if "directory" not in found:
            raise InvalidOption("it names no directory, and none is given beside it", file=path)
        try:
            return cls(found.pop("directory"), **found)
        except InvalidOption as error:
            error.file = error.file or os.fspath(path)
            raise

    # Saving

    def save(
        self,
        step: int,
        tree: object,
        *,
        metrics: Mapping[str, object] | None = None,
        metadata: Mapping[str, object] | None = None,
        overwrite: bool = False,
    ) -> SaveFuture:
        """Save a tree, whatever `when` says. Returns once the snapshot is taken.

        Blocks for the snapshot: 2 ms for 217 large jax arrays on CPU, the copy for numpy
        arrays; longer only where the queue is full (`on_busy`), copies do not fit under
        the limit, or another thread's snapshot is being taken. Afterwards the tree may be
        donated, deleted or overwritten.

        Args:
          step: the number of updates done.
          tree: any pytree of arrays, PRNG keys, numbers, str, bytes, and what `handlers` or
            `register_leaf` take.
          metrics: scalars by name, jax scalars still being computed included.
          metadata: plain JSON, stored with the step.
          overwrite: replace a committed step, which stays until the new one is durable; what was
            annotated or pinned goes with it.

        Returns:
          A future whose result is the StepInfo once the step is durable.

        Raises:
          NotAStep, InvalidStep: `step` is no step.
          UnsupportedLeaf: something in the tree cannot be stored; names its path.
          InvalidOption: metrics, metadata or the options of a leaf are not what they must be.
          TreeMismatch: a glob of `leaf_options` matches no leaf.
          StepExists: the step is committed or queued and `overwrite` is False.
          StepHeld: a damaged step of that number, which is to be set aside, is being read.
          EarlierSaveFailed: this save is queued, but an earlier one failed unheard.
          ManagerClosed: the manager was closed, or is read-only.
        """
        number = parse_step(step)
        self._check_writable()
        with self._pacer.stall():
            return self._save(number, tree, metrics, metadata, overwrite=overwrite)

    def _save(
        self,
        number: int,
        tree: object,
        metrics: Mapping[str, object] | None,
        metadata: Mapping[str, object] | None,
        *,
        overwrite: bool,
    ) -> SaveFuture:
        began, ticket = time.perf_counter(), self._service.ticket(self._on_busy)
        try:
            head = header(number, metrics, metadata)
            job = self._job(step_name(number), tree, head, ticket, replace=overwrite)
        except CheckpointError as error:
            self._service.void(ticket)
            self._tell_others(number, error)
            raise
        job.began = began
        saving = self._service.save(job, self._limiter, self._on_busy, borrow=self._borrow)
        try:
            self._failures.tell(job.future)
        finally:
            if saving:
                self._failures.watch(job.future)
        return job.future

    def _job(self, name: str, tree: object, head: Header, ticket: int, *, replace: bool) -> SaveJob:
        """A save, planned."""
        in_the_way = not replace and self._storage.taken(name)
        if in_the_way and head.step not in self._catalog.damaged:
            raise StepExists(
                "this step is there already; overwrite=True replaces it", step=head.step
            )
        with self._mutex:
            planned = self._planner.plan(tree)
        if in_the_way and head.step is not None:
            self._put_damaged_aside(head.step)
        shown = partial(forms.saving, planned.plan, planned.values, self._registry)
        future = SaveFuture(head.step, self._service.dispatch, shown)
        contents = reports.contents(planned) if self._coordinator.count > 1 else {}
        handover = Handover(self._service.kick)
        return SaveJob(
            name, planned, head, replace, future, handover, contents=contents, ticket=ticket
        )

    def _put_damaged_aside(self, step: int) -> None:
        """Make way for a step whose name a damaged one has; that stays under another."""
        if self._coordinator.index == 0:
            self._catalog.set_aside(step, "damaged")
        self._catalog.forget([step])

    def _tell_others(self, step: int, error: CheckpointError) -> None:
        """Let the other processes know that this one does not save the step, and why."""
        if self._coordinator.count > 1:
            self._service.tell(unplanned(step, self._registry, self._service.dispatch), error)

    def maybe_save(
        self,
        step: int,
        tree: object,
        *,
        force: bool = False,
        metrics: Mapping[str, object] | None = None,
        metadata: Mapping[str, object] | None = None,
        overwrite: bool = False,
    ) -> SaveFuture | None:
        """Save if `should_save(step)`; with `force` unless the step is committed or queued.

        Returns and raises what `save` does; None where nothing was due.
        """
        number = parse_step(step)
        if not (self.should_save(number) or (force and self._is_new(number))):
            return None
        try:
            future = self.save(
                number, tree, metrics=metrics, metadata=metadata, overwrite=overwrite
            )
        except EarlierSaveFailed:
            self._preemption.answer()  # this save is queued all the same
            raise
        if future.state is not State.SKIPPED:
            self._preemption.answer()
        return future

    def _is_new(self, step: int) -> bool:
        """Whether a step is neither committed nor queued, as process 0 sees it."""

        def say() -> bytes:
            known = step in self._catalog.steps or step in self._service.pending()
            return b"no" if known else b"yes"

        self._forced[step] += 1
        topic = f"{self._service.topic}/new/{step}/{self._forced[step]}"
        return self._coordinator.follow(topic, say) == b"yes"

    def should_save(self, step: int) -> bool:
        """Whether `when` asks for this step. One at or below the newest known is never due."""
        number = parse_step(step)
        self._check_writable()
        preempted = self._preemption.reached(number) if self._listens else False
        pending = self._service.pending()
        pace = self._pacer.at(number, busy=bool(pending))
        due = number > max([*self._catalog.steps, *pending], default=-1) and (
            self._when is None or self._when.due(Offer(number, pace, preempted))
        )
        self._pacer.decided(number, busy=due or bool(pending))
        return due

    @property
    def preempted(self) -> bool:
        """Whether SIGTERM, or jax's preemption sync point, was answered by a queued save.

        Only with `OnPreemption()` in `when`. A loop that ends on it has saved.
        """
        return self._preemption.answered

    def pending(self) -> list[int]:
        """The steps that are queued or being written."""
        return self._service.pending()

    def __repr__(self) -> str:
        """For example `<CheckpointManager /runs/a>`."""
        return f"<{type(self).__name__} {self._storage.root}>"


def _finish(service: Service, events: Events) -> None:
    """End what a manager has begun that nobody holds any more."""
    service.close_quietly()
    events.close()
