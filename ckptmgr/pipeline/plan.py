"""The plan of a save: which bytes of which leaf go into which file. Pure.

A plan depends on the structure and on each leaf's shape, dtype and sharding, never on
values, so that of an unchanged tree is made once. Small arrays go end to end into a
pack, large ones are cut into chunks of their own. Each digest that the manifest will
hold has a number, its slot; each file knows the slots of the bytes it holds.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import jax
import numpy as np

from ckptmgr.errors import UnsupportedLeaf
from ckptmgr.format import keypath, zarr
from ckptmgr.format.manifest import (
    ALIGNMENT,
    ArrayEntry,
    Grid,
    Node,
    Pack,
    PackedBox,
    ShardingEntry,
)
from ckptmgr.format.step import ARRAYS, PACKS
from ckptmgr.format.zarr import CHUNK_BYTES, Shape
from ckptmgr.tree import sharding, structure
from ckptmgr.tree.handlers import Array, Handler
from ckptmgr.tree.registry import Registry, unsupported
from ckptmgr.tree.structure import PyTreeDef

# Several to a byte on the device: jax unpacks them, and so copies, for every host array.
_UNPACKED: Final = frozenset({"int2", "int4", "uint2", "uint4", "float4_e2m1fn"})


@dataclass(frozen=True, slots=True)
class File:
    """One data file: a chunk of an array of its own, or of the pack.

    `spans` are the parts of its bytes that have a digest, `slot` the number of the first.
    `nbytes` is its length on disk without the checksum: data, then zeros.
    """

    path: str
    nbytes: int
    slot: int
    spans: tuple[tuple[int, int], ...]


class Cut(NamedTuple):
    """A chunk of a box: its file, and its part of the box, as slices and as a run of bytes."""

    file: File
    part: tuple[slice, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an array that lies on one device, and the files that its chunks go to.

    `shard` is its index among the addressable shards; None: the whole array, gathered.
    """

    shard: int | None
    index: tuple[slice, ...]
    chunks: tuple[Cut, ...] = ()
    nbytes: int = 0


