"""The catalog: the committed steps of a run, as its one writer or a reader knows them.

It is read from the store at opening, grows with each commit and shrinks by retention.
Only what it lists is ever deleted; what it does not list is not ours. The mapping is
replaced, never changed, so any thread may look at it at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from absl import logging

from ckptmgr.errors import (
    CheckpointError,
    DamagedStep,
    Exhausted,
    MissingFile,
    NoSuchStep,
    StepHeld,
    StorageError,
    UnsupportedFormat,
)
from ckptmgr.events import Event, Events, SaveFailed, StepDamaged, StepDeleted, StepMoved
from ckptmgr.format.manifest import CommitRecord
from ckptmgr.format.step import MANIFEST, StepInfo, step_name, step_number
from ckptmgr.pipeline.notes import noted
from ckptmgr.pipeline.records import read_record, step_info
from ckptmgr.retention import Retention, Verdict, decide
from ckptmgr.storage.base import Storage


class Catalog:
    """The steps of one run.

    Args:
      storage: where they lie.
      keep: which of them to keep.
      events: who hears of what happens to them.
    """

    def __init__(self, storage: Storage, keep: Retention, events: Events | None = None) -> None:
        self._storage = storage
        self._events = events or Events()
        self._keep = keep
        self._steps: Mapping[int, StepInfo] = MappingProxyType({})
        self._nonces: dict[int, str] = {}
        self._damaged: dict[int, tuple[str, str]] = {}  # the nonce of the record, and what it is
        self._deleted: dict[int, str] = {}
        self._held: set[int] = set()  # found so at the last pass
        self._mutex = threading.RLock()

    @property
    def steps(self) -> Mapping[int, StepInfo]:
        """The committed steps in step order, but those known to be damaged."""
        return self._steps

    @property
    def damaged(self) -> dict[int, str]:
        """The steps known to be damaged, and what is wrong with them."""
        return {step: why for step, (_, why) in sorted(self._damaged.items())}

    def refresh(self) -> None:
        """Read the steps from the store. One that is damaged is left out, and logged once."""
        with self._mutex:
            found: dict[int, StepInfo] = {}
            damaged: dict[int, tuple[str, str]] = {}
            try:
                names = self._storage.names()
            except MissingFile:
                names = []  # a reader may be earlier than the run
            for name in names:
                step = step_number(name)
                if step is None:
                    continue
                before = self._damaged.get(step)
                try:
                    record = self._record(name, step)
                    if record is None:
                        continue
                    info = self._info(name, record)
                except (UnsupportedFormat, Exhausted):
                    raise
                except (DamagedStep, StorageError, ValueError) as error:
                    if before is None:
                        self.tell(StepDamaged(step=step, error=error))
                    damaged[step] = ("", str(error))
                    continue
                if before is not None and before[0] == record.nonce:
                    damaged[step] = before
                    continue
                self._nonces[step] = record.nonce
                found[step] = info
            self._damaged = damaged
            self._replace(found)

    def _record(self, name: str, step: int) -> CommitRecord | None:
        """The record of a step; None where nothing says that there is one.

        Raises:
          DamagedStep: it is missing where there is a manifest, or is that of another step.
        """
        try:
            record = read_record(self._storage, name)
        except MissingFile as error:
            if MANIFEST not in self._storage.files(name):
                return None
            raise DamagedStep("its commit record is missing", file=error.file) from error
        if record.step != step:
            raise DamagedStep(f"its commit record is that of step {record.step}", file=name)
        return record

    def _info(self, name: str, record: CommitRecord) -> StepInfo:
        info = step_info(record, f"{self._storage.root}/{name}")
        return noted(self._storage, name, info)

    def damage(self, step: int, error: DamagedStep) -> None:
        """Take a step for damaged from now on: it stays on disk, and is none of the good ones."""
        with self._mutex:
            if step in self._steps:
                self.tell(StepDamaged(step=step, error=error))
            self._damaged[step] = (self._nonces.get(step, ""), str(error))
            self._replace({s: info for s, info in self._steps.items() if s != step})

    def recover(self, step: int) -> None:
        """A step that was taken for damaged could be read after all."""
        with self._mutex:
            if self._damaged.pop(step, None) is not None:
                self.refresh()

    def forget(self, steps: Iterable[int]) -> None:
        """These steps have been moved away."""
        gone = set(steps)
        with self._mutex:
            self._damaged = {s: why for s, why in self._damaged.items() if s not in gone}
            self._replace({s: info for s, info in self._steps.items() if s not in gone})

    def _replace(self, steps: Mapping[int, StepInfo]) -> None:
        self._steps = MappingProxyType(dict(sorted(steps.items())))

    def newest(self) -> str | None:
        """The name of the newest of them; None where there is none."""
        steps = self._steps
        return step_name(max(steps)) if steps else None

    def commit_time(self) -> float:
        """Now, but never earlier than the newest commit: wall clocks jump."""
        return max([time.time(), *(info.time for info in self._steps.values())])

    def add(self, name: str, record: CommitRecord) -> StepInfo:
        """Take a step in that has just been committed; nothing can have been noted of it yet."""
        info = step_info(record, f"{self._storage.root}/{name}")
        if record.step is not None:
            with self._mutex:
                self._damaged.pop(record.step, None)
                self._nonces[record.step] = record.nonce
                self._replace({**self._steps, record.step: info})
        return info

    def tell(self, event: Event) -> None:
        """Something has happened to a step."""
        self._events.tell(event)

    def failed(self, event: SaveFailed) -> None:
        """Tell of a save that failed."""
        self.tell(event)
        self.refresh()  # it may have got its name all the same, where the last sync failed

    def set_aside(self, step: int, kind: Literal["damaged", "abandoned"]) -> None:
        """Move a step to a name under which it is none, and which it keeps.

        Raises:
          StepHeld: somebody reads or holds it.
          StorageError: it cannot be moved.
        """
        other = self._storage.set_aside(step_name(step), kind)
        self.forget([step])
        self.tell(StepMoved(step=step, path=other, why=kind))

    def find(self, step: int | None) -> StepInfo:
        """A step, or the newest where `step` is None.

        Raises:
          NoSuchStep: there is none.
          DamagedStep: it is known to be damaged, or all are.
        """
        steps, damaged = self._steps, self.damaged
        if step is None and steps:
            return steps[max(steps)]
        if step is None and damaged:
            raise DamagedStep(
                f"every step there is is damaged, {list(damaged)}; the newest: "
                f"{damaged[max(damaged)]}",
                step=max(damaged),
                file=self._storage.root,
            )
        if step in damaged:
            raise DamagedStep(f"it was found damaged: {damaged[step]}", step=step)
        if step is None:
            raise NoSuchStep("nothing has been committed yet", file=self._storage.root)
        if step not in steps:
            there = ", ".join(map(str, list(steps)[-8:])) or "none"
            raise NoSuchStep(f"this step is not committed; the newest that are: {there}", step=step)
        return steps[step]

    def verdict(self) -> Verdict:
        """What retention says now."""
        return decide(self._keep, self._steps, self._pinned())

    def _pinned(self) -> dict[int, str]:
        return {step: "pinned" for step, info in self._steps.items() if info.pinned}

    def explain(self) -> Verdict:
        """Why each step there is is kept, and why each that is gone was deleted."""
        held = dict.fromkeys(self._held & self._steps.keys(), "being read or held")
        verdict = decide(self._keep, self._steps, {**held, **self._pinned()})
        return Verdict(verdict.kept, {**self._deleted, **verdict.deleted})

    def follow(self) -> None:
        """Let go of the steps that another process has deleted."""
        there = set(self._storage.names())
        self.forget([step for step in self._steps if step_name(step) not in there])

    def retain(self) -> None:
        """Delete what no rule keeps, as annotated by now. What cannot be deleted is left."""
        with self._mutex:
            self._replace(
                {s: noted(self._storage, step_name(s), info) for s, info in self._steps.items()}
            )
            self._held.clear()
            for doubt in self._keep.doubts(self._steps):
                logging.log_first_n(logging.WARNING, "retention: %s", 1, doubt)
            for step, why in self.verdict().deleted.items():
                try:
                    self.delete(step, why)
                except StepHeld:
                    self._held.add(step)
                    logging.info("step %d is being read or held, and stays for now", step)
                except CheckpointError as error:
                    logging.error("step %d could not be deleted: %s", step, error)

    def delete(self, step: int, why: str) -> None:
        """Delete a step.

        Raises:
          StepHeld: somebody reads or holds it.
          StorageError: it cannot be deleted.
        """
        with self._mutex:
            before, name, began = self._steps, step_name(step), time.perf_counter()
            if step in before and noted(self._storage, name, before[step]).pinned:
                raise StepHeld("it is pinned; unpin it first", step=step)
            self._replace({s: info for s, info in before.items() if s != step})
            try:
                self._storage.delete(name)
            except CheckpointError:
                if self._storage.taken(name):
                    self._replace(before)
                raise
            self._deleted[step] = why
            self.tell(StepDeleted(step=step, why=why, seconds=time.perf_counter() - began))
