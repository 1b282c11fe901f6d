"""Placing: where the arrays of a load go, out of what the caller says and what was saved. Pure.

What the caller says of a leaf comes first, then the sharding of the leaf of `like`,
then the saved one: on the caller's mesh if there is one, else on the devices at hand
where they are enough, else the default device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.format.zarr import Shape
from ckptmgr.tree import sharding
from ckptmgr.tree.rules import by_prefix, prefixes

UNSAID: Final = object()  # a tree or rules were given, and say nothing of a leaf
_WORDS: Final = (
    "shardings is 'numpy', a Sharding, a prefix tree of them, a dict of them by key path, or a "
    "list of rules (regex, Sharding); with mesh= a PartitionSpec will do for a Sharding"
)


class Shardings:
    """What the caller says of where leaves go.

    Args:
      shardings: None; "numpy"; a Sharding; a prefix tree of them; a dict of them by key
        path; or a list of rules, pairs of a regular expression that is searched in the
        path and a Sharding, of which the first wins. None inside says nothing.
      mesh: makes Shardings of PartitionSpecs, given or saved.

    Raises:
      InvalidOption: it is none of these, or a PartitionSpec does not fit the mesh.
    """

    def __init__(self, shardings: object = None, mesh: object = None) -> None:
        if not (mesh is None or isinstance(mesh, Mesh)):
            raise InvalidOption(f"mesh is a jax.sharding.Mesh, not {mesh!r}")
        self.mesh = mesh
        self._everywhere: object = None
        self._rules: list[tuple[re.Pattern[str], object]] = []
        self._said: dict[str | None, object] = {}
        self._partial = False
        if shardings is None or isinstance(shardings, str | Sharding | PartitionSpec):
            self._everywhere = self._concrete(shardings)
        elif isinstance(shardings, list | tuple) and any(map(_pair, shardings)):
            self._rules = [self._rule(rule) for rule in shardings]
        elif isinstance(shardings, dict) and any("/" in key for key in map(str, shardings)):
            self._partial = True
            self._said = {str(path): self._concrete(place) for path, place in shardings.items()}
        else:
            said = prefixes(shardings, "shardings")
            self._said = {path: self._concrete(place) for path, place in said.items()}

    def _concrete(self, place: object) -> object:
        if place is None or isinstance(place, Sharding) or place == "numpy":
            return place
        if not isinstance(place, PartitionSpec):
            raise InvalidOption(f"{_WORDS}; not {place!r}")
        if self.mesh is None:
            raise InvalidOption(
                f"{place} is a PartitionSpec: give the mesh that it is for as mesh="
            )
        try:
            return NamedSharding(self.mesh, place)
        except ValueError as error:
            raise InvalidOption(
                f"{place} does not fit the mesh {dict(self.mesh.shape)}: {error}"
            ) from error

    def _rule(self, rule: object) -> tuple[re.Pattern[str], object]:
        pair = _pair(rule)
        if pair is None:
            raise InvalidOption(f"{_WORDS}; not {rule!r} among rules")
        try:
            return re.compile(pair[0]), self._concrete(pair[1])
        except re.error as error:
            raise InvalidOption(f"{pair[0]!r} is no regular expression: {error}") from error

    def of(self, paths: Sequence[str], *, whole: bool) -> list[object]:
        """What is said of the leaf at each path: a Sharding, "numpy", None for nothing, or UNSAID.

        `whole`: these are all paths of the tree, so what matches none of them is a mistake.

        Raises:
          TreeMismatch: it names what there is not.
        """
        if self._rules:
            return self._by_rules(paths, whole=whole)
        if not self._said:
            return [self._everywhere] * len(paths)
        found, unused = by_prefix(self._said, paths, None if self._partial else UNSAID)
        for prefix in unused if whole else ():
            if self._said[prefix] is not None:
                raise TreeMismatch("shardings names what the tree does not hold", leaf=prefix)
        return found

    def _by_rules(self, paths: Sequence[str], *, whole: bool) -> list[object]:
        for rule, _ in self._rules if whole else ():
            if not any(map(rule.search, paths)):
                raise TreeMismatch(f"the rule {rule.pattern!r} of shardings matches no leaf")
        return [
            next((found for rule, found in self._rules if rule.search(path)), UNSAID)
            for path in paths
        ]


def _pair(rule: object) -> tuple[str, object] | None:
    """A rule as a regular expression and its place, where it is one."""
    if not isinstance(rule, list | tuple) or len(rule) != 2:  # noqa: PLR2004  # a pair
        return None
    return (rule[0], rule[1]) if isinstance(rule[0], str) else None


def place(
    saved: ShardingEntry | None,
    shape: Shape,
    said: object,
    mesh: Mesh | None,
    devices: Sequence[jax.Device],
) -> Sharding | None:
    """The sharding of an array of this shape; None for jax's own choice.

    Args:
      saved: the one it was saved with, where that counts.
      shape: of the array.
      said: what the caller, or the leaf of `like`, says of it.
      mesh: the caller's.
      devices: those at hand.

    Raises:
      ValueError: it cannot have that sharding; says why.
    """
    if said is UNSAID:
        raise ValueError("shardings says nothing of this leaf")
    if isinstance(said, Sharding):
        found: Sharding | None = said
    elif saved is None:
        return None
    elif mesh is not None:
        found = NamedSharding(mesh, PartitionSpec(*saved.spec), memory_kind=saved.memory_kind)
    else:
        found = sharding.rebuild(saved, devices)
    if isinstance(found, NamedSharding) and len(found.spec) > len(shape):
        raise ValueError(f"{found.spec} is for {len(found.spec)} axes, the shape is {shape}")
    if found is not None:
        found.shard_shape(shape)  # raises where an axis does not divide
    return found


def in_words(entry: ShardingEntry | None) -> str:
    """A saved sharding."""
    if entry is None or not entry.axes:
        return "on one device"
    return f"with {PartitionSpec(*entry.spec)} on a mesh {dict(entry.axes)}"


def of_target(target: Any) -> Sharding | None:
    """The sharding of a leaf of `like`; None where jax chose it by itself."""
    if isinstance(target, jax.Array):
        found = target.sharding if target.committed else None
    else:
        found = getattr(target, "sharding", None)
    return found if isinstance(found, NamedSharding | SingleDeviceSharding) else None
