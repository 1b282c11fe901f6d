"""Saving and loading one tree at a path, without a run: `save`, `load` and their async forms.

Each call has a service of its own that ends with it. What is written is a whole step
directory, as a manager writes them; a run directory loads as its newest step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from ckptmgr.catalog import Catalog
from ckptmgr.errors import MissingFile, NoSuchStep, StepExists
from ckptmgr.format.manifest import CommitRecord
from ckptmgr.format.step import COMMIT_RECORD, StepInfo, step_name
from ckptmgr.future import LoadFuture, SaveFuture
from ckptmgr.limiter import ByteLimiter
from ckptmgr.options import limiter, local_path, pack_size
from ckptmgr.pipeline import match, restore
from ckptmgr.pipeline.commit import step_info
from ckptmgr.pipeline.header import header
from ckptmgr.pipeline.plan import Planner
from ckptmgr.pipeline.read import read_record
from ckptmgr.pipeline.snapshot import Handover
from ckptmgr.retention import KeepAll
from ckptmgr.service import SaveJob, Service
from ckptmgr.storage.local import LocalStorage
from ckptmgr.tree.registry import Registry

_PACK_BELOW = "1MiB"


def save(
    path: str | os.PathLike[str],
    tree: object,
    *,
    overwrite: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> StepInfo:
    """Save a tree as the directory `path`; blocks until it is durable.

    Args:
      path: where to; what it lies in must exist.
      tree: any pytree of arrays, numbers, str and bytes.
      overwrite: replace the checkpoint at `path`, which stays until the new one is durable.
      metadata: plain JSON, stored with it.

    Raises:
      StepExists: `path` exists and `overwrite` is False, or it is no checkpoint.
      UnsupportedLeaf: something in the tree cannot be stored; names its path.
      StorageError: it cannot be written.
    """
    info = save_async(path, tree, overwrite=overwrite, metadata=metadata).result()
    assert info is not None
    return info


def save_async(
    path: str | os.PathLike[str],
    tree: object,
    *,
    overwrite: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> SaveFuture:
    """As `save`, but returns once the snapshot is taken, with a future of the rest."""
    root, name = os.path.split(local_path(path))
    storage = LocalStorage(root)
    head = header(None, None, metadata)
    plan, leaves = Planner(Registry(), pack_size(_PACK_BELOW)).plan(tree)
    if storage.taken(name) and not overwrite:
        raise StepExists("this path exists; overwrite=True replaces a checkpoint", file=path)
    books = _Books(storage)
    service = Service(storage, books, max_pending=0, writer=False)
    try:
        if storage.taken(name):
            books.check(name)
        future = SaveFuture(None, service.dispatch, plan.describe)
        job = SaveJob(name, plan, leaves, head, overwrite, future, Handover(service.kick))
        service.save(job, limiter(None), "wait", borrow=True)
        job.handover.close()
        return future
    finally:
        service.finish()


def load(
    path: str | os.PathLike[str],
    like: object = None,
    *,
    shardings: object = None,
    casting: str = "same_kind",
    in_flight_bytes: int | str | ByteLimiter | None = None,
) -> Any:  # a tree of the caller's own types
    """Load the tree at `path`, a checkpoint or a run's newest step; blocks until it is there.

    Arguments and errors are those of `CheckpointManager.restore`.
    """
    future = load_async(
        path, like, shardings=shardings, casting=casting, in_flight_bytes=in_flight_bytes
    )
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def load_async(
    path: str | os.PathLike[str],
    like: object = None,
    *,
    shardings: object = None,
    casting: str = "same_kind",
    in_flight_bytes: int | str | ByteLimiter | None = None,
) -> LoadFuture:
    """As `load`, but returns at once a future of the tree."""
    where, request = local_path(path), match.request(like, shardings, casting)
    root, name = os.path.split(where)
    if not os.path.isdir(where):
        raise NoSuchStep("there is no such directory", file=where)
    if not os.path.exists(os.path.join(where, COMMIT_RECORD)):
        root, name = where, ""
    storage, limit = LocalStorage(root), limiter(in_flight_bytes)
    service = Service(storage, _Books(storage), max_pending=0, writer=False)
    future = LoadFuture(None, service.dispatch)

    async def work() -> object:
        chosen = name
        if not chosen:
            run = Catalog(storage, KeepAll())
            await anyio.to_thread.run_sync(run.refresh)
            future.step = run.find(None).step
            chosen = step_name(future.step or 0)
        return await restore.load(storage, chosen, request, Registry(), limit, future)

    try:
        service.load(future, work)
        return future
    finally:
        service.finish()


class _Books:
    """The ledger of a directory that holds one checkpoint."""

    def __init__(self, storage: LocalStorage) -> None:
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

    def commit_time(self) -> float:
        """Now."""
        return time.time()

    def add(self, name: str, record: CommitRecord) -> StepInfo:
        """What was written."""
        return step_info(record, f"{self._storage.root}/{name}")

    def retain(self) -> None:
        """There is nothing to delete."""
