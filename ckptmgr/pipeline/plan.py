"""The plan of a save: which bytes of which leaf go into which file, as frozen values.

A plan depends on the structure and on each leaf's shape, dtype and sharding, never on
values, so that of an unchanged tree is made once. Small arrays go end to end into a
pack, large ones are cut into chunks of their own. Each digest that the manifest will
hold has a number, its slot; each file knows the slots of the bytes it holds. Several
processes make the same plan but for what is PerProcess, and each keeps its own files.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from ckptmgr.format import zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    ArrayEntry,
    Grid,
    LeafEntry,
    Node,
    Pack,
    PackedBox,
    ShardingEntry,
)
from ckptmgr.format.scalar import JSON
from ckptmgr.format.zarr import RAW, Codec, Shape
from ckptmgr.pipeline.layout import Access, Box, File
from ckptmgr.tree.handlers import Array, Handler
from ckptmgr.tree.structure import Places

Arrays = Mapping[str, Array]


# Of these there are thousands, never part of a cycle: the garbage collector, which looks at all
# that jax keeps as well once there are so many more, need not count them.
class Packed(msgspec.Struct, frozen=True, gc=False):
    """Where a small array, or a part of one that no process holds whole, lies in a pack."""

    pack: int
    offset: int
    part: tuple[tuple[int, int], ...] | None


class PlannedArray(msgspec.Struct, frozen=True, gc=False):
    """Where an array of a leaf goes: into files of its own, or into a pack.

    `shape`, `dtype` and `nbytes` are what is stored; of a part of a small array that no
    process holds whole they are the part's, and `whole` is the shape of the array.
    `access`: how the host gets at the array's memory. `raw`: each chunk is
    stored as a run of these very bytes, which nobody changes: what a handler of the user's
    made may be seen elsewhere. `boxes` are those that this process writes.
    """

    leaf: int
    name: str
    dtype: np.dtype
    shape: Shape
    nbytes: int
    sharding: ShardingEntry | None
    access: Access
    raw: bool
    boxes: tuple[Box, ...]
    slot: int
    whole: Shape
    chunk: Shape | None = None
    codec: Codec = RAW
    packed: Packed | None = None

    def metadata(self) -> bytes:
        """The zarr.json of an array that has files of its own."""
        return zarr.array_metadata(self.dtype, self.shape, self.chunk or (), self.codec)


def _entry(parts: Sequence[PlannedArray], digests: Sequence[str]) -> ArrayEntry:
    """What the manifest says of an array, given the digests of all slots."""
    first = parts[0]
    grid: Grid | None = None
    if first.chunk is not None:
        count = zarr.cells(first.shape, first.chunk)
        proofs = tuple(digests[first.slot : first.slot + count])
        grid = Grid(first.chunk, proofs, first.codec, digest(first.metadata()))
    packed = tuple(
        PackedBox(part.packed.pack, part.packed.offset, digests[part.slot], part.packed.part)
        for part in parts
        if part.packed
    )
    return ArrayEntry(
        zarr.NAMES[first.dtype], first.whole, first.name, first.sharding, grid, packed
    )


def _entries(arrays: Sequence[PlannedArray], digests: Sequence[str]) -> tuple[ArrayEntry, ...]:
    if len(arrays) == 1:  # nearly always
        return (_entry(arrays, digests),)
    named = itertools.groupby(arrays, lambda array: array.name)
    return tuple(_entry(list(parts), digests) for _, parts in named)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole save, as one process sees it.

    Attributes:
      nodes, aux: the places of nodes of registered classes, and their aux data: the one part
        of a structure that may change while the treedef stays equal.
      private: the numbers of the leaves that this process has for itself, where there are
        several; all others are the same in all.
      arrays: those of each leaf; `own` have files of their own, `packed` lie in the packs
        that this process writes, in the order of their offsets.
      packs: of what all processes have; `private_pack` of what this one has for itself.
      slot_leaf: the leaf that each slot belongs to; `shared_slots` of them are the same in
        all processes, `mine` are those that this process writes.
      nbytes: of the whole tree; `mine_nbytes` of what this process writes.
      layout: a digest of where everything lies that is the same in all processes.
    """

    structure: Node
    nodes: Places
    aux: tuple[JSON, ...]
    private: frozenset[int]
    paths: tuple[str, ...]
    handlers: tuple[Handler, ...]
    arrays: tuple[tuple[PlannedArray, ...], ...]
    own: tuple[PlannedArray, ...]
    packed: tuple[PlannedArray, ...]
    packs: tuple[Pack, ...]
    private_pack: Pack | None
    pack_files: tuple[File, ...]
    slot_leaf: tuple[int, ...]
    shared_slots: int
    mine: Sequence[int]
    nbytes: int
    mine_nbytes: int
    layout: str

    @property
    def least_nbytes(self) -> int:
        """The bytes that it needs on disk in any case: what zstd makes of the rest is unknown."""
        return self.nbytes - sum(a.nbytes for a in self.own if a.codec.zstd is not None)

    def entries(self, values: Sequence[JSON], digests: Sequence[str]) -> tuple[LeafEntry, ...]:
        """What the manifest says of each leaf."""
        return tuple(
            LeafEntry(path, handler.name, value, _entries(arrays, digests))
            for path, handler, value, arrays in zip(
                self.paths, self.handlers, values, self.arrays, strict=True
            )
        )


class Planned(NamedTuple):
    """A plan, and what it does not depend on: each leaf's arrays and its JSON."""

    plan: Plan
    arrays: list[Arrays]
    values: list[JSON]
