"""Saving and loading one tree at a path, without a run: `save`, `load` and their async forms.

Each call has a service of its own that ends with it. What is written is a whole step
directory, as a manager writes them; a run directory loads as its newest step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import anyio.to_thread
import jax

from ckptmgr.books import Books
from ckptmgr.catalog import Catalog
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import (
    CheckpointError,
    DamagedStep,
    InvalidOption,
    MissingFile,
    NoSuchStep,
    StepDeleted,
    StepExists,
)
from ckptmgr.format.manifest import CommitRecord, Manifest
from ckptmgr.format.step import StepInfo, step_name
from ckptmgr.future import LoadFuture, SaveFuture
from ckptmgr.interop.opening import open_foreign
from ckptmgr.interop.reader import ForeignReader
from ckptmgr.interop.recognise import foreign_path
from ckptmgr.jobs import SaveJob, unplanned
from ckptmgr.limiter import ByteLimiter
from ckptmgr.options import limiter, pack_size
from ckptmgr.pipeline import forms, reports, restore
from ckptmgr.pipeline import merge as merging
from ckptmgr.pipeline import verify as verifying
from ckptmgr.pipeline.handover import Handover
from ckptmgr.pipeline.header import header
from ckptmgr.pipeline.leaf_options import LeafRules
from ckptmgr.pipeline.merge import next_pack
from ckptmgr.pipeline.planner import Planner
from ckptmgr.pipeline.records import read_both, step_info
from ckptmgr.pipeline.request import LoadOptions, make_request
from ckptmgr.pipeline.verify import VerifyReport
from ckptmgr.pipeline.workers import left_in_thread
from ckptmgr.retention import KeepAll
from ckptmgr.saver import Saver
from ckptmgr.service import Service
from ckptmgr.storage.base import Storage
from ckptmgr.storage.local import LocalStorage
from ckptmgr.storage.url import ObjectStore, at, parent
from ckptmgr.tree.handlers import Handler
from ckptmgr.tree.per_process import Processes
from ckptmgr.tree.registry import Registry

_PACK_BELOW = "1MiB"


def save(  # each on its own
    path: str | os.PathLike[str],
    tree: object,
    *,
    merge: bool = False,
    overwrite: bool = False,
    metadata: Mapping[str, object] | None = None,
    leaf_options: object = (),
    handlers: Sequence[Handler] = (),
    storage: ObjectStore | None = None,
) -> StepInfo:
    """Save a tree as the directory `path`; blocks until it is durable.

    Args:
      path: where to; what it lies in must exist.
      tree: any pytree, as `CheckpointManager.save` takes it.
      merge: add the leaves of `tree` to the checkpoint at `path`, or replace them there.
        None in `tree` means 'not given'; containers must be of the same kind and, but for
        dicts, of the same length. The former checkpoint stays until the new one is durable.
      overwrite: replace the checkpoint at `path`, which stays until the new one is durable. With
        it, as with `merge`, goes what was annotated or pinned.
      metadata: plain JSON, stored with it.
      leaf_options: which leaves are stored how, as of the manager.
      handlers: for leaves of further classes, as of the manager.
      storage: how to reach an object store, where `path` is a URL.

    Raises:
      StepExists: `path` exists and neither `overwrite` nor `merge` is asked for, or it is no
        checkpoint.
      NoSuchStep: there is nothing to merge into.
      TreeMismatch: the tree cannot be merged into the one that is there, or a glob of
        `leaf_options` matches no leaf.
      InvalidOption: the options of a leaf do not fit it.
      DamagedStep: what is to be merged into is damaged.
      UnsupportedLeaf: something in the tree cannot be stored; names its path.
      StorageError: it cannot be written.
    """
    info = save_async(
        path,
        tree,
        merge=merge,
        overwrite=overwrite,
        metadata=metadata,
        leaf_options=leaf_options,
        handlers=handlers,
        storage=storage,
    ).result()
    assert info is not None
    return info


def save_async(  # as save
    path: str | os.PathLike[str],
    tree: object,
    *,
    merge: bool = False,
    overwrite: bool = False,
    metadata: Mapping[str, object] | None = None,
    leaf_options: object = (),
    handlers: Sequence[Handler] = (),
    storage: ObjectStore | None = None,
) -> SaveFuture:
    """As `save`, but returns once the snapshot is taken, with a future of the rest."""
    if merge and overwrite:
        raise InvalidOption("merge keeps what overwrite replaces: ask for one of them")
    (store, name), registry, coordinator = parent(path, storage), Registry(handlers), Coordinator()
    here = Processes(coordinator.index, coordinator.count)
    rules, below = LeafRules(leaf_options), pack_size(_PACK_BELOW)
    books = Books(store)
    saver = Saver(store, books, coordinator)
    service = Service(saver, books, coordinator, max_pending=0, writer=False)

    def planned_job() -> SaveJob:
        kept, head = None, header(None, None, metadata)
        if merge:
            raw, record, manifest = _former(store, name)
            planned = Planner(registry, below, rules, next_pack(manifest), here).plan(tree)
            kept = merging.merge(name, raw, manifest, planned.plan)
            said = header(record.step, step_info(record, "").metrics, metadata)
            head = replace(said, metadata={**record.metadata, **said.metadata})
        else:
            planned = Planner(registry, below, rules, processes=here).plan(tree)
        taken = store.taken(name)
        if taken and not (overwrite or merge):
            raise StepExists("this path exists; overwrite=True replaces a checkpoint", file=path)
        if taken:
            books.check(name)
        shown = partial(forms.saving, planned.plan, planned.values, registry)
        future = SaveFuture(head.step, service.dispatch, shown)
        contents = reports.contents(planned) if here.count > 1 else {}
        return SaveJob(name, planned, head, taken, future, Handover(service.kick), kept, contents)

    try:
        try:
            job = planned_job()
        except CheckpointError as error:
            service.tell(unplanned(None, registry, service.dispatch, name), error)
            raise
        service.save(job, limiter(None), "wait", borrow=True)
        return job.future
    finally:
        service.finish()


def _former(storage: Storage, name: str) -> tuple[bytes, CommitRecord, Manifest]:
    """The checkpoint to merge into: the bytes of its record, the record, the manifest."""
    try:
        return read_both(storage, name)
    except MissingFile as error:
        raise NoSuchStep(
            "there is no checkpoint to merge into; save it without merge=True first",
            file=f"{storage.root}/{name}",
        ) from error


def load(  # each on its own
    path: str | os.PathLike[str],
    like: object = None,
    *,
    in_flight_bytes: int | str | ByteLimiter | None = None,
    handlers: Sequence[Handler] = (),
    storage: ObjectStore | None = None,
    **options: Unpack[LoadOptions],
) -> Any:  # a tree of the caller's own types
    """Load the tree at `path`, a checkpoint or a run's newest step; blocks until it is there.

    Of other libraries it reads what Orbax, jax's pytree_serialization, eformer, safetensors and
    flax's msgpack have written, as it recognises it; those have no digests to check.

    Arguments and errors are those of `CheckpointManager.restore`.
    """
    future = load_async(
        path,
        like,
        in_flight_bytes=in_flight_bytes,
        handlers=handlers,
        storage=storage,
        **options,
    )
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def load_async(  # as load
    path: str | os.PathLike[str],
    like: object = None,
    *,
    in_flight_bytes: int | str | ByteLimiter | None = None,
    handlers: Sequence[Handler] = (),
    storage: ObjectStore | None = None,
    **options: Unpack[LoadOptions],
) -> LoadFuture:
    """As `load`, but returns at once a future of the tree."""
    theirs = foreign_path(path)
    store, name = (LocalStorage(theirs), "") if theirs else at(path, storage)
    request = make_request(like, **options)
    if request.broadcast:
        raise InvalidOption("broadcast is a manager's: CheckpointManager(...).restore()")
    registry, limit = Registry(handlers), limiter(in_flight_bytes)
    service = _reader(store)
    future = LoadFuture(None, service.dispatch)

    async def work() -> object:
        if theirs:
            found = await anyio.to_thread.run_sync(open_foreign, theirs)
            reader = ForeignReader(found, limit)
            return await restore.assembled(found.manifest, reader, request, registry, future)
        run = Catalog(store, KeepAll())
        while True:
            future.step, chosen = await anyio.to_thread.run_sync(_newest, name, run)
            try:
                async with left_in_thread(store.reading(chosen)):
                    return await restore.load(store, chosen, request, registry, limit, future)
            except DamagedStep as error:
                if future.step is None:
                    raise
                run.damage(future.step, error)
            except StepDeleted:
                if future.step is None:
                    raise  # else retention was quicker: there is a newer one

    try:
        service.load(future, work)
        return future
    finally:
        service.finish()


def load_structure(
    path: str | os.PathLike[str],
    *,
    handlers: Sequence[Handler] = (),
    storage: ObjectStore | None = None,
) -> Any:  # a tree of the caller's own structure
    """The tree at `path` without its bytes: reads the manifest, and no array data.

    A jax array is shown as a `jax.ShapeDtypeStruct`, with its saved sharding where the
    devices allow it, a numpy array as a `NumpyStruct`, a Python or numpy scalar, a str or
    bytes by its class. The whole is of the saved structure, and serves as `like`; a node of
    a class that does not come back by itself is shown as a dict of its keys.

    Raises:
      NoSuchStep, DamagedStep, UnsupportedFormat: as `load`.
    """
    theirs = foreign_path(path)
    if theirs:
        devices = tuple(jax.devices())
        return forms.describe(open_foreign(theirs).manifest, Registry(handlers), devices)
    store, name = at(path, storage)
    _, chosen = _newest(name, Catalog(store, KeepAll()))
    return restore.look(store, chosen, Registry(handlers))


def verify(
    path: str | os.PathLike[str],
    *,
    in_flight_bytes: int | str | ByteLimiter | None = None,
    storage: ObjectStore | None = None,
) -> VerifyReport:
    """Read everything of the checkpoint at `path`, or of a run's newest step, and check it.

    Blocks until that is done. Says all that is wrong, and does not raise for it.

    Raises:
      NoSuchStep: there is none.
      UnsupportedFormat: it was written by a newer version.
    """
    store, name = at(path, storage)
    service = _reader(store)
    future = LoadFuture(None, service.dispatch)

    async def work() -> object:
        run = Catalog(store, KeepAll())
        if name:
            chosen = name
        else:
            await anyio.to_thread.run_sync(run.refresh)
            steps = [*run.steps, *run.damaged]
            chosen = step_name(max(steps)) if steps else step_name(run.find(None).step or 0)
        async with left_in_thread(store.reading(chosen)):
            return await verifying.verify(store, chosen, limiter(in_flight_bytes))

    try:
        service.load(future, work)
        report: VerifyReport = future.result()
        return report
    finally:
        service.finish()


def _newest(name: str, run: Catalog) -> tuple[int | None, str]:
    """The step and name of a checkpoint, or of the newest one of a run that is whole."""
    if name:
        return None, name
    run.refresh()
    step = run.find(None).step
    return step, step_name(step or 0)


def _reader(storage: Storage) -> Service:
    """A service for a load alone."""
    books, coordinator = Books(storage), Coordinator()
    saver = Saver(storage, books, coordinator)
    return Service(saver, books, coordinator, max_pending=0, writer=False)
