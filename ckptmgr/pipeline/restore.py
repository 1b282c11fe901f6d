"""Restore: a step is read, checked and made into the tree that was asked for.

What each leaf becomes has been decided by then. Arrays are cast and placed as their
buffers arrive, many in one call to jax; the leaves are made of them at the end.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio.to_thread
import jax
import numpy as np
from jax.sharding import Sharding

from ckptmgr.errors import DamagedStep, MissingFile, NoSuchStep, UndecodableLeaf
from ckptmgr.format.manifest import ArrayEntry, CommitRecord, Manifest
from ckptmgr.format.zarr import DTYPES, Shape
from ckptmgr.future import LoadFuture, Progress
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.forms import describe, python_value
from ckptmgr.pipeline.match import Goal, Placement, match
from ckptmgr.pipeline.read import (
    Found,
    Reader,
    Wanted,
    aligned,
    read_both,
    read_manifest,
    read_record,
)
from ckptmgr.pipeline.request import Request
from ckptmgr.storage.base import Storage
from ckptmgr.tree.handlers import Array
from ckptmgr.tree.registry import Registry

_ON_HOST: Final = Placement()


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
        record = await anyio.to_thread.run_sync(_record, storage, name)
        try:
            return await _load(storage, name, record, request, registry, limiter, future)
        except DamagedStep:
            # A step that was overwritten under the reader is not damaged: read the new one.
            now = await anyio.to_thread.run_sync(_record, storage, name)
            if now.nonce == record.nonce:
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
    # A future keeps no tree of others: of `like` only the structure.
    form = (request.like.treedef, request.like.paths) if request.like else None
    future.knows(partial(describe, manifest, registry, request.devices, form))
    matched = await anyio.to_thread.run_sync(match, manifest, request, registry)
    assembly = _Assembly(manifest, matched.goals, request, future)
    assembly.deliver(assembly.without_bytes())
    reader = Reader(storage, name, manifest.packs, limiter)
    await reader.read(assembly.wanted, assembly.deliver)

    def finish() -> object:
        # Code of users runs here: as jax is set in their thread, and aside from the loop.
        with jax.enable_x64(request.x64), jax.default_device(request.default_device):
            return matched.tree(assembly.finish())

    return await anyio.to_thread.run_sync(finish)


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
            Wanted(number, leaf.path, array, nbytes, self._copied(number, array))
            for number, leaf in enumerate(self._manifest.leaves)
            if number in self._goals
            for array in leaf.arrays
            if (nbytes := array.nbytes)
        ]

    def _copied(self, number: int, array: ArrayEntry) -> int:
        """The bytes that `_place` allocates for an array beside the buffer it was read into."""
        place = self._goals[number].places.get(array.name, _ON_HOST)
        shape, dtype = place.shape or array.shape, place.dtype or DTYPES[array.dtype]
        nbytes = math.prod(shape) * dtype.itemsize
        recast = shape != array.shape or dtype != DTYPES[array.dtype]
        return nbytes * (recast + (bool(array.packed) and not place.on_device))

    def without_bytes(self) -> Found:
        """The arrays that need no reading: empty ones, and those made of a Python number."""
        found: dict[tuple[int, str], np.ndarray] = {}
        for number, goal in self._goals.items():
            entry = self._manifest.leaves[number]
            for array in entry.arrays:
                if not array.nbytes:
                    found[number, array.name] = np.empty(array.shape, DTYPES[array.dtype])
            if goal.places and not entry.arrays:
                found[number, ""] = np.array(python_value(entry, {}), goal.places[""].dtype)
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
            place = self._goals[number].places.get(name, _ON_HOST)
            array = resized(host, place.shape)
            if place.dtype is not None:
                array = array.astype(place.dtype, copy=False)
            if place.on_device:
                batches[place.sharding].append((number, name, array))
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

    def finish(self) -> dict[int, object]:
        """The leaves by their numbers.

        Raises:
          UndecodableLeaf: handlers refuse what they stored; lists every leaf.
        """
        leaves, faults = {}, []
        for number, goal in self._goals.items():
            try:
                leaves[number] = goal.finish(self._arrays[number])
            except Exception as error:  # noqa: BLE001  # of a user's decoder; all are raised below
                faults.append((self._manifest.leaves[number], error))
        if faults:
            first, cause = faults[0]
            raise UndecodableLeaf(
                "these leaves cannot be made of what was stored:"
                + "".join(f"\n  {e.path!r}, handler {e.handler!r}: {why!r}" for e, why in faults),
                leaf=first.path,
            ) from cause
        return leaves


def resized(array: np.ndarray, shape: Shape | None) -> np.ndarray:
    """The array padded with zeros, or cut at the end, to a shape of as many axes."""
    if shape is None or array.shape == shape:
        return array
    size = math.prod(shape) * array.dtype.itemsize
    found = aligned(size).view(array.dtype).reshape(shape)
    found[...] = np.zeros((), array.dtype)
    both = tuple(slice(min(n, m)) for n, m in zip(array.shape, shape, strict=True))
    found[both] = array[both]
    return found
