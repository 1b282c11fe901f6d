"""The catalog: the committed steps of a run, as its one writer or a reader knows them.

It is read from the store at opening, grows with each commit and shrinks by retention.
Only what it lists is ever deleted; what it does not list is not ours. The mapping is
replaced, never changed, so any thread may look at it at any time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from absl import logging

from ckptmgr.errors import CheckpointError, DamagedStep, MissingFile, NoSuchStep
from ckptmgr.format.manifest import CommitRecord
from ckptmgr.format.step import StepInfo, step_name, step_number
from ckptmgr.pipeline.commit import step_info
from ckptmgr.pipeline.records import read_record
from ckptmgr.retention import Retention, Verdict, decide
from ckptmgr.storage.base import Storage


class Catalog:
    """The steps of one run.

    Args:
      storage: where they lie.
      keep: which of them to keep.
    """

    def __init__(self, storage: Storage, keep: Retention) -> None:
        self._storage = storage
        self._keep = keep
        self._steps: Mapping[int, StepInfo] = MappingProxyType({})
        self._readers: Counter[int] = Counter()
        self._deleted: dict[int, str] = {}

    @property
    def steps(self) -> Mapping[int, StepInfo]:
        """The committed steps in step order."""
        return self._steps

    def refresh(self) -> None:
        """Read the steps from the store. One whose record is damaged is left out and logged."""
        found: dict[int, StepInfo] = {}
        for name in self._storage.names():
            step = step_number(name)
            if step is None:
                continue
            try:
                record = read_record(self._storage, name)
            except MissingFile:
                continue  # no commit record, no step
            except DamagedStep as error:
                logging.warning("step %d is left out: %s", step, error)
                continue
            found[step] = self._info(name, record)
        self._replace(found)

    def _info(self, name: str, record: CommitRecord) -> StepInfo:
        return step_info(record, f"{self._storage.root}/{name}")

    def _replace(self, steps: Mapping[int, StepInfo]) -> None:
        self._steps = MappingProxyType(dict(sorted(steps.items())))

    def commit_time(self) -> float:
        """Now, but never earlier than the newest commit: wall clocks jump."""
        return max([time.time(), *(info.time for info in self._steps.values())])

    def add(self, name: str, record: CommitRecord) -> StepInfo:
        """Take a step in that has just been committed."""
        info = self._info(name, record)
        if record.step is not None:
            self._replace({**self._steps, record.step: info})
        return info

    def find(self, step: int | None) -> StepInfo:
        """A step, or the newest where `step` is None.

        Raises:
          NoSuchStep: there is none.
        """
        steps = self._steps
        if step is None and steps:
            return steps[max(steps)]
        if step is None:
            raise NoSuchStep("nothing has been committed yet", file=self._storage.root)
        if step not in steps:
            there = ", ".join(map(str, list(steps)[-8:])) or "none"
            raise NoSuchStep(f"this step is not committed; the newest that are: {there}", step=step)
        return steps[step]

    @contextmanager
    def reading(self, step: int | None) -> Iterator[None]:
        """Keep retention away from a step while it is being read."""
        if step is None:
            yield
            return
        self._readers[step] += 1
        try:
            yield
        finally:
            self._readers[step] -= 1

    def verdict(self) -> Verdict:
        """What retention says now."""
        reading = {step: "being read" for step, count in self._readers.items() if count}
        return decide(self._keep, self._steps, reading)

    def explain(self) -> Verdict:
        """Why each step there is is kept, and why each that is gone was deleted."""
        return Verdict(self.verdict().kept, dict(self._deleted))

    def retain(self) -> None:
        """Delete what no rule keeps. What cannot be deleted is logged and left."""
        for step, why in self.verdict().deleted.items():
            before = self._steps
            self._replace({s: info for s, info in before.items() if s != step})
            try:
                self._storage.delete(step_name(step))
            except CheckpointError as error:
                logging.error("step %d could not be deleted: %s", step, error)
                self._replace(before)
                continue
            self._deleted[step] = why
            logging.info("deleted step %d: %s", step, why)
