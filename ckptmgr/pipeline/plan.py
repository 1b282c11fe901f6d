"""The plan of a save: which bytes of which leaf go into which file. Pure.

A plan depends on the structure and on each leaf's shape, dtype and sharding, never on
values, so that of an unchanged tree is made once. Small arrays go end to end into a
pack, large ones are cut into chunks of their own. Each digest that the manifest will
hold has a number, its slot; each file knows the slots of the bytes it holds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from ckptmgr.errors import CheckpointError, InvalidOption, UnsupportedLeaf
from ckptmgr.format import keypath, zarr
from ckptmgr.format.manifest import (
    ArrayEntry,
    Grid,
    LeafEntry,
    Node,
    Pack,
    PackedBox,
    ShardingEntry,
)
from ckptmgr.format.scalar import JSON, to_json
from ckptmgr.format.step import ARRAYS
from ckptmgr.format.zarr import RAW, Codec, Shape
from ckptmgr.pipeline import layout, pack
from ckptmgr.pipeline.cache import Cache
from ckptmgr.pipeline.layout import Box, File, Layout
from ckptmgr.pipeline.leaf_options import NO_RULES, LeafOptions, LeafRules
from ckptmgr.tree import registered, structure
from ckptmgr.tree.builtin import IMMUTABLE, NUMBERS
from ckptmgr.tree.casting import can_store
from ckptmgr.tree.handlers import Array, Handler
from ckptmgr.tree.refusal import refuse, refuse_contested, unstorable
from ckptmgr.tree.registry import Registry
from ckptmgr.tree.structure import Places, PyTreeDef

Arrays = Mapping[str, Array]
_PACK: Final = 0  # the number of the pack, where a checkpoint is not added to


class PlannedArray(NamedTuple):
    """Where an array of a leaf goes: into files of its own, or `offset` bytes into the pack.

    `dtype` and `nbytes` are what is stored. `viewable`: the host can see the array's memory
    without a copy. `raw`: each chunk is stored as a run of these very bytes, which nobody
    changes: what a handler of the user's made may be seen elsewhere.
    """

    leaf: int
    name: str
    dtype: np.dtype
    shape: Shape
    nbytes: int
    sharding: ShardingEntry | None
    viewable: bool
    raw: bool
    boxes: tuple[Box, ...]
    slot: int
    chunk: Shape | None = None
    codec: Codec = RAW
    offset: int = 0

    def entry(self, digests: Sequence[str], pack: int) -> ArrayEntry:
        """What the manifest says of it, given the digests of all slots."""
        grid: Grid | None = None
        packed: tuple[PackedBox, ...] = ()
        if self.chunk is not None:
            count = zarr.cells(self.shape, self.chunk)
            grid = Grid(self.chunk, tuple(digests[self.slot : self.slot + count]), self.codec)
        elif self.nbytes:
            packed = (PackedBox(pack, self.offset, digests[self.slot]),)
        return ArrayEntry(
            zarr.NAMES[self.dtype], self.shape, self.name, self.sharding, grid, packed
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole save.

    Attributes:
      nodes, aux: the places of nodes of registered classes, and their aux data: the one part
        of a structure that may change while the treedef stays equal.
      arrays: those of each leaf; `own` have files of their own, `packed` lie in the pack,
        in the order of their offsets.
      slot_leaf: the leaf that each slot belongs to.
    """

    structure: Node
    nodes: Places
    aux: tuple[JSON, ...]
    paths: tuple[str, ...]
    handlers: tuple[Handler, ...]
    arrays: tuple[tuple[PlannedArray, ...], ...]
    own: tuple[PlannedArray, ...]
    packed: tuple[PlannedArray, ...]
    pack: Pack | None
    pack_files: tuple[File, ...]
    slot_leaf: tuple[int, ...]
    nbytes: int

    @property
    def least_nbytes(self) -> int:
        """The bytes that it needs on disk in any case: what zstd makes of the rest is unknown."""
        return self.nbytes - sum(a.nbytes for a in self.own if a.codec.zstd is not None)

    def entries(self, values: Sequence[JSON], digests: Sequence[str]) -> tuple[LeafEntry, ...]:
        """What the manifest says of each leaf."""
        number = self.pack.process if self.pack else _PACK
        return tuple(
            LeafEntry(path, handler.name, value, tuple(a.entry(digests, number) for a in arrays))
            for path, handler, value, arrays in zip(
                self.paths, self.handlers, values, self.arrays, strict=True
            )
        )


