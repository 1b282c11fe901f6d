"""The draft: a plan in the making, array by array. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable
from typing import Any, Final

import jax
import msgspec
import numpy as np
from msgspec.structs import replace

from ckptmgr.errors import InvalidOption, UnsupportedLeaf
from ckptmgr.format import keypath, zarr
from ckptmgr.format.chunks import CHUNK_BYTES
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import Pack
from ckptmgr.format.step import ARRAYS
from ckptmgr.format.zarr import RAW
from ckptmgr.pipeline import layout, pack
from ckptmgr.pipeline.layout import Box, File, Layout
from ckptmgr.pipeline.leaf_options import LeafOptions
from ckptmgr.pipeline.plan import Packed, Plan, PlannedArray
from ckptmgr.pipeline.spread import Spread
from ckptmgr.tree.builtin import IMMUTABLE, NUMBERS
from ckptmgr.tree.casting import can_store
from ckptmgr.tree.handlers import Array, Handler
from ckptmgr.tree.per_process import Processes

_ALONE: Final = Processes()


class _Small(msgspec.Struct, frozen=True, gc=False):
    """What is to lie in the pack of the process `owner`: an array, or a part of one."""

    leaf: int
    name: str
    dtype: np.dtype
    nbytes: int
    laid: Layout
    owner: int
    box: Box | None = None


class Draft:
    """A plan in the making.

    Shared leaves come first, then this process's own. The slots of what is packed come after
    those of what is not, pack by pack, in the order of the offsets.

    Args:
      paths, handlers: of the leaves.
      pack_below: arrays of fewer bytes than this go into a pack.
      number: that of the first pack; there is one for each process.
      processes: which this is, of how many.
      spread: which of them writes what.
    """

    def __init__(
        self,
        paths: list[str],
        handlers: list[Handler],
        pack_below: int,
        number: int,
        processes: Processes,
        spread: Spread,
    ) -> None:
        self._paths = paths
        self._handlers = handlers
        self._pack_below = pack_below
        self._number = number
        self._processes = processes
        self._spread = spread
        self._private = False
        self._arrays: list[list[PlannedArray]] = [[] for _ in paths]
        self._small: list[_Small] = []
        self._layouts: dict[Hashable, Layout] = {}
        self._slot_leaf: list[int] = []
        self._directories: dict[str, str] = {}
        self._packs: list[Pack] = []
        self._files: list[File] = []
        self._packed: list[PlannedArray] = []

    def add(self, leaf: int, name: str, array: Array, options: LeafOptions) -> None:
        """Place an array: nowhere if it is empty, else in a pack or in chunks of its own."""
        if type(name) is not str or name.encode(errors="replace").decode() != name:
            raise UnsupportedLeaf(
                f"an array is named by a str of Unicode, not {name!r}", leaf=self._paths[leaf]
            )
        laid = self._layout(array, self._paths[leaf])
        dtype, nbytes = laid.dtype, laid.nbytes
        if options.dtype is not None:
            dtype = self._stored_as(leaf, laid.dtype, options)
            nbytes = math.prod(laid.shape) * dtype.itemsize
        limit = self._spread.chunk_bytes if laid.shared else CHUNK_BYTES
        below = min(self._pack_below, limit)
        if nbytes and options.packed(nbytes, below, self._paths[leaf]):
            self._pack(leaf, name, dtype, nbytes, laid)
            return
        planned = _planned(leaf, name, dtype, nbytes, laid, len(self._slot_leaf))
        if nbytes:
            planned = self._chunked(planned, laid, options, limit)
            self._slot_leaf.extend([leaf] * zarr.cells(laid.shape, planned.chunk or ()))
        self._arrays[leaf].append(planned)

    def _layout(self, array: Array, path: str) -> Layout:
        """The layout of an array, looked up where many are alike."""
        place = array.sharding if isinstance(array, jax.Array) else None
        key = (self._private, place, array.dtype, array.shape)
        found = self._layouts.get(key)
        if found is None:
            processes = _ALONE if self._private else self._processes
            found = self._layouts[key] = layout.of(array, path, processes)
        return found

    def _stored_as(self, leaf: int, dtype: np.dtype, options: LeafOptions) -> np.dtype:
        target = options.stored_as(dtype)
        if self._handlers[leaf].name not in NUMBERS or not can_store(dtype, target):
            raise InvalidOption(
                f"a leaf of {self._handlers[leaf].name}, {dtype.name}, cannot be stored as "
                f"{target.name}; narrow the glob of this option",
                leaf=self._paths[leaf],
            )
        return target

    def _chunked(
        self, array: PlannedArray, laid: Layout, options: LeafOptions, limit: int
    ) -> PlannedArray:
        path = self._paths[array.leaf]
        name = keypath.directory(path, array.name)
        other = self._directories.setdefault(name, path)
        if other != path:
            raise UnsupportedLeaf(f"its directory is that of {other!r}; rename one", leaf=path)
        itemsize = array.dtype.itemsize
        chunk, codec = options.chunks(laid.shape, laid.shard, itemsize, path, limit)
        mine = _all_mine if self._private or self._processes.count == 1 else self._spread.mine
        boxes = layout.cut(laid, itemsize, chunk, f"{ARRAYS}/{name}", array.slot, mine)
        unchanging = self._handlers[array.leaf].name in IMMUTABLE
        raw = array.raw and unchanging and codec == RAW and all(box.runs for box in boxes)
        return replace(array, chunk=chunk, codec=codec, boxes=boxes, raw=raw)

    def _pack(self, leaf: int, name: str, dtype: np.dtype, nbytes: int, laid: Layout) -> None:
        """Choose the process whose pack a small array goes to; or one for each of its parts."""
        if self._private:
            own = _Small(leaf, name, dtype, nbytes, laid, self._processes.index)
            self._small.append(own)
            return
        if laid.holders:
            owner = self._spread.owner(laid.holders, nbytes)
            self._small.append(_Small(leaf, name, dtype, nbytes, laid, owner))
            return
        part = math.prod(laid.shard) * dtype.itemsize
        for box in laid.boxes:
            owner = self._spread.owner(box.holders, part)
            self._small.append(_Small(leaf, name, dtype, part, laid, owner, box))

    def seal(self) -> int:
        """What comes now is this process's own. Returns how many slots all processes share."""
        self._fill_packs()
        self._private = True
        self._number += self._processes.count
        return len(self._slot_leaf)

    def _fill_packs(self) -> None:
        """Put what is small so far into packs, one for each process."""
        owned: dict[int, list[_Small]] = defaultdict(list)
        for small in self._small:
            owned[small.owner].append(small)
        for owner in sorted(owned):
            self._fill(self._number + owner, owned[owner], mine=owner == self._processes.index)
        self._small.clear()

    def _fill(self, number: int, small: list[_Small], *, mine: bool) -> None:
        sizes = [one.nbytes for one in small]
        filled, offsets = pack.fill(sizes, number)
        first = len(self._slot_leaf)
        for one, offset in zip(small, offsets, strict=True):
            array = _in_pack(one, len(self._slot_leaf), number, offset)
            self._arrays[one.leaf].append(array)
            self._slot_leaf.append(one.leaf)
            if mine:
                self._packed.append(array)
        if filled:
            self._packs.append(filled)
            self._files += pack.files(filled, offsets, sizes, first) if mine else ()

    def finish(self, private: Collection[int], shared_slots: int, **described: Any) -> Plan:
        """Put everything together."""
        self._fill_packs()
        own = tuple(array for leaf in self._arrays for array in leaf if array.chunk is not None)
        files = [cut.file for array in own for box in array.boxes for cut in box.chunks]
        files += self._files
        several = self._processes.count > 1
        slots = range(len(self._slot_leaf))
        private_pack = next((p for p in self._packs if p.process >= self._number), None)
        return Plan(
            **described,
            private=frozenset(private),
            paths=tuple(self._paths),
            handlers=tuple(self._handlers),
            arrays=tuple(map(tuple, self._arrays)),
            own=own,
            packed=tuple(self._packed),
            packs=tuple(pack for pack in self._packs if pack is not private_pack),
            private_pack=private_pack,
            pack_files=tuple(self._files),
            slot_leaf=tuple(self._slot_leaf),
            shared_slots=shared_slots,
            mine=[f.slot + n for f in files for n in range(len(f.spans))] if several else slots,
            nbytes=sum(array.nbytes for leaf in self._arrays for array in leaf),
            mine_nbytes=sum(stop - start for f in files for start, stop in f.spans),
            layout=self._digest(private) if several else "",
        )

    def _digest(self, private: Collection[int]) -> str:
        """A digest of all that the processes must agree on before they write."""
        arrays = [
            (
                self._paths[array.leaf],
                self._handlers[array.leaf].name,
                *(array.name, array.dtype.name, array.whole, array.sharding),
                *(array.chunk, array.codec, array.slot, array.packed),
            )
            for leaf, own in enumerate(self._arrays)
            if leaf not in private
            for array in own
        ]
        return digest(msgspec.json.encode((arrays, self._spread.owners)))


def _all_mine(*_: object) -> bool:
    return True


def _planned(
    leaf: int,
    name: str,
    dtype: np.dtype,
    nbytes: int,
    laid: Layout,
    slot: int,
    packed: Packed | None = None,
) -> PlannedArray:
    raw, shape, place = dtype == laid.dtype, laid.shape, laid.sharding
    return PlannedArray(
        leaf, name, dtype, shape, nbytes, place, laid.access, raw, laid.boxes, slot, shape,
        packed=packed,
    )  # fmt: skip


def _in_pack(small: _Small, slot: int, number: int, offset: int) -> PlannedArray:
    packed = Packed(number, offset, None)
    array = _planned(small.leaf, small.name, small.dtype, small.nbytes, small.laid, slot, packed)
    if small.box is None:
        return array
    part = tuple((s.start, s.stop) for s in small.box.index)
    shape = tuple(stop - start for start, stop in part)
    return replace(array, boxes=(small.box,), shape=shape, packed=replace(packed, part=part))
