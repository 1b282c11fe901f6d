"""Refusals: what cannot be saved, why, and what to do about it."""

from __future__ import annotations

from typing import Final, NoReturn

import jax
import numpy as np

from ckptmgr.errors import InvalidOption, UnsupportedLeaf
from ckptmgr.tree.handlers import Handler
from ckptmgr.tree.registered import node_of

_PARTITION: Final = (
    "save the arrays apart from the rest, of an equinox module with "
    "equinox.partition(tree, equinox.is_array)[0]"
)


def refuse(leaf: object) -> NoReturn:
    """Refuse a leaf that no handler takes.

    Raises:
      UnsupportedLeaf: always.
    """
    dtype = getattr(leaf, "dtype", None)
    if isinstance(leaf, jax.core.Tracer):
        advice = "it is a tracer: call save() outside of jit"
    elif node_of(type(leaf)) is not None:
        advice = "it is registered here, and jax does not know it: register it there as well"
    elif isinstance(leaf, np.ndarray) and type(leaf) is not np.ndarray:
        advice = "it would come back without its class: save np.asarray of it, or give handlers="
    elif isinstance(leaf, jax.ShapeDtypeStruct):
        advice = "it is the shape of an array, not an array"
    elif dtype is not None:
        advice = f"its dtype {dtype} is not stored; convert it, or leave it out of the tree"
    elif callable(leaf):
        advice = f"it can be called, not stored; {_PARTITION}"
    else:
        advice = (
            "leaves may be arrays, PRNG keys, numbers, str and bytes; register its class "
            f"(ckptmgr.register_leaf), give handlers=, leave it out of the tree, or {_PARTITION}"
        )
    raise UnsupportedLeaf(f"a leaf of class {_class(leaf)} cannot be saved: {advice}")


def unstorable(leaf: object, path: str, error: Exception) -> UnsupportedLeaf:
    """The error for what went wrong with a leaf, with its path and class."""
    return UnsupportedLeaf(
        f"a leaf of class {_class(leaf)} cannot be saved: encoding it failed with {error!r}; "
        "what a handler gives is plain data and arrays of numbers",
        leaf=path,
    )


def refuse_contested(leaf: object, path: str, first: Handler, second: Handler | None) -> None:
    """Refuse a leaf that two handlers would take.

    Raises:
      InvalidOption: there is a second one.
    """
    if second is None:
        return
    raise InvalidOption(
        f"handlers {first.name!r} and {second.name!r} would both take a leaf of class "
        f"{_class(leaf)}: set `overrides` of one to the name of the other, or narrow handles()",
        leaf=path,
    )


def _class(leaf: object) -> str:
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}"
