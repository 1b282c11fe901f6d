"""Forms: what is known of saved leaves without their bytes. Pure.

`load_structure` shows them, predicates see them, errors name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import jax
import numpy as np

from ckptmgr.errors import DamagedStep, UndecodableLeaf
from ckptmgr.format import keypath
from ckptmgr.format.manifest import (
    FORMAT,
    ArrayEntry,
    CustomNode,
    LeafEntry,
    Manifest,
    RegisteredNode,
    leaf_indices,
)
from ckptmgr.format.scalar import JSON, from_json
from ckptmgr.format.zarr import DTYPES, Shape
from ckptmgr.pipeline.plan import Plan
from ckptmgr.tree import sharding, structure
from ckptmgr.tree.builtin import NUMBERS, Bytes, PythonScalar
from ckptmgr.tree.handlers import Array, NumpyStruct, Stored
from ckptmgr.tree.per_process import Processes
from ckptmgr.tree.registry import Registry

PYTHON_NUMBERS: Final[Mapping[type, np.dtype]] = {
    bool: np.dtype("bool"),
    int: np.dtype("int64"),
    float: np.dtype("float64"),
    complex: np.dtype("complex128"),
}


def form(entry: LeafEntry, registry: Registry, devices: Sequence[jax.Device]) -> object:
    """What stands for a leaf: its shape, dtype and sharding, or its class.

    Raises:
      UndecodableLeaf: its handler does not understand what was stored.
    """
    handler = registry.named(entry.handler)
    if handler is None:
        return Stored(entry.handler)
    arrays = {array.name: _struct(array, devices) for array in entry.arrays}
    try:
        return handler.form(value(entry), arrays)
    except DamagedStep:
        raise
    except Exception as error:
        raise UndecodableLeaf(
            f"handler {entry.handler!r} does not understand this leaf: {error!r}", leaf=entry.path
        ) from error


def saving(plan: Plan, values: Sequence[JSON], registry: Registry) -> object:
    """The tree that is being saved, with the form of each leaf."""
    entries = plan.entries(values, [""] * len(plan.slot_leaf))
    manifest = Manifest(FORMAT, plan.structure, entries)
    return describe(manifest, registry, tuple(jax.devices()))


def _struct(array: ArrayEntry, devices: Sequence[jax.Device]) -> jax.ShapeDtypeStruct:
    if array.sharding is None:
        return NumpyStruct(array.shape, DTYPES[array.dtype])
    placed = sharding.rebuild(array.sharding, devices)
    return jax.ShapeDtypeStruct(array.shape, DTYPES[array.dtype], sharding=placed)


def value(entry: LeafEntry) -> object:
    """The plain data that a handler stored.

    Raises:
      DamagedStep: the manifest holds none.
    """
    try:
        return from_json(entry.value)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedStep(f"the manifest holds no value: {error}", leaf=entry.path) from error


def main(entry: LeafEntry) -> ArrayEntry | None:
    """The array of a leaf that is a number or an array of numbers."""
    if entry.handler not in NUMBERS:
        return None
    found = next((array for array in entry.arrays if not array.name), None)
    if found is None:
        raise DamagedStep("the manifest holds no array of this leaf", leaf=entry.path)
    return found


def numbers(entry: LeafEntry) -> tuple[Shape, np.dtype] | None:
    """Shape and dtype of a leaf that is a number or an array of numbers; None for others."""
    array = main(entry)
    if array is not None:
        return array.shape, DTYPES[array.dtype]
    if entry.handler != PythonScalar.name:
        return None
    kind = type(value(entry))
    return ((), PYTHON_NUMBERS[kind]) if kind in PYTHON_NUMBERS else None


def python_value(entry: LeafEntry, arrays: Mapping[str, Array]) -> object:
    """The Python number of a leaf that is one, or an array without dimensions."""
    return np.asarray(arrays[""]).item() if arrays else value(entry)


def describe(
    manifest: Manifest,
    registry: Registry,
    devices: Sequence[jax.Device],
    like: tuple[structure.PyTreeDef, Sequence[str]] | None = None,
) -> object:
    """The saved tree with the form of each leaf, in the structure of `like` if it is given.

    A node of a class that does not come back by itself is shown as a dict of its keys.
    """
    found = [form(entry, registry, devices) for entry in manifest.leaves]
    if like is not None:
        treedef, paths = like
        by_path = {entry.path: shown for entry, shown in zip(manifest.leaves, found, strict=True)}
        return jax.tree_util.tree_unflatten(treedef, [by_path.get(path) for path in paths])

    def as_dict(
        node: CustomNode | RegisteredNode, children: list[object], path: tuple[object, ...]
    ) -> object:
        named = {}
        for child, built in zip(node.children, children, strict=True):
            for leaf in leaf_indices(child)[:1]:
                named[keypath.split(manifest.leaves[leaf].path)[len(path)]] = built
        return named

    here = Processes(jax.process_index(), jax.process_count())
    return structure.build(manifest.structure, found, as_dict, processes=here)


def saved(entry: LeafEntry) -> str:
    """A saved leaf in words."""
    found = numbers(entry)
    if found is not None and entry.arrays:
        return f"{found[1].name}[{','.join(map(str, found[0]))}]"
    if entry.handler == PythonScalar.name:
        return type(value(entry)).__name__
    return str(value(entry)) if entry.handler == Bytes.name else entry.handler


def asked(target: object) -> str:
    """A leaf of a `like` tree in words."""
    shape = getattr(target, "shape", None)
    if isinstance(target, type) or not isinstance(shape, tuple):
        return target.__name__ if isinstance(target, type) else type(target).__name__
    return f"{getattr(target, 'dtype', '?')}[{','.join(map(str, shape))}]"
