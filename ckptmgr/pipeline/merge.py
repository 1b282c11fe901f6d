"""Merging: leaves added to a checkpoint or replaced in it, the rest of its files kept. Pure.

The merged tree is decided before anything is written: None means 'not given', and two
containers must be of one kind and, but for dicts, of one length. What is kept stays in
the files it lies in; what is new goes to files and a pack of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ckptmgr.errors import TreeMismatch
from ckptmgr.format import keypath, zarr
from ckptmgr.format.manifest import (
    FORMAT,
    DictNode,
    ListNode,
    Manifest,
    NamedTupleNode,
    Node,
    NoneNode,
    PerProcessNode,
    RegisteredNode,
    TupleNode,
    leaf_indices,
    per_process,
    renumbered,
)
from ckptmgr.format.scalar import JSON, from_json
from ckptmgr.format.step import ARRAYS, PACKS
from ckptmgr.format.zarr import Shape
from ckptmgr.pipeline.plan import Plan


@dataclass(frozen=True, slots=True)
class Merge:
    """A checkpoint, and what becomes of it.

    Attributes:
      name, manifest: the checkpoint as it is; record: the bytes of its commit record.
      kept: its leaves that stay, by number.
      structure: the merged tree: first what is kept, then what is new.
    """

    name: str
    record: bytes
    manifest: Manifest
    kept: tuple[int, ...]
    structure: Node

    def assemble(self, plan: Plan, values: Sequence[JSON], digests: Sequence[str]) -> Manifest:
        """The manifest of the merged tree."""
        leaves = [self.manifest.leaves[number] for number in self.kept]
        used = {box.pack for leaf in leaves for array in leaf.arrays for box in array.packed}
        packs = [pack for pack in self.manifest.packs if pack.process in used]
        return Manifest(
            format=FORMAT,
            structure=self.structure,
            leaves=(*leaves, *plan.entries(values, digests)),
            packs=(*packs, *plan.packs),
        )

    def files(self) -> list[tuple[str, str]]:
        """The data files and array metadata that stay, as paths in the step, each with a leaf."""
        found: list[tuple[str, str]] = []
        used: dict[int, str] = {}
        for number in self.kept:
            leaf = self.manifest.leaves[number]
            for array in leaf.arrays:
                used.update((box.pack, leaf.path) for box in array.packed)
                if array.grid is not None:
                    directory = f"{ARRAYS}/{keypath.directory(leaf.path, array.name)}"
                    found += _array_files(directory, array.shape, array.grid.chunk, leaf.path)
        for pack in self.manifest.packs:
            if pack.process in used:
                directory, leaf_path = f"{PACKS}/{pack.process}", used[pack.process]
                found += _array_files(directory, (pack.nbytes,), (pack.chunk,), leaf_path)
        return found


def _array_files(
    directory: str, shape: Shape, chunk: Shape, leaf: str
) -> Iterator[tuple[str, str]]:
    yield f"{directory}/{zarr.METADATA}", leaf
    for cell in zarr.grid(shape, chunk):
        yield f"{directory}/{cell.key}", leaf


def next_pack(manifest: Manifest) -> int:
    """The number of a pack beside those of the checkpoint."""
    return max((pack.process + 1 for pack in manifest.packs), default=0)


def merge(name: str, record: bytes, manifest: Manifest, plan: Plan) -> Merge:
    """The checkpoint `name` with the leaves of a plan added or replaced.

    Raises:
      TreeMismatch: a container differs in kind or length, or two paths become the same.
    """
    if plan.layout and per_process(plan.structure):
        raise TreeMismatch("PerProcess cannot be merged by several processes")
    try:
        joined = _join(manifest.structure, _shift(plan.structure, len(manifest.leaves)), ())
    except RecursionError as error:
        raise TreeMismatch("the tree is nested too deep to be merged") from error
    order = sorted(leaf_indices(joined))
    kept = tuple(number for number in order if number < len(manifest.leaves))
    merged = Merge(name, record, manifest, kept, _renumber(joined, order))
    paths = [*(manifest.leaves[number].path for number in kept), *plan.paths]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise TreeMismatch("two leaves would have the same key path", leaf=twice)
    return merged


def _join(old: Node, new: Node, path: tuple[object, ...]) -> Node:
    """The two together; what is new goes before."""
    if isinstance(new, NoneNode):
        return old
    if isinstance(old, NoneNode) or (isinstance(old, int) and isinstance(new, int)):
        return new
    if isinstance(old, int) or isinstance(new, int) or _kind(old) != _kind(new):
        raise TreeMismatch(
            f"cannot merge {_words(new)} into {_words(old)}: they must be of one kind and length"
            + (", and their aux data the same" if isinstance(new, RegisteredNode) else ""),
            leaf=keypath.join(path),
        )
    if isinstance(old, DictNode) and isinstance(new, DictNode):
        return _join_dicts(old, new, path)
    keys = old.fields if isinstance(old, NamedTupleNode) else range(len(old.children))
    children = tuple(
        _join(one, other, (*path, key))
        for one, other, key in zip(old.children, new.children, keys, strict=True)
    )
    return msgspec.structs.replace(old, children=children)


def _join_dicts(old: DictNode, new: DictNode, path: tuple[object, ...]) -> DictNode:
    # By their JSON, as 1, 1.0 and True are one key to Python.
    items = {msgspec.json.encode(k): (k, v) for k, v in zip(old.keys, old.children, strict=True)}
    for key, child in zip(new.keys, new.children, strict=True):
        code = msgspec.json.encode(key)
        _, former = items.get(code, (key, NoneNode()))
        items[code] = (key, _join(former, child, (*path, from_json(key))))
    keys, children = zip(*items.values(), strict=True) if items else ((), ())
    _refuse_disorder([from_json(key) for key in keys], path, ordered=old.ordered)
    return DictNode(keys, children, old.ordered)


def _refuse_disorder(keys: list[Any], path: tuple[object, ...], *, ordered: bool) -> None:
    """Refuse the keys of a merged dict that no dict could have, or that jax could not sort."""
    try:
        sortable = ordered or sorted(keys) is not None
    except TypeError:
        sortable = False
    if not sortable or len(set(keys)) != len(keys):
        raise TreeMismatch(
            f"the keys of the merged dict would be the same or have no order: {keys[:8]!r}",
            leaf=keypath.join(path),
        )


def _kind(node: Node) -> object:
    """What two containers must share: all but their children, and how many these are."""
    if isinstance(node, DictNode):
        return node.ordered
    if isinstance(node, int | NoneNode):
        return None
    return msgspec.structs.replace(node, children=()), len(node.children)


def _words(node: Node) -> str:
    match node:
        case int():
            return "a leaf"
        case DictNode(ordered=ordered):
            return "an OrderedDict" if ordered else "a dict"
        case NoneNode():
            return "None"
        case ListNode(children=children):
            return f"a list of {len(children)}"
        case TupleNode(children=children):
            return f"a tuple of {len(children)}"
        case PerProcessNode(children=children):
            return f"a PerProcess of {len(children)}"
        case _:
            return f"a {node.name} of {len(node.children)}"


def _shift(node: Node, by: int) -> Node:
    return renumbered(node, lambda number: number + by)


def _renumber(node: Node, order: Sequence[int]) -> Node:
    places = {number: place for place, number in enumerate(order)}
    return renumbered(node, places.__getitem__)
