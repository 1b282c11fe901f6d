"""The layout of an array: the boxes it lies in, and the chunks they are cut into. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import Sharding

from ckptmgr.errors import UnsupportedLeaf
from ckptmgr.format import zarr
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.format.zarr import Shape
from ckptmgr.tree import sharding, transfer
from ckptmgr.tree.handlers import Array
from ckptmgr.tree.per_process import Processes

_ALONE: Final = Processes()
# Several to a byte on the device: jax unpacks them, and so copies, for every host array.
_UNPACKED: Final = frozenset({"int2", "int4", "uint2", "uint4", "float4_e2m1fn"})


@dataclass(frozen=True, slots=True)
class File:
    """One data file: a chunk of an array of its own, or of the pack.

    `spans` are the parts of its bytes that have a digest, `slot` the number of the first.
    `nbytes` is its length on disk without the checksum: data, then zeros; unless a codec
    makes it another.
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

    `shard` is its index among the addressable shards; None: the whole array, by itself where
    each device has all of it, else gathered; or it lies in other processes only.
    `runs`: each chunk is one contiguous run of the box.
    `holders`: the processes that have it.
    """

    shard: int | None
    index: tuple[slice, ...]
    chunks: tuple[Cut, ...] = ()
    nbytes: int = 0
    runs: bool = True
    holders: tuple[int, ...] = (0,)


Mine: TypeAlias = "Callable[[tuple[int, ...], int], bool]"
"""Whether this process writes a chunk, given the processes that hold it and its bytes."""


class Access(Enum):
    """How the host gets at an array's bytes."""

    VIEW = auto()  # it sees them
    SEND = auto()  # the accelerator copies them to it by itself
    COPY = auto()  # jax copies them while the trainer waits


class Layout(NamedTuple):
    """How an array lies in memory: its boxes, their edges, and how the host gets at them.

    `holders`: the processes that have all of it; `shared`: whether some have the same box.
    """

    dtype: np.dtype
    shape: Shape
    nbytes: int
    sharding: ShardingEntry | None
    access: Access
    boxes: tuple[Box, ...]
    shard: Shape
    holders: tuple[int, ...] = (0,)
    shared: bool = False


def of(array: Array, path: str, processes: Processes = _ALONE) -> Layout:
    """The layout of the array of the leaf at `path`, the same in all processes.

    Raises:
      UnsupportedLeaf: it is no array of numbers; it lies on devices of one process where it
        must on all, or of several where it is one's own.
    """
    shape = tuple(array.shape)
    dtype = np.dtype(array.dtype).newbyteorder("=")
    if dtype not in zarr.NAMES:
        raise UnsupportedLeaf(f"an array of dtype {dtype} cannot be stored", leaf=path)
    nbytes = math.prod(shape) * dtype.itemsize
    whole = tuple(slice(0, n) for n in shape)
    if not isinstance(array, jax.Array):
        everywhere = tuple(range(processes.count))
        box = Box(None, whole, holders=everywhere)
        return Layout(
            dtype, shape, nbytes, None, Access.COPY, (box,), shape, everywhere, len(everywhere) > 1
        )
    _refuse_misplaced(array, path, processes)
    entry = sharding.describe(array.sharding)
    access = _access(array.sharding, dtype)
    if processes.count > 1:
        boxes, edges = _global_boxes(array), tuple(array.sharding.shard_shape(shape))
        if not all(_on_grid(box.index, edges) for box in boxes):
            raise UnsupportedLeaf("the shards of this array lie on no regular grid", leaf=path)
        holders = [set(box.holders) for box in boxes]
        common = tuple(sorted(set.intersection(*holders)))
        shared = any(len(held) > 1 for held in holders)
        return Layout(dtype, shape, nbytes, entry, access, boxes, edges, common, shared)
    if array.is_fully_replicated:
        # Seen whole it is a view at a third of the cost of its shard; where it is no view the
        # array would keep the copy that jax makes, and only the shard is let go with it.
        shard = None if access is Access.VIEW else 0
        return Layout(dtype, shape, nbytes, entry, access, (Box(shard, whole),), shape)
    boxes = tuple(
        Box(number, _within(shard.index, shape))
        for number, shard in enumerate(array.addressable_shards)
        if shard.replica_id == 0
    )
    edges = tuple(array.sharding.shard_shape(shape))
    if all(_on_grid(box.index, edges) for box in boxes):
        return Layout(dtype, shape, nbytes, entry, access, boxes, edges)
    return Layout(dtype, shape, nbytes, entry, Access.COPY, (Box(None, whole),), shape)


