"""What a manifest says of its leaves, for people: types, shapes, shardings, bytes."""

from __future__ import annotations

import reprlib

from ckptmgr.format.manifest import ArrayEntry, LeafEntry, ShardingEntry
from ckptmgr.format.scalar import from_json


def nbytes(leaf: LeafEntry) -> int:
    """The bytes of its arrays."""
    return sum(array.nbytes for array in leaf.arrays)


def is_array(leaf: LeafEntry) -> bool:
    """Whether it is an array, and no other thing that is stored as one."""
    return leaf.handler in ("jax.Array", "numpy.ndarray", "numpy.generic") and leaf.value is None


def kind(leaf: LeafEntry) -> str:
    """For example `float32[768, 3072]`, `int 7`, `jax.random.key threefry2x32`."""
    if leaf.handler == "python":
        value = from_json(leaf.value)
        return f"{type(value).__name__} {reprlib.repr(value)}"
    arrays = " + ".join(
        f"{array.name and array.name + ' '}{_array(array)}" for array in leaf.arrays
    )
    if is_array(leaf):
        return arrays
    said = f" {leaf.value}" if isinstance(leaf.value, str) else ""
    return f"{leaf.handler}{said}{' of ' + arrays if arrays and not said else ''}"


def _array(array: ArrayEntry) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def sharding(leaf: LeafEntry) -> str:
    """For example `(data, None) of data=2 model=4`; empty for what lay on one device."""
    entries = [array.sharding for array in leaf.arrays if array.sharding and array.sharding.axes]
    return _sharding(entries[0]) if entries else ""


def _sharding(entry: ShardingEntry) -> str:
    axes = [axis if isinstance(axis, str | None) else "+".join(axis) for axis in entry.spec]
    mesh = " ".join(f"{name}={number}" for name, number in entry.axes)
    return f"({', '.join(axis or 'None' for axis in axes)}) of {mesh}"


def as_json(leaf: LeafEntry) -> dict[str, object]:
    """All that is known of it but where its bytes lie."""
    return {
        "path": leaf.path,
        "kind": kind(leaf),
        "handler": leaf.handler,
        "nbytes": nbytes(leaf),
        "arrays": [
            {
                "name": array.name,
                "dtype": array.dtype,
                "shape": array.shape,
                "sharding": array.sharding
                and {"axes": dict(array.sharding.axes), "spec": array.sharding.spec},
            }
            for array in leaf.arrays
        ],
    }