class Planned(NamedTuple):
    """A plan, and what it does not depend on: each leaf's arrays and its JSON."""

    plan: Plan
    arrays: list[Arrays]
    values: list[JSON]


class Planner:
    """Makes plans and keeps the last few.

    Args:
      registry: the handlers.
      pack_below: arrays of fewer bytes than this go into the pack.
      rules: the options of the leaves that do not take the default.
      number: that of the pack.
    """

    def __init__(
        self, registry: Registry, pack_below: int, rules: LeafRules = NO_RULES, number: int = _PACK
    ) -> None:
        self._registry = registry
        self._pack_below = pack_below
        self._rules = rules
        self._number = number
        self._plans: Cache[Plan] = Cache(size=4)

    def plan(self, tree: object) -> Planned:
        """The plan for a tree, with what each leaf is encoded as.

        Raises:
          UnsupportedLeaf: something in it cannot be stored; the error has its path.
          InvalidOption: the options of a leaf do not fit it.
          TreeMismatch: a glob of the options matches no leaf.
        """
        leaves, treedef = structure.flatten(tree)
        handlers, arrays, values, form = self._encode(tree, leaves)
        # The treedef's text too: to Python, and so to it, the keys 1, True and 1.0 are the same.
        # And how many classes are registered: what was a stranger before may be one of them.
        kept = self._plans.slot(lambda: (treedef, repr(treedef), registered.count(), form))
        plan = kept.value
        if plan is None:
            plan = self._make(tree, leaves, treedef, handlers, arrays)
        elif structure.aux_of(treedef, plan.nodes) != plan.aux:
            plan = replace(plan, **_described(tree, treedef))
        kept.value = plan
        return Planned(plan, arrays, values)

    def _encode(
        self, tree: object, leaves: list[object]
    ) -> tuple[list[Handler], list[Arrays], list[JSON], tuple[Hashable, ...]]:
        """Each leaf's handler, arrays and JSON; and of all of them what a plan depends on."""
        find = self._registry.find
        handlers: list[Handler] = []
        arrays: list[Arrays] = []
        values: list[JSON] = []
        form: list[Hashable] = []
        try:
            for leaf in leaves:
                handler = find(leaf) or refuse(leaf)
                value, own = handler.encode(leaf)
                form.append(handler.name)
                for name, array in own.items():
                    if type(array) is np.ndarray:
                        form += (name, array.dtype, array.shape)
                    else:
                        form += (name, array.aval, array.sharding)  # type: ignore[union-attr]  # a jax.Array, or told so below
                values.append(None if value is None else to_json(value))
                handlers.append(handler)
                arrays.append(own)
        except CheckpointError as error:
            error.leaf = _path(tree, len(handlers))
            raise
        except Exception as error:
            number = len(handlers)
            raise unstorable(leaves[number], _path(tree, number), error) from error
        return handlers, arrays, values, tuple(form)

    def _make(
        self,
        tree: object,
        leaves: list[object],
        treedef: PyTreeDef,
        handlers: list[Handler],
        arrays: list[Arrays],
    ) -> Plan:
        paths = structure.key_paths(tree)
        draft = _Draft(paths, handlers, self._pack_below, self._number)
        for number, (own, options) in enumerate(zip(arrays, self._rules.of(paths), strict=True)):
            leaf, handler = leaves[number], handlers[number]
            try:
                refuse_contested(leaf, paths[number], handler, self._registry.rival(leaf, handler))
                for name, array in own.items():
                    draft.add(number, name, array, options)
            except CheckpointError:
                raise
            except Exception as error:
                raise unstorable(leaf, paths[number], error) from error
        return draft.finish(**_described(tree, treedef))


def _described(tree: object, treedef: PyTreeDef) -> dict[str, Any]:
    """What a plan holds of a tree's structure."""
    described = structure.describe(tree, treedef)
    nodes = structure.places(described)
    return {"structure": described, "nodes": nodes, "aux": structure.aux_of(treedef, nodes)}


def _path(tree: object, number: int) -> str:
    return structure.path_text(jax.tree_util.tree_flatten_with_path(tree)[0][number][0])


