"""Refusals: what cannot be saved, why, and what to do about it."""

from __future__ import annotations

from typing import Final, NoReturn

import jax

from ckptmgr.errors import CheckpointError, InvalidOption, UnsupportedLeaf
from ckptmgr.tree.handlers import Handler

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


def unstorable(leaf: object, path: str, error: Exception) -> CheckpointError:
    """The error for what went wrong with a leaf, with its path and class."""
    if isinstance(error, CheckpointError):
        return type(error)(error.message, leaf=path)
    return UnsupportedLeaf(
        f"a leaf of class {_class(leaf)} cannot be saved: encoding it failed with {error!r}; "
        "what a handler gives is plain data and arrays of numbers",
        leaf=path,
    )


def contested(leaf: object, path: str, first: Handler, second: Handler) -> InvalidOption:
    """The error for a leaf that two handlers would take."""
    return InvalidOption(
        f"handler {second.name!r} would take a leaf of class {_class(leaf)} that {first.name!r} "
        f"takes; set overrides = {first.name!r} on it, or narrow its handles()",
        leaf=path,
    )


def _class(leaf: object) -> str:
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}"