class PlannedArray(NamedTuple):
    """Where an array of a leaf goes: into files of its own, or `offset` bytes into the pack."""

    leaf: int
    name: str
    dtype: np.dtype
    shape: Shape
    nbytes: int
    sharding: ShardingEntry | None
    viewable: bool
    boxes: tuple[Box, ...]
    slot: int = 0
    chunk: Shape | None = None
    offset: int = 0

    def entry(self, digests: Sequence[str]) -> ArrayEntry:
        """What the manifest says of it, given the digests of all slots."""
        place: dict[str, object] = {}
        if self.chunk is not None:
            count = zarr.cells(self.shape, self.chunk)
            place["grid"] = Grid(self.chunk, tuple(digests[self.slot : self.slot + count]))
        elif self.nbytes:
            place["packed"] = (PackedBox(0, self.offset, digests[self.slot]),)
        return ArrayEntry(zarr.NAMES[self.dtype], self.shape, self.name, self.sharding, **place)  # type: ignore[arg-type]  # the two fields above


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole save.

    Attributes:
      arrays: those of each leaf; `own` have files of their own, `packed` lie in the pack,
        in the order of their offsets.
      slot_leaf: the leaf that each slot belongs to.
    """

    structure: Node
    paths: tuple[str, ...]
    handlers: tuple[Handler, ...]
    arrays: tuple[tuple[PlannedArray, ...], ...]
    own: tuple[PlannedArray, ...]
    packed: tuple[PlannedArray, ...]
    pack: Pack | None
    pack_files: tuple[File, ...]
    slot_leaf: tuple[int, ...]
    nbytes: int
    treedef: PyTreeDef

    def describe(self) -> object:
        """The tree with a `jax.ShapeDtypeStruct` for each array, else the handler's name."""
        leaves = [
            jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype) if arrays else handler.name
            for arrays, handler in zip(self.arrays, self.handlers, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class Planner:
    """Makes plans and keeps the last few.

    Args:
      registry: the handlers.
      pack_below: arrays of fewer bytes than this go into the pack.
    """

    _KEPT = 4

    def __init__(self, registry: Registry, pack_below: int) -> None:
        self._registry = registry
        self._pack_below = pack_below
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def plan(self, tree: object) -> tuple[Plan, list[object]]:
        """The plan for a tree, and its leaves.

        Raises:
          UnsupportedLeaf: something in it cannot be stored; the error has its path.
        """
        leaves, treedef = structure.flatten(tree)
        candidate = self._registry.candidate
        keys: list[Hashable] = []
        for leaf in leaves:
            handler = candidate(leaf)
            keys.append(handler and (handler, handler.key(leaf)))
        # Its text too: to Python, and so to a treedef, the keys 1, True and 1.0 are the same.
        key = (treedef, repr(treedef), tuple(keys))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(tree, leaves, treedef)
            if len(self._plans) > self._KEPT:
                self._plans.popitem(last=False)
        return plan, leaves

    def _make(self, tree: object, leaves: list[object], treedef: PyTreeDef) -> Plan:
        paths = structure.key_paths(tree)
        handlers = []
        for leaf, path in zip(leaves, paths, strict=True):
            handler = self._registry.find(leaf)
            if handler is None:
                raise unsupported(leaf, path)
            handlers.append(handler)
        draft = _Draft(paths, self._pack_below)
        for number, (leaf, handler) in enumerate(zip(leaves, handlers, strict=True)):
            for name, array in handler.arrays(leaf).items():
                draft.add(number, name, array)
        return draft.finish(treedef, tuple(handlers))


class _Draft:
    """A plan in the making. The slots of what is packed come after all others, in pack order."""

    def __init__(self, paths: list[str], pack_below: int) -> None:
        self._paths = paths
        self._pack_below = pack_below
        self._arrays: list[list[PlannedArray]] = [[] for _ in paths]
        self._small: list[tuple[PlannedArray, int]] = []  # and its place among its leaf's arrays
        self._layouts: dict[Hashable, _Layout] = {}
        self._slot_leaf: list[int] = []
        self._directories: dict[str, str] = {}

    def add(self, leaf: int, name: str, array: Array) -> None:
        """Place an array: nowhere if it is empty, else in the pack or in chunks of its own."""
        dtype, shape = np.dtype(array.dtype).newbyteorder("="), tuple(array.shape)
        layout = self._layout(array, shape, self._paths[leaf])
        nbytes = math.prod(shape) * dtype.itemsize
        planned = PlannedArray(
            leaf, name, dtype, shape, nbytes, layout.sharding, layout.viewable, layout.boxes
        )
        if 0 < nbytes < self._pack_below:
            self._small.append((planned, len(self._arrays[leaf])))
        elif nbytes:
            planned = self._chunked(planned, layout.shard)
            self._slot_leaf.extend([leaf] * zarr.cells(shape, planned.chunk or ()))
        self._arrays[leaf].append(planned)

    def _layout(self, array: Array, shape: Shape, path: str) -> _Layout:
        """The layout of an array, looked up where many are alike."""
        if not isinstance(array, jax.Array):
            return _on_host(shape)
        key = (array.sharding, array.dtype, shape)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = _on_devices(array, path)
        return found

    def _chunked(self, array: PlannedArray, shard: Shape) -> PlannedArray:
        path = self._paths[array.leaf]
        directory = keypath.directory(path, array.name)
        other = self._directories.setdefault(directory, path)
        if other != path:
            raise UnsupportedLeaf(f"its directory is that of {other!r}; rename one", leaf=path)
        chunk = zarr.chunk_shape(array.shape, shard, array.dtype.itemsize)
        array = array._replace(chunk=chunk, slot=len(self._slot_leaf))
        boxes = tuple(_cut(array, box, chunk, f"{ARRAYS}/{directory}") for box in array.boxes)
        return array._replace(boxes=boxes)

    def finish(self, treedef: PyTreeDef, handlers: tuple[Handler, ...]) -> Plan:
        """Fill the pack and put everything together."""
        pack, offsets = fill_pack([array.nbytes for array, _ in self._small])
        placed: list[PlannedArray] = []
        for (array, place), offset in zip(self._small, offsets, strict=True):
            placed.append(array._replace(offset=offset, slot=len(self._slot_leaf)))
            self._arrays[array.leaf][place] = placed[-1]
            self._slot_leaf.append(array.leaf)
        return Plan(
            treedef=treedef,
            structure=structure.describe(treedef),
            paths=tuple(self._paths),
            handlers=handlers,
            arrays=tuple(map(tuple, self._arrays)),
            own=tuple(array for leaf in self._arrays for array in leaf if array.chunk is not None),
            packed=tuple(placed),
            pack=pack,
            pack_files=_pack_files(pack, placed),
            slot_leaf=tuple(self._slot_leaf),
            nbytes=sum(array.nbytes for leaf in self._arrays for array in leaf),
        )


def fill_pack(sizes: Sequence[int]) -> tuple[Pack | None, list[int]]:
    """Where arrays of these sizes lie in the pack: aligned, in order, none across two chunks.

    With n = ceil(total / 16 MiB) chunks, each is filled until it holds total / n: n
    always suffice, and together they waste at most n times the largest array.
    """
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    total = sum(padded)
    if not total:
        return None, []
    capacity = math.ceil(total / math.ceil(total / CHUNK_BYTES)) + max(padded)
    fills, starts = [0], []
    for size in padded:
        if fills[-1] + size > capacity:
            fills.append(0)
        starts.append((len(fills) - 1, fills[-1]))
        fills[-1] += size
    chunk = max(fills)
    pack = Pack(process=0, nbytes=(len(fills) - 1) * chunk + fills[-1], chunk=chunk)
    return pack, [cell * chunk + start for cell, start in starts]


def _pack_files(pack: Pack | None, arrays: Sequence[PlannedArray]) -> tuple[File, ...]:
    """The files of the pack, each with the spans of the arrays in it."""
    if pack is None:
        return ()
    inside: dict[int, list[PlannedArray]] = {}
    for array in arrays:
        inside.setdefault(array.offset // pack.chunk, []).append(array)
    return tuple(
        File(
            path=f"{PACKS}/{pack.process}/c.{cell}",
            nbytes=pack.chunk,
            slot=members[0].slot,
            spans=tuple((a.offset % pack.chunk, a.offset % pack.chunk + a.nbytes) for a in members),
        )
        for cell, members in inside.items()
    )


class _Layout(NamedTuple):
    """How an array lies in memory: its boxes, their edges, and whether they can be viewed."""

    sharding: ShardingEntry | None
    viewable: bool
    boxes: tuple[Box, ...]
    shard: Shape


def _on_host(shape: Shape) -> _Layout:
    return _Layout(None, False, (Box(None, tuple(slice(0, n) for n in shape)),), shape)


def _on_devices(array: jax.Array, path: str) -> _Layout:
    shape = tuple(array.shape)
    whole = tuple(slice(0, n) for n in shape)
    if not array.is_fully_addressable:
        raise UnsupportedLeaf(
            "this array lies on devices of other processes too; saving from several processes "
            "is not supported by this version",
            leaf=path,
        )
    entry = sharding.describe(array.sharding)
    viewable = (
        sharding.platform(array.sharding) == "cpu" and np.dtype(array.dtype).name not in _UNPACKED
    )
    if array.is_fully_replicated:
        return _Layout(entry, viewable, (Box(0, whole),), shape)
    boxes = tuple(
        Box(
            number, tuple(slice(*s.indices(n)[:2]) for s, n in zip(shard.index, shape, strict=True))
        )
        for number, shard in enumerate(array.addressable_shards)
        if shard.replica_id == 0
    )
    edges = tuple(array.sharding.shard_shape(shape))
    if all(_on_grid(box.index, edges) for box in boxes):
        return _Layout(entry, viewable, boxes, edges)
    return _Layout(entry, False, (Box(None, whole),), shape)


def _on_grid(index: tuple[slice, ...], edges: Shape) -> bool:
    """Whether a box is one full cell of a grid of these edges."""
    return all(
        s.start % edge == 0 and s.stop - s.start == edge
        for s, edge in zip(index, edges, strict=True)
        if edge
    )


def _cut(array: PlannedArray, box: Box, chunk: Shape, directory: str) -> Box:
    """The box with the files of its chunks; each chunk is one contiguous run of the box."""
    counts = [math.ceil(n / edge) for n, edge in zip(array.shape, chunk, strict=True)]
    extent = tuple(s.stop - s.start for s in box.index)
    chunks: list[Cut] = []
    end = 0
    for cell in zarr.grid(extent, chunk):
        index = [
            (s.start + start) // edge
            for s, start, edge in zip(box.index, cell.start, chunk, strict=True)
        ]
        linear = 0
        for i, count in zip(index, counts, strict=True):
            linear = linear * count + i
        file = File(
            path=f"{directory}/{'.'.join(('c', *map(str, index)))}",
            nbytes=math.prod(chunk) * array.dtype.itemsize,
            slot=array.slot + linear,
            spans=((0, math.prod(cell.shape) * array.dtype.itemsize),),
        )
        part = tuple(slice(s, s + n) for s, n in zip(cell.start, cell.shape, strict=True))
        start, end = end, end + file.spans[0][1]
        chunks.append(Cut(file, part, start, end))
    return replace(box, chunks=tuple(chunks), nbytes=end)