class _Draft:
    """A plan in the making. The slots of what is packed come after all others, in pack order."""

    def __init__(
        self, paths: list[str], handlers: list[Handler], pack_below: int, number: int
    ) -> None:
        self._paths = paths
        self._handlers = handlers
        self._pack_below = pack_below
        self._number = number
        self._arrays: list[list[PlannedArray]] = [[] for _ in paths]
        self._small: list[tuple[int, str, np.dtype, int, Layout]] = []
        self._layouts: dict[Hashable, Layout] = {}
        self._slot_leaf: list[int] = []
        self._directories: dict[str, str] = {}

    def add(self, leaf: int, name: str, array: Array, options: LeafOptions) -> None:
        """Place an array: nowhere if it is empty, else in the pack or in chunks of its own."""
        if type(name) is not str or name.encode(errors="replace").decode() != name:
            raise UnsupportedLeaf(
                f"an array is named by a str of Unicode, not {name!r}", leaf=self._paths[leaf]
            )
        laid = self._layout(array, self._paths[leaf])
        dtype, nbytes = laid.dtype, laid.nbytes
        if options.dtype is not None:
            dtype = self._stored_as(leaf, laid.dtype, options)
            nbytes = math.prod(laid.shape) * dtype.itemsize
        if nbytes and options.packed(nbytes, self._pack_below, self._paths[leaf]):
            self._small.append((leaf, name, dtype, nbytes, laid))
            return
        planned = _placed(leaf, name, dtype, nbytes, laid, len(self._slot_leaf))
        if nbytes:
            planned = self._chunked(planned, laid, options)
            self._slot_leaf.extend([leaf] * zarr.cells(laid.shape, planned.chunk or ()))
        self._arrays[leaf].append(planned)

    def _layout(self, array: Array, path: str) -> Layout:
        """The layout of an array, looked up where many are alike."""
        key = (array.sharding if isinstance(array, jax.Array) else None, array.dtype, array.shape)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = layout.of(array, path)
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

    def _chunked(self, array: PlannedArray, laid: Layout, options: LeafOptions) -> PlannedArray:
        path = self._paths[array.leaf]
        name = keypath.directory(path, array.name)
        other = self._directories.setdefault(name, path)
        if other != path:
            raise UnsupportedLeaf(f"its directory is that of {other!r}; rename one", leaf=path)
        itemsize = array.dtype.itemsize
        chunk, codec = options.chunks(laid.shape, laid.shard, itemsize, path)
        boxes = layout.cut(laid, itemsize, chunk, f"{ARRAYS}/{name}", array.slot)
        unchanging = self._handlers[array.leaf].name in IMMUTABLE
        raw = array.raw and unchanging and codec == RAW and all(box.runs for box in boxes)
        return array._replace(chunk=chunk, codec=codec, boxes=boxes, raw=raw)

    def finish(self, **described: Any) -> Plan:
        """Fill the pack and put everything together."""
        sizes = [nbytes for _, _, _, nbytes, _ in self._small]
        filled, offsets = pack.fill(sizes, self._number)
        first = len(self._slot_leaf)
        placed = [
            _placed(*small, first + number, offset)
            for number, (small, offset) in enumerate(zip(self._small, offsets, strict=True))
        ]
        for array in placed:
            self._arrays[array.leaf].append(array)
            self._slot_leaf.append(array.leaf)
        return Plan(
            **described,
            paths=tuple(self._paths),
            handlers=tuple(self._handlers),
            arrays=tuple(map(tuple, self._arrays)),
            own=tuple(array for leaf in self._arrays for array in leaf if array.chunk is not None),
            packed=tuple(placed),
            pack=filled,
            pack_files=pack.files(filled, offsets, sizes, first) if filled else (),
            slot_leaf=tuple(self._slot_leaf),
            nbytes=sum(array.nbytes for leaf in self._arrays for array in leaf),
        )


def _placed(
    leaf: int, name: str, dtype: np.dtype, nbytes: int, laid: Layout, slot: int, offset: int = 0
) -> PlannedArray:
    raw, shape = dtype == laid.dtype, laid.shape
    return PlannedArray(
        leaf, name, dtype, shape, nbytes, laid.sharding, laid.viewable, raw, laid.boxes, slot,
        offset=offset,
    )  # fmt: skip
