"""The books of a directory that holds one checkpoint, where there is no run to keep any of."""

from __future__ import annotations

import time

import jax

from ckptmgr.errors import MissingFile, StepExists
from ckptmgr.events import Event, Events, SaveFailed
from ckptmgr.format.manifest import CommitRecord
from ckptmgr.format.step import StepInfo
from ckptmgr.pipeline.records import read_record, step_info
from ckptmgr.storage.base import Storage


class Books:
    """The ledger of a directory that holds one checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def refresh(self) -> None:
        """There is nothing to know."""

    def check(self, name: str) -> None:
        """Refuse to replace what is no checkpoint."""
        try:
            read_record(self._storage, name)
        except MissingFile as error:
            raise StepExists(
                "this path exists and is no checkpoint; it is left alone",
                file=f"{self._storage.root}/{name}",
            ) from error

    def newest(self) -> str | None:
        """There are no steps."""
        return None

    def commit_time(self) -> float:
        """Now."""
        return time.time()

    def add(self, name: str, record: CommitRecord) -> StepInfo:
        """What was written."""
        return step_info(record, f"{self._storage.root}/{name}")

    def tell(self, event: Event) -> None:
        """What happens to one checkpoint is logged, like what happens to a step."""
        Events(measure=jax.monitoring.record_event_duration_secs).tell(event)

    def failed(self, event: SaveFailed) -> None:
        """Its future raises; the log says so too."""
        self.tell(event)

    def retain(self) -> None:
        """There is nothing to delete."""

    def follow(self) -> None:
        """There is nothing to follow."""
