"""Placing: where the arrays of a load go, out of what the caller says and what was saved. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.format.manifest import ArrayEntry
from ckptmgr.tree import sharding
from ckptmgr.tree.rules import by_prefix, prefixes

_UNSAID: Final = object()


def wanted(shardings: object, paths: Sequence[str], *, whole: bool) -> list[object]:
    """What the caller says of the leaf at each path: a Sharding, "numpy", or None for nothing.

    `whole`: these are all paths of the tree, so a prefix of none of them is a mistake.

    Raises:
      InvalidOption: it is no tree of shardings.
      TreeMismatch: it says nothing of a leaf, or names what there is not.
    """
    if shardings is None or isinstance(shardings, str | Sharding):
        return [shardings] * len(paths)
    said = prefixes(shardings, "shardings")
    for place in said.values():
        if place is not None and not isinstance(place, Sharding):
            raise InvalidOption(f"shardings holds a {type(place).__name__}, no Sharding")
    found, unused = by_prefix(said, paths, _UNSAID)
    if _UNSAID in found:
        leaf = paths[found.index(_UNSAID)]
        raise TreeMismatch("shardings says nothing of this leaf", leaf=leaf)
    for prefix in unused if whole else ():
        if said[prefix] is not None:
            raise TreeMismatch("shardings names what the tree does not hold", leaf=prefix)
    return found


def place(
    array: ArrayEntry | None, wanted: object, devices: Sequence[jax.Device]
) -> Sharding | None:
    """`wanted` if it is a sharding, else the saved one of `array` if these devices allow it."""
    if isinstance(wanted, Sharding):
        return wanted
    if array is None or array.sharding is None:
        return None
    return sharding.rebuild(array.sharding, devices)


def of_target(target: Any) -> Sharding | None:
    """The sharding of a leaf of `like`; None where jax chose it by itself."""
    if isinstance(target, jax.Array):
        found = target.sharding if target.committed else None
    else:
        found = getattr(target, "sharding", None)
    return found if isinstance(found, NamedSharding | SingleDeviceSharding) else None
