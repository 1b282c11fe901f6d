"""Jobs: what the service is given to do, who keeps its books, and how its work ends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import anyio

from ckptmgr.errors import CheckpointError
from ckptmgr.events import Event, SaveCommitted, SaveFailed, SaveStarted
from ckptmgr.format.manifest import CommitRecord
from ckptmgr.format.step import StepInfo, step_name
from ckptmgr.future import SaveFuture
from ckptmgr.pipeline.handover import Handover
from ckptmgr.pipeline.header import Header, header
from ckptmgr.pipeline.merge import Merge
from ckptmgr.pipeline.plan import Planned
from ckptmgr.pipeline.planner import Planner
from ckptmgr.pipeline.snapshot import take
from ckptmgr.tree.registry import Registry

Take = Callable[..., None]  # as pipeline.snapshot.take
OnBusy = Literal["wait", "skip", "replace"]
T = TypeVar("T")


class Ledger(Protocol):
    """What keeps the books of a directory: told of each commit, then asked to tidy up."""

    def refresh(self) -> None:
        """Look at what is there; once, before any work."""

    def newest(self) -> str | None:
        """The name of the newest step that is not known to be damaged."""

    def commit_time(self) -> float:
        """The time for the next commit record, in seconds since the epoch."""

    def add(self, name: str, record: CommitRecord) -> StepInfo:
        """Note what was committed."""

    def tell(self, event: Event) -> None:
        """Say that something has happened to a step."""

    def failed(self, event: SaveFailed) -> None:
        """Say that a save failed, and look at what is there after it."""

    def retain(self) -> None:
        """Delete what is not to be kept."""

    def follow(self) -> None:
        """Look at what the process that deletes has left."""


@dataclass(slots=True, eq=False)
class SaveJob:
    """A save on its way: what to write, and where its snapshot and its outcome go."""

    name: str
    planned: Planned  # its arrays are emptied by the snapshot: the tree is not ours to keep
    header: Header
    replace: bool
    future: SaveFuture
    handover: Handover
    kept: Merge | None = None
    contents: Mapping[int, str] = field(default_factory=dict)  # of leaves that all must have equal
    ticket: int = 0  # which of the saves that all processes asked a place for; 0 for none
    reason: CheckpointError | None = None  # why it was cancelled, for the other processes
    fault: CheckpointError | None = None  # why this process cannot save; the others are told
    scope: anyio.CancelScope | None = field(default=None)
    beside: bool = True  # whether a trainer goes on meanwhile
    take: Take = take  # what makes the pieces of what `planned` describes
    began: float = field(default_factory=time.perf_counter)  # when `save()` was called
    stall: float = 0.0  # the seconds that it took

    def started(self) -> SaveStarted:
        """It is being written."""
        leaves = len(self.planned.plan.paths)
        return SaveStarted(step=self.future.step, nbytes=self.planned.plan.nbytes, leaves=leaves)

    def committed(self, info: StepInfo) -> SaveCommitted:
        """It is durable."""
        return SaveCommitted(
            step=info.step,
            path=info.path,
            nbytes=info.nbytes,
            leaves=info.leaves,
            stall=self.stall,
            seconds=time.perf_counter() - self.began,
        )

    def failed(self, error: CheckpointError) -> SaveFailed:
        """It is not."""
        seconds = time.perf_counter() - self.began
        return SaveFailed(step=self.future.step, error=error, seconds=seconds)


def unplanned(
    step: int | None,
    registry: Registry,
    dispatch: Callable[[Callable[[], None]], None],
    name: str = "",
) -> SaveJob:
    """A save of nothing, to tell the other processes of one that could not be planned."""
    nothing = Planner(registry, 0).plan(())
    head, handover = header(step, None, None), Handover(lambda: None)
    name = name or step_name(step or 0)
    return SaveJob(name, nothing, head, True, SaveFuture(step, dispatch), handover)


async def outcome_of(work: Awaitable[T], what: str, step: int | None) -> T | CheckpointError:
    """What the work returns, or what it fails with: an error of ours that names its step."""
    try:
        return await work
    except CheckpointError as error:
        failure = error
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:  # noqa: BLE001  # the service must outlive whatever fails
        failure = CheckpointError(f"the {what} failed: {error!r}")
        failure.__cause__ = error
    failure.step = step if failure.step is None else failure.step
    return failure
