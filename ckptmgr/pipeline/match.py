"""Matching: which saved leaf becomes what, decided before a byte is read. Pure.

Without `like` the saved structure and types come back. With it each leaf takes the
type, dtype and sharding of the target's. What is not selected is None, or the leaf of
`like` itself. All differences are one error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from ckptmgr.errors import TreeMismatch, UndecodableLeaf
from ckptmgr.format.manifest import (
    ArrayEntry,
    CustomNode,
    LeafEntry,
    Manifest,
    PerProcessNode,
    RegisteredNode,
    leaf_indices,
    per_process,
)
from ckptmgr.format.zarr import DTYPES, NAMES, Shape
from ckptmgr.pipeline import forms, placing
from ckptmgr.pipeline.forms import PYTHON_NUMBERS, asked, python_value, saved
from ckptmgr.pipeline.request import Like, Request
from ckptmgr.tree import structure
from ckptmgr.tree.casting import can_cast
from ckptmgr.tree.handlers import Array, Handler, NumpyStruct
from ckptmgr.tree.registry import Registry

_WIDE: Final = 8  # bytes of an item that jax narrows without jax_enable_x64, complex64 aside
_ARRAYS: Final = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


class Placement(NamedTuple):
    """What an array of a leaf becomes.

    Attributes:
      on_device: a jax Array, with `sharding`, or as jax places it where that is None.
      dtype: what it is cast to, None to keep it.
      shape: what it is padded or cut to, None to keep it.
    """

    on_device: bool = False
    sharding: Sharding | None = None
    dtype: np.dtype | None = None
    shape: Shape | None = None


class Goal(NamedTuple):
    """What a saved leaf becomes; of thousands that are alike there is one.

    Attributes:
      finish: makes the leaf of its arrays.
      places: what its arrays become, by name; one that is not named stays on the host.
    """

    finish: Callable[[Mapping[str, Array]], object]
    places: Mapping[str, Placement] = {}  # it is a default, never written to


class Matched(NamedTuple):
    """The leaves to make, and what makes the tree of them, both by their numbers."""

    goals: dict[int, Goal]
    tree: Callable[[Mapping[int, object]], object]


def match(manifest: Manifest, request: Request, registry: Registry) -> Matched:
    """What each leaf becomes.

    Raises:
      TreeMismatch: saved tree and request differ; lists every difference.
    """
    nodes = per_process(manifest.structure)
    own = frozenset(manifest.leaves[n].path for node in nodes for n in leaf_indices(node))
    matching = _Matching(manifest, request, registry, others=_others(manifest, request), own=own)
    matched = matching.as_saved() if request.like is None else matching.into(request.like)
    if matching.faults:
        raise TreeMismatch(
            "the saved tree is not the one asked for:\n  " + "\n  ".join(sorted(matching.faults))
        )
    return matched


def _others(manifest: Manifest, request: Request) -> frozenset[int]:
    """The leaves that other processes have for themselves, where there are as many as were."""
    here = request.processes
    return frozenset(
        leaf
        for node in per_process(manifest.structure)
        if len(node.children) == here.count
        for number, child in enumerate(node.children)
        if number != here.index
        for leaf in leaf_indices(child)
    )


def _main_array(arrays: Mapping[str, Array]) -> object:
    return arrays[""]


def _number(kind: type, entry: LeafEntry, arrays: Mapping[str, Array]) -> object:
    return kind(python_value(entry, arrays))


def _main_scalar(arrays: Mapping[str, Array]) -> object:
    return np.asarray(arrays[""])[()]


def _decoded(handler: Handler, entry: LeafEntry, arrays: Mapping[str, Array]) -> object:
    return handler.decode(forms.value(entry), arrays)


@dataclass(slots=True)
class _Matching:
    """Collects the goals of a load and every reason why it cannot be."""

    manifest: Manifest
    request: Request
    registry: Registry
    faults: list[str] = field(default_factory=list)
    chosen: set[int] = field(default_factory=set)
    others: frozenset[int] = frozenset()  # the leaves that other processes have for themselves
    own: frozenset[str] = frozenset()  # the paths of those that this one has
    known: dict[Hashable, Goal] = field(default_factory=dict)  # of each kind of array, one goal

    def as_saved(self) -> Matched:
        """The saved tree, or what is selected of it."""
        leaves = self.manifest.leaves
        wanted = self.request.select.of([leaf.path for leaf in leaves], self._form)
        chosen = [n for n, want in enumerate(wanted) if want and n not in self.others]
        self.chosen.update(chosen)
        self._refuse_other_counts()
        self._refuse_strangers()
        places = self._wanted([leaves[number].path for number in chosen])
        goals = {
            number: self._as_saved(number, at) for number, at in zip(chosen, places, strict=True)
        }

        def tree(values: Mapping[int, object]) -> object:
            found = [values.get(number) for number in range(len(leaves))]
            return structure.build(
                self.manifest.structure,
                found,
                lambda *_: None,
                self._is_wanted,
                self.request.processes,
            )

        return Matched(goals, tree)

    def _refuse_other_counts(self) -> None:
        """Find fault with what as many processes as there are not had for themselves, if chosen."""
        count = self.request.processes.count
        for node in per_process(self.manifest.structure):
            inside = leaf_indices(node)
            if len(node.children) != count and not self.chosen.isdisjoint(inside):
                self.faults.append(
                    f"{self.manifest.leaves[inside[0]].path!r}: was saved by each of "
                    f"{len(node.children)} processes for itself (PerProcess), and there are "
                    f"{count}: leave it out with select="
                )

    def _refuse_strangers(self) -> None:
        """Find fault with nodes whose class does not come back, if something in them is chosen."""
        for node in structure.strangers(self.manifest.structure):
            inside = leaf_indices(node)
            if self.request.select.all or not self.chosen.isdisjoint(inside):
                where = f"{self.manifest.leaves[inside[0]].path!r}: lies in " if inside else ""
                self.faults.append(where + _stranger(node))

    def _is_wanted(self, node: RegisteredNode | PerProcessNode) -> bool:
        """Whether something in a node is chosen, or nothing is in it to be chosen."""
        inside = leaf_indices(node)
        return self.request.select.all or not inside or not self.chosen.isdisjoint(inside)

    def into(self, like: Like) -> Matched:
        """The tree of `like`, with what is selected of the saved one."""
        leaves = self.manifest.leaves
        numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        targets = dict(zip(like.paths, like.leaves, strict=True))
        paths = [*numbers, *(path for path in like.paths if path not in numbers)]
        wanted = self.request.select.of(
            paths, lambda n: self._form(n) if n < len(leaves) else targets[paths[n]]
        )
        chosen = {
            path
            for path, want in zip(paths, wanted, strict=True)
            if want and numbers.get(path) not in self.others
        }
        self.chosen.update(numbers[path] for path in chosen & numbers.keys())
        self._refuse_other_counts()
        asked_for = [path for path in like.paths if path in chosen]
        goals = {}
        for path, place in zip(asked_for, self._wanted(asked_for), strict=True):
            if path in numbers:
                goals[numbers[path]] = self._goal(numbers[path], targets[path], place)
            else:
                self.faults.append(f"{path!r}: asked for {asked(targets[path])}, not saved")
        for path in chosen - targets.keys():
            self.faults.append(
                f"{path!r}: saved {saved(leaves[numbers[path]])}, not asked for; "
                "select= takes a part of what is saved"
            )

        def tree(values: Mapping[int, object]) -> object:
            found = [values[numbers[p]] if p in chosen else targets[p] for p in like.paths]
            return jax.tree_util.tree_unflatten(like.treedef, found)

        return Matched(goals, tree)

    def _wanted(self, paths: Sequence[str]) -> list[object]:
        return self.request.shardings.of(paths, whole=self.request.select.all)

    def _form(self, number: int) -> object:
        entry = self.manifest.leaves[number]
        return forms.form(entry, self.registry, self._devices(entry))

    def _devices(self, entry: LeafEntry) -> tuple[jax.Device, ...]:
        """The devices that a leaf may lie on: this process's, where it is its own."""
        own = entry.path in self.own
        return self.request.own_devices if own else self.request.devices

    def _as_saved(self, number: int, place: object) -> Goal:
        entry = self.manifest.leaves[number]
        handler = self.registry.named(entry.handler)
        if handler is None:
            self.faults.append(
                f"{entry.path!r}: no handler is named {entry.handler!r}; give it as handlers=, or "
                "register its class (ckptmgr.register_leaf)"
            )
            return Goal(_main_array)
        places = {
            array.name: Placement(
                True, self._place(entry, array, DTYPES[array.dtype], array.shape, place)
            )
            for array in entry.arrays
            if array.sharding is not None and place != "numpy"
        }
        return Goal(partial(_decoded, handler, entry), places)

    def _place(
        self,
        entry: LeafEntry,
        array: ArrayEntry | None,
        dtype: np.dtype,
        shape: Shape,
        wanted: object,
    ) -> Sharding | None:
        """Where an array on a device goes; finds fault with what it cannot be there."""
        if dtype.itemsize >= _WIDE and not self.request.x64 and NAMES[dtype] != "complex64":
            self.faults.append(
                f"{entry.path!r}: saved {saved(entry)}; jax holds {dtype.name} only with "
                "jax_enable_x64: switch it on, or load with shardings='numpy' or a narrower like="
            )
        there, devices = self.request.shardings.mesh, self._devices(entry)
        try:
            saved_as = array.sharding if array else None
            return placing.place(saved_as, shape, wanted, there, devices)
        except ValueError as error:
            before = next((array.sharding for array in entry.arrays), None)
            self.faults.append(
                f"{entry.path!r}: saved {saved(entry)} {placing.in_words(before)}; "
                f"cannot be placed as asked for on {len(devices)} devices: {error}"
            )
            return None

    def _goal(self, number: int, target: object, place: object) -> Goal:
        """What a leaf becomes by its target; the same as another of its kind, found with less."""
        kind = None if self.own or place else _kind(self.manifest.leaves[number], target)
        if kind is None:
            return self._as_target(number, target, place)
        goal = self.known.get(kind)
        if goal is None:
            before = len(self.faults)
            goal = self._as_target(number, target, place)
            if len(self.faults) == before:
                self.known[kind] = goal
        return goal

    def _as_target(self, number: int, target: object, place: object) -> Goal:
        entry = self.manifest.leaves[number]
        found = forms.numbers(entry)
        if found is None:
            handler = self.registry.named(entry.handler)
            if handler is None or self._accepts(handler, number, target):
                return self._as_saved(number, self._said(target, place))
            return self._fault(number, target)
        wanted: Any = getattr(target, "dtype", None)
        kind: Any = target if isinstance(target, type) else type(target)
        if isinstance(target, type) and issubclass(target, np.generic):
            wanted = np.dtype(kind)
            target = wanted.type()
        if isinstance(target, _ARRAYS) and _is_number(wanted):
            if not self._shaped(found[0], target.shape) or not self._castable(found[1], wanted):
                return self._fault(number, target)
            if not entry.arrays and not _fits(python_value(entry, {}), wanted):
                return self._fault(number, target)
            return self._as_array(number, target, wanted, place)
        if kind in PYTHON_NUMBERS:
            if found[0] or not self._castable(found[1], PYTHON_NUMBERS[kind]):
                return self._fault(number, target)
            return Goal(partial(_number, kind, entry))
        return self._fault(number, target)

    def _accepts(self, handler: Handler, number: int, target: object) -> bool:
        form = self._form(number)
        try:
            return handler.accepts(form, target)
        except Exception as error:
            raise UndecodableLeaf(
                f"handler {handler.name!r} cannot say whether it takes this leaf: {error!r}",
                leaf=self.manifest.leaves[number].path,
            ) from error

    def _as_array(self, number: int, target: Any, dtype: np.dtype, place: object) -> Goal:
        """The goal of a leaf that becomes an array of the target's kind."""
        shape = tuple(target.shape)
        on_host = {"": Placement(dtype=dtype, shape=shape)}
        if isinstance(target, np.generic):
            return Goal(_main_scalar, on_host)
        if isinstance(target, np.ndarray | NumpyStruct) or place == "numpy":
            return Goal(_main_array, on_host)
        entry = self.manifest.leaves[number]
        # An array that jax placed by itself stays free to move with what it meets.
        array = forms.main(entry) if isinstance(target, jax.ShapeDtypeStruct) else None
        wanted = self._place(entry, array, dtype, shape, self._said(target, place))
        return Goal(_main_array, {"": Placement(True, wanted, dtype, shape)})

    def _said(self, target: object, place: object) -> object:
        """What is said of a leaf: by the caller, or else by the leaf of `like`."""
        return placing.of_target(target) if place is None else place

    def _shaped(self, source: Shape, target: Shape) -> bool:
        return source == target or (self.request.resize and len(source) == len(target))

    def _castable(self, source: np.dtype, target: np.dtype) -> bool:
        native = target.newbyteorder("=")  # bytes are swapped by whoever assigns them
        return source == native or can_cast(source, native, self.request.casting)

    def _fault(self, number: int, target: object) -> Goal:
        entry = self.manifest.leaves[number]
        self.faults.append(
            f"{entry.path!r}: saved {saved(entry)}, asked for {asked(target)}"
            f" (casting={self.request.casting!r}, resize={self.request.resize})"
        )
        return Goal(lambda _: None)