def _access(place: Sharding, dtype: np.dtype) -> Access:
    if dtype.name in _UNPACKED:
        return Access.COPY
    if sharding.platform(place) == "cpu":
        return Access.VIEW
    return Access.SEND if transfer.can_send(place) else Access.COPY


def _refuse_misplaced(array: jax.Array, path: str, processes: Processes) -> None:
    if processes.count > 1 and array.is_fully_addressable:
        raise UnsupportedLeaf(
            f"this array lies in process {processes.index} alone: put it on devices of all "
            "(jax.make_array_from_process_local_data), make it a numpy array where it is equal "
            "in all, or wrap it in PerProcess where it is not",
            leaf=path,
        )
    if processes.count == 1 and not array.is_fully_addressable:
        raise UnsupportedLeaf(
            "this array lies on devices of other processes too, and is no process's own: take "
            "it out of PerProcess",
            leaf=path,
        )


def _global_boxes(array: jax.Array) -> tuple[Box, ...]:
    """Each part of an array that lies in several processes, in the order of the parts."""
    holders: dict[tuple[tuple[int, int], ...], set[int]] = {}
    place: Any  # a Device, which has no stubs
    for place, index in array.sharding.devices_indices_map(array.shape).items():
        extent = tuple((s.start, s.stop) for s in _within(index, array.shape))
        holders.setdefault(extent, set()).add(place.process_index)
    here = {
        tuple((s.start, s.stop) for s in _within(shard.index, array.shape)): number
        for number, shard in reversed(list(enumerate(array.addressable_shards)))
    }
    return tuple(
        Box(
            here.get(extent),
            tuple(slice(start, stop) for start, stop in extent),
            holders=tuple(sorted(holders[extent])),
        )
        for extent in sorted(holders)
    )


def _within(index: tuple[slice, ...], shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, shape, strict=True))


def _on_grid(index: tuple[slice, ...], edges: Shape) -> bool:
    """Whether a box is one full cell of a grid of these edges."""
    return all(
        s.start % edge == 0 and s.stop - s.start == edge
        for s, edge in zip(index, edges, strict=True)
        if edge
    )


def cut(
    layout: Layout, itemsize: int, chunk: Shape, directory: str, slot: int, mine: Mine
) -> tuple[Box, ...]:
    """The boxes with the files of their chunks, whose digests have the slots from `slot` on.

    Only those that this process writes, as `mine` says of each chunk.
    """
    boxes = (_cut(layout, box, itemsize, chunk, directory, slot, mine) for box in layout.boxes)
    return tuple(box for box in boxes if box.chunks)


def _cut(
    layout: Layout, box: Box, itemsize: int, chunk: Shape, directory: str, slot: int, mine: Mine
) -> Box:
    counts = [math.ceil(n / edge) for n, edge in zip(layout.shape, chunk, strict=True)]
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
            nbytes=math.prod(chunk) * itemsize,
            slot=slot + linear,
            spans=((0, math.prod(cell.shape) * itemsize),),
        )
        part = tuple(slice(s, s + n) for s, n in zip(cell.start, cell.shape, strict=True))
        start, end = end, end + file.spans[0][1]
        if mine(box.holders, end - start):
            chunks.append(Cut(file, part, start, end))
    return replace(box, chunks=tuple(chunks), nbytes=end, runs=zarr.is_run(extent, chunk))
