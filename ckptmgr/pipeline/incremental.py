"""Incremental saves: files of the newest step that hold what is to be written are linked.

What each place held then is read from that step's manifest; what it is to hold now is
digested in any case. Where all places of a file agree, and its zarr.json would be the
same, the file is. A linked file is one copy on the disk, so the store writes anew what
too many steps share. The step that lends is kept there meanwhile by a shared lock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio.to_thread
from absl import logging

from ckptmgr.errors import DamagedStep, StepDeleted, StorageError, UnsupportedFormat
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import Manifest
from ckptmgr.format.zarr import CHECKSUM_BYTES, RAW
from ckptmgr.pipeline.layout import File
from ckptmgr.pipeline.plan import Plan, PlannedArray
from ckptmgr.pipeline.records import read_both
from ckptmgr.pipeline.workers import left_in_thread
from ckptmgr.storage.base import Attempt, Storage


@dataclass(frozen=True, slots=True)
class Former:
    """A step that lends its files.

    `digests`: what each slot of the plan held there; "" where it lay elsewhere, or nowhere.
    """

    name: str
    digests: tuple[str, ...]

    def lends(
        self, attempt: Attempt, file: File, array: PlannedArray | None, found: list[str]
    ) -> bool:
        """Link a file into the attempt, if it is to hold just this; False: write it."""
        if tuple(found) != self.digests[file.slot : file.slot + len(found)]:
            return False
        coded = array is not None and array.codec != RAW
        nbytes = None if coded else file.nbytes + CHECKSUM_BYTES
        return attempt.link(f"{self.name}/{file.path}", file.path, nbytes)


def same_places(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """For each slot of a plan the digest of what a manifest has in that very place. Pure."""
    arrays = {(leaf.path, array.name): array for leaf in manifest.leaves for array in leaf.arrays}
    packs = (*plan.packs, *filter(None, [plan.private_pack]))
    same = {pack.process for pack in packs if pack in manifest.packs}
    packed = {
        (box.pack, box.offset): (array.nbytes_of(box), box.digest)
        for array in arrays.values()
        for box in array.packed
    }
    digests = [""] * len(plan.slot_leaf)
    for array in itertools.chain.from_iterable(plan.arrays):
        former = arrays.get((plan.paths[array.leaf], array.name))
        if array.packed is not None:
            nbytes, proof = packed.get((array.packed.pack, array.packed.offset), (-1, ""))
            if array.packed.pack in same and nbytes == array.nbytes:
                digests[array.slot] = proof
        elif former and former.grid and former.grid.metadata == digest(array.metadata()):
            proofs = former.grid.digests
            digests[array.slot : array.slot + len(proofs)] = proofs
    return tuple(digests)


@contextlib.asynccontextmanager
async def lending(storage: Storage, name: str | None, plan: Plan) -> AsyncIterator[Former | None]:
    """The step that lends its files, kept there meanwhile; None where it cannot."""
    async with contextlib.AsyncExitStack() as stack:
        former: Former | None = None
        if name is not None:
            try:
                await stack.enter_async_context(left_in_thread(storage.reading(name)))
                former = await anyio.to_thread.run_sync(_former, storage, name, plan)
            except (DamagedStep, StorageError, StepDeleted, UnsupportedFormat) as error:
                logging.warning("%s lends no files, all are written: %s", name, error)
        yield former


def _former(storage: Storage, name: str, plan: Plan) -> Former:
    _, _, manifest = read_both(storage, name)
    return Former(name, same_places(plan, manifest))