def _stranger(node: CustomNode | RegisteredNode) -> str:
    if isinstance(node, RegisteredNode):
        return (
            f"a node registered as {node.name!r}, of no class that is registered here: register "
            "it again (ckptmgr.register_node), or give a tree of the same structure as like="
        )
    return (
        f"a {node.name}, a class that only jax can flatten: give a tree of the same structure as "
        "like=, or register the class (ckptmgr.register_node) before it is saved"
    )


def _kind(entry: LeafEntry, target: Any) -> Hashable:
    """All that the goal of an array depends on which becomes a jax array; None for other leaves."""
    if len(entry.arrays) != 1 or not isinstance(target, jax.Array | jax.ShapeDtypeStruct):
        return None
    array, committed = entry.arrays[0], getattr(target, "committed", None)
    saved_as = entry.handler, array.name, array.dtype, array.shape, array.sharding
    return (*saved_as, type(target), target.dtype, target.shape, target.sharding, committed)


def _is_number(dtype: object) -> bool:
    return isinstance(dtype, np.dtype) and dtype.newbyteorder("=") in NAMES


def _fits(value: Any, dtype: np.dtype) -> bool:
    """Whether a Python number becomes an item of this dtype; an int must keep its value in one."""
    try:
        item = np.array(value, dtype)
    except (OverflowError, ValueError, TypeError):
        return False
    return not (isinstance(value, int) and jnp.issubdtype(dtype, jnp.integer)) or int(item) == value
