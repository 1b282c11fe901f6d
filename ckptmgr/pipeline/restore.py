"""Restore: a step is read, checked and made into the tree that was asked for.

What each leaf becomes has been decided by then. Arrays are cast and placed as their
buffers arrive, many in one call to jax; the leaves are made of them at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio.to_thread
import jax
import msgspec

from ckptmgr.errors import CheckpointError, DamagedStep, MissingFile, NoSuchStep
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import CommitRecord, Manifest
from ckptmgr.format.step import COMMIT_RECORD
from ckptmgr.future import LoadFuture
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.assemble import Assembly
from ckptmgr.pipeline.broadcast import READ_DURATION
from ckptmgr.pipeline.forms import describe
from ckptmgr.pipeline.match import match
from ckptmgr.pipeline.read import Reader, Wanted
from ckptmgr.pipeline.records import read_both, read_manifest, read_record
from ckptmgr.pipeline.request import Request
from ckptmgr.pipeline.source import Found
from ckptmgr.storage.base import Storage
from ckptmgr.tree.registry import Registry


async def load(
    storage: Storage,
    name: str,
    request: Request,
    registry: Registry,
    limiter: ByteLimiter,
    future: LoadFuture,
) -> object:
    """Read the step `name` and make the tree that was asked for; tells `future` on the way.

    Returns the tree; an Unfinished one where it is to be broadcast.

    Raises:
      NoSuchStep: there is no commit record of that name.
      TreeMismatch: saved tree and request differ; nothing but the manifest was read.
      DamagedStep: bytes are missing or are not those that were saved.
      UnsupportedFormat: the step was written by a newer version.
    """
    while True:
        record = await anyio.to_thread.run_sync(_record, storage, name)
        if future.step not in (None, record.step):
            file = f"{storage.root}/{name}/{COMMIT_RECORD}"
            raise DamagedStep(f"its commit record is that of step {record.step}", file=file)
        try:
            return await _load(storage, name, record, request, registry, limiter, future)
        except DamagedStep as error:
            # A step that was overwritten under the reader is not damaged: read the new one.
            now = await anyio.to_thread.run_sync(_record, storage, name)
            if now.nonce == record.nonce:
                error.file = error.file or f"{storage.root}/{name}"
                raise
        except CheckpointError as error:
            error.file = error.file or f"{storage.root}/{name}"
            raise


def _record(storage: Storage, name: str) -> CommitRecord:
    try:
        return read_record(storage, name)
    except MissingFile as error:
        raise _no_step(storage, name) from error


def _no_step(storage: Storage, name: str) -> NoSuchStep:
    return NoSuchStep("there is no checkpoint here", file=f"{storage.root}/{name}")


async def _load(
    storage: Storage,
    name: str,
    record: CommitRecord,
    request: Request,
    registry: Registry,
    limiter: ByteLimiter,
    future: LoadFuture,
) -> object:
    manifest = await anyio.to_thread.run_sync(read_manifest, storage, name, record)
    reader = Reader(storage, name, manifest, limiter)
    return await assembled(manifest, reader, request, registry, future)


class ReadsArrays(Protocol):
    """What reads the arrays of a manifest."""

    async def read(self, wanted: Sequence[Wanted], deliver: Callable[[Found], None]) -> None:
        """Read these, and deliver each as it is there."""


async def assembled(
    manifest: Manifest,
    reader: ReadsArrays,
    request: Request,
    registry: Registry,
    future: LoadFuture,
) -> object:
    """The tree that was asked for of a manifest; tells `future` on the way.

    Raises:
      TreeMismatch, DamagedStep: as for `load`.
    """
    # A future keeps no tree of others: of `like` only the structure.
    form = (request.like.treedef, request.like.paths) if request.like else None
    future.knows(partial(describe, manifest, registry, request.devices, form))
    matched = await anyio.to_thread.run_sync(match, manifest, request, registry)
    assembly = Assembly(manifest, matched.goals, request, future)
    assembly.without_bytes()
    began = time.perf_counter()
    await reader.read(assembly.wanted, assembly.deliver)
    if request.broadcast:
        jax.monitoring.record_event_duration_secs(READ_DURATION, time.perf_counter() - began)
        return Unfinished(assembly, matched.tree)

    def finish() -> object:
        # Code of users runs here: as jax is set in their thread, and aside from the loop.
        with jax.enable_x64(request.x64), jax.default_device(request.default_device):
            return matched.tree(assembly.finish())

    return await anyio.to_thread.run_sync(finish)


class Unfinished:
    """A tree of which this process has read its share; the rest comes by broadcast."""

    def __init__(self, assembly: Assembly, tree: Callable[[Mapping[int, object]], object]) -> None:
        self._assembly = assembly
        self._tree = tree

    @property
    def to_send(self) -> bytes:
        """What is to be broadcast; it must be equal in all processes."""
        return digest(msgspec.json.encode(self._assembly.to_send())).encode()

    def finish(self) -> object:
        """Broadcast, and make the tree. Every process calls it, in the thread that trains."""
        self._assembly.broadcast()
        return self._tree(self._assembly.finish())


def look(storage: Storage, name: str, registry: Registry) -> object:
    """The tree of a step with the form of each leaf; reads its record and manifest, no more.

    Raises:
      NoSuchStep, DamagedStep, UnsupportedFormat: as for `load`.
    """
    try:
        _, _, manifest = read_both(storage, name)
    except MissingFile as error:
        raise _no_step(storage, name) from error
    return describe(manifest, registry, tuple(jax.devices()))
