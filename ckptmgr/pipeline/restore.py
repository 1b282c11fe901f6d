"""Restore: a step is read, checked and made into the tree that was asked for.

What each leaf becomes has been decided by then. Arrays are cast and placed as their
buffers arrive, many in one call to jax; the leaves are made of them at the end.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import anyio.to_thread
import jax
import numpy as np
from jax.sharding import Sharding

from ckptmgr.errors import DamagedStep, MissingFile, NoSuchStep
from ckptmgr.format.manifest import CommitRecord, Manifest
from ckptmgr.format.zarr import DTYPES
from ckptmgr.future import LoadFuture, Progress
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.match import Goal, Request, describe, match, python_value
from ckptmgr.pipeline.read import Found, Reader, Wanted, read_manifest, read_record
from ckptmgr.storage.base import Storage
from ckptmgr.tree import structure
from ckptmgr.tree.handlers import Array
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

    Raises:
      NoSuchStep: there is no commit record of that name.
      TreeMismatch: saved tree and request differ; nothing but the manifest was read.
      DamagedStep: bytes are missing or are not those that were saved.
      UnsupportedFormat: the step was written by a newer version.
    """
    while True:
        record = await _record(storage, name)
        try:
            return await _load(storage, name, record, request, registry, limiter, future)
        except DamagedStep:
            # A step that was overwritten under the reader is not damaged: read the new one.
            if (await _record(storage, name)).nonce == record.nonce:
                raise


async def _record(storage: Storage, name: str) -> CommitRecord:
    try:
        return await anyio.to_thread.run_sync(read_record, storage, name)
    except MissingFile as error:
        raise NoSuchStep("there is no checkpoint here", file=f"{storage.root}/{name}") from error


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
    form = request.like and replace(request.like, leaves=[])  # a future keeps no tree of others
    future.knows(partial(describe, manifest, form))
    assembly = _Assembly(manifest, match(manifest, request, registry), request, future)
    assembly.deliver(assembly.without_bytes())
    reader = Reader(storage, name, manifest.packs, limiter)
    await reader.read(assembly.wanted, assembly.deliver)
    leaves = assembly.finish()
    if request.like is not None:
        return jax.tree_util.tree_unflatten(request.like.treedef, leaves)
    return structure.build(manifest.structure, leaves)


class _Assembly:
    """Arrays as they arrive, cast and placed, until the leaves can be made of them."""

    def __init__(
        self,
        manifest: Manifest,
        goals: Sequence[Goal],
        request: Request,
        future: LoadFuture,
    ) -> None:
        self._manifest = manifest
        self._goals = {goal.leaf: goal for goal in goals}
        self._request = request
        self._future = future
        self._arrays: dict[int, dict[str, Array]] = defaultdict(dict)
        self._mutex = threading.Lock()
        self.wanted = wanted = self._wanted()
        future.progress = Progress(
            bytes_total=sum(want.nbytes for want in wanted),
            leaves_done=len(goals) - len({want.leaf for want in wanted}),
            leaves_total=len(goals),
        )

    def _wanted(self) -> list[Wanted]:
        """Every array that has bytes to read."""
        return [
            Wanted(number, leaf.path, array, nbytes)
            for number, leaf in enumerate(self._manifest.leaves)
            if number in self._goals
            for array in leaf.arrays
            if (nbytes := array.nbytes)
        ]

    def without_bytes(self) -> Found:
        """The arrays that need no reading: empty ones, and those made of a Python number."""
        found: dict[tuple[int, str], np.ndarray] = {}
        for number, goal in self._goals.items():
            entry = self._manifest.leaves[number]
            for array in entry.arrays:
                if not array.nbytes:
                    found[number, array.name] = np.empty(array.shape, DTYPES[array.dtype])
            if goal.dtype is not None and not entry.arrays:
                found[number, ""] = np.array(python_value(entry, {}), goal.dtype)
        return found

    def deliver(self, found: Found) -> None:
        """Cast and place a group of arrays; their buffer is jax's or the caller's afterwards."""
        self._place(found)
        read = [array for array in found.values() if array.nbytes]
        with self._mutex:
            done = self._future.progress
            self._future.progress = replace(
                done,
                bytes_done=min(done.bytes_total, done.bytes_done + sum(a.nbytes for a in read)),
                leaves_done=min(done.leaves_total, done.leaves_done + len(read)),
            )

    def _place(self, found: Found) -> None:
        batches: dict[Sharding | None, list[tuple[int, str, np.ndarray]]] = defaultdict(list)
        for (number, name), host in found.items():
            goal = self._goals[number]
            array = host if goal.dtype is None else host.astype(goal.dtype, copy=False)
            if goal.on_device:
                batches[goal.sharding].append((number, name, array))
            else:
                # Arrays that share a buffer part here: the caller may write to these.
                self._arrays[number][name] = array.copy() if len(found) > 1 else array
        with jax.enable_x64(True), jax.default_device(self._request.default_device):
            for sharding, batch in batches.items():
                # One call for all: device_put costs 30 us a leaf, three times that one by one.
                placed = jax.device_put([array for *_, array in batch], sharding)
                for (number, name, _), array in zip(
                    batch, jax.block_until_ready(placed), strict=True
                ):
                    self._arrays[number][name] = array

    def finish(self) -> list[object]:
        """The leaves, in the order of the goals."""
        leaves = []
        for goal in self._goals.values():
            try:
                leaves.append(goal.finish(self._arrays[goal.leaf]))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                entry = self._manifest.leaves[goal.leaf]
                raise DamagedStep(
                    f"a leaf stored by handler {entry.handler!r} cannot be made: {error}",
                    leaf=entry.path,
                ) from error
        return leaves
