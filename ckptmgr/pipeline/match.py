"""Matching: which saved leaf becomes what, decided before a byte is read. Pure.

Without `like` the saved structure and types come back. With it each leaf takes the
type, dtype and sharding of the target's, and all differences are one error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.format.manifest import LeafEntry, Manifest, ShardingEntry
from ckptmgr.format.scalar import from_json
from ckptmgr.format.zarr import DTYPES, NAMES, Shape
from ckptmgr.tree import sharding as shardings_on_disk
from ckptmgr.tree import structure
from ckptmgr.tree.casting import Casting, can_cast, parse_casting
from ckptmgr.tree.handlers import Array
from ckptmgr.tree.registry import Registry

_WIDE: Final = 8  # bytes of an item that jax narrows without jax_enable_x64, complex64 aside
_ARRAYS: Final = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
_NUMBERS: Final = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks of a load, with what jax keeps per thread: made in the caller's.

    Attributes:
      like: leaves, treedef and key paths of the tree to restore into; None for the saved one.
      shardings: None for the saved ones or those of `like`; "numpy"; a Sharding, or a
        prefix tree of them.
      casting: NumPy's word for what dtypes may become.
    """

    like: Like | None
    shardings: object
    casting: Casting
    devices: tuple[jax.Device, ...]
    default_device: jax.Device | str | None
    x64: bool


@dataclass(frozen=True, slots=True)
class Like:
    """A tree to restore into."""

    leaves: list[object]
    treedef: structure.PyTreeDef
    paths: list[str]


def request(like: object, shardings: object, casting: object) -> Request:
    """The request for these arguments, checked as far as they go without the checkpoint.

    Raises:
      InvalidOption: `casting` or `shardings` is nothing that it can be.
      UnsupportedLeaf: `like` cannot be flattened.
    """
    if isinstance(shardings, str) and shardings != "numpy":
        raise InvalidOption(
            f"shardings is 'numpy', a Sharding or a tree of them, not {shardings!r}"
        )
    target = None
    if like is not None:
        leaves, treedef = structure.flatten(like)
        target = Like(leaves, treedef, structure.key_paths(like))
    return Request(
        like=target,
        shardings=shardings,
        casting=parse_casting(casting),
        devices=tuple(jax.devices()),
        default_device=jax.config.jax_default_device,  # type: ignore[attr-defined]  # made at run time
        x64=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]  # made at run time
    )


class Goal(NamedTuple):
    """What a saved leaf becomes.

    Attributes:
      leaf: its number in the manifest.
      finish: makes the leaf of its arrays.
      on_device: whether its arrays become jax Arrays, with `sharding`, or as jax
        places them by itself where that is None.
      dtype: what its main array is cast to, None to keep it.
    """

    leaf: int
    finish: Callable[[Mapping[str, Array]], object]
    on_device: bool = False
    sharding: Sharding | None = None
    dtype: np.dtype | None = None


def _main_array(arrays: Mapping[str, Array]) -> object:
    return arrays[""]


def _number(kind: type, entry: LeafEntry, arrays: Mapping[str, Array]) -> object:
    return kind(python_value(entry, arrays))


def _main_scalar(arrays: Mapping[str, Array]) -> object:
    return np.asarray(arrays[""])[()]


@dataclass(slots=True)
class _Matching:
    """Collects the goals of a load and every reason why it cannot be."""

    manifest: Manifest
    request: Request
    registry: Registry
    faults: list[str] = field(default_factory=list)

    def goals(self) -> list[Goal]:
        """The goal of each leaf, in the order of the tree that is restored into."""
        like = self.request.like
        saved = {leaf.path: number for number, leaf in enumerate(self.manifest.leaves)}
        if like is None:
            structure.build(self.manifest.structure, range(len(saved)))  # or say that it cannot be
            places = self._places(list(saved))
            return [self._as_saved(*pair) for pair in enumerate(places)]
        places = self._places(like.paths)
        goals = []
        for path, target, place in zip(like.paths, like.leaves, places, strict=True):
            if path not in saved:
                self.faults.append(f"{path!r}: asked for {_describe(target)}, not saved")
            else:
                goals.append(self._as_target(saved[path], target, place))
        for path in saved.keys() - set(like.paths):
            entry = self.manifest.leaves[saved[path]]
            self.faults.append(f"{path!r}: saved {_saved(entry)}, not asked for")
        return goals

    def _places(self, paths: list[str]) -> list[object]:
        """The sharding that the caller wants for the leaf at each path; None: nothing was said.

        A prefix tree is matched by key paths, so that a namedtuple matches one of equal fields.
        """
        wanted = self.request.shardings
        if wanted is None or isinstance(wanted, str | Sharding):
            return [wanted] * len(paths)
        said, _ = jax.tree_util.tree_flatten_with_path(wanted, is_leaf=lambda x: x is None)
        prefixes = {structure.path_text(path): place for path, place in said}
        for place in prefixes.values():
            if place is not None and not isinstance(place, Sharding):
                raise InvalidOption(f"shardings holds a {type(place).__name__}, no Sharding")
        used: set[str] = set()
        places = []
        for path in paths:
            prefix = path
            while prefix not in prefixes and prefix:
                prefix = prefix.rpartition("/")[0]
            if prefix not in prefixes:
                raise TreeMismatch("shardings says nothing of this leaf", leaf=path)
            used.add(prefix)
            places.append(prefixes[prefix])
        for prefix, place in prefixes.items():
            if place is not None and prefix not in used:
                raise TreeMismatch("shardings names what the tree does not hold", leaf=prefix)
        return places

    def _as_saved(self, number: int, place: object) -> Goal:
        entry = self.manifest.leaves[number]
        handler = self.registry.named(entry.handler, entry.path)
        finish = partial(handler.decode, entry.value)
        saved = entry.arrays[0].sharding if entry.arrays else None
        if saved is None or place == "numpy":
            return Goal(number, finish)
        dtype = DTYPES[entry.arrays[0].dtype]
        return Goal(number, finish, True, self._place(entry, dtype, saved, place))

    def _place(
        self, entry: LeafEntry, dtype: np.dtype, saved: ShardingEntry | None, place: object
    ) -> Sharding | None:
        """`place` if it is a sharding, else the saved one if it can be had."""
        if dtype.itemsize >= _WIDE and not self.request.x64 and NAMES[dtype] != "complex64":
            self.faults.append(
                f"{entry.path!r}: saved {_saved(entry)}; jax holds {dtype.name} only with "
                "jax_enable_x64: switch it on, or load with shardings='numpy' or a narrower like="
            )
        if isinstance(place, Sharding):
            return place
        return None if saved is None else shardings_on_disk.rebuild(saved, self.request.devices)

    def _as_target(self, number: int, target: object, place: object) -> Goal:
        entry = self.manifest.leaves[number]
        shape, dtype = _form(entry)
        if isinstance(target, _ARRAYS):
            wanted = target.dtype
            if not isinstance(wanted, np.dtype) or wanted.newbyteorder("=") not in NAMES:
                return self._fault(number, target)
            if dtype is None or shape != target.shape or not self._castable(dtype, wanted):
                return self._fault(number, target)
            if not entry.arrays and not _fits(python_value(entry, {}), wanted):
                return self._fault(number, target)
            return self._as_array(number, target, wanted, place)
        kind: Any = type(target)  # one of the four numbers, or else
        if kind in _NUMBERS:
            if dtype is None or shape or not self._castable(dtype, np.dtype(_NUMBERS[kind])):
                return self._fault(number, target)
            return Goal(number, partial(_number, kind, entry))
        handler = self.registry.find(target)
        if dtype is not None or handler is None or handler.name != entry.handler:
            return self._fault(number, target)
        return Goal(number, partial(handler.decode, entry.value))

    def _as_array(self, number: int, target: object, dtype: np.dtype, place: object) -> Goal:
        """The goal of a leaf that becomes an array of the target's kind."""
        if isinstance(target, np.generic):
            return Goal(number, _main_scalar, dtype=dtype)
        if isinstance(target, np.ndarray) or place == "numpy":
            return Goal(number, _main_array, dtype=dtype)
        entry, saved = self.manifest.leaves[number], None
        if isinstance(target, jax.Array):
            # An array that jax placed by itself stays free to move with what it meets.
            place = place or (target.sharding if target.committed else None)
        elif isinstance(target, jax.ShapeDtypeStruct):
            place = place or target.sharding
            saved = entry.arrays[0].sharding if entry.arrays else None
        return Goal(number, _main_array, True, self._place(entry, dtype, saved, place), dtype)

    def _castable(self, source: np.dtype, target: np.dtype) -> bool:
        native = target.newbyteorder("=")  # bytes are swapped by whoever assigns them
        return source == native or can_cast(source, native, self.request.casting)

    def _fault(self, number: int, target: object) -> Goal:
        entry = self.manifest.leaves[number]
        self.faults.append(
            f"{entry.path!r}: saved {_saved(entry)}, asked for {_describe(target)}"
            f" (casting={self.request.casting!r})"
        )
        return Goal(number, lambda _: None)


def match(manifest: Manifest, request: Request, registry: Registry) -> list[Goal]:
    """What each leaf becomes, in the order of the tree that is restored into. Pure.

    Raises:
      TreeMismatch: saved tree and request differ; lists every difference.
    """
    matching = _Matching(manifest, request, registry)
    goals = matching.goals()
    if matching.faults:
        raise TreeMismatch(
            "the saved tree is not the one asked for:\n  " + "\n  ".join(sorted(matching.faults))
        )
    return goals


def describe(manifest: Manifest, like: Like | None) -> object:
    """The saved tree with a `jax.ShapeDtypeStruct` for each array, in the structure of `like`."""
    forms = {
        leaf.path: jax.ShapeDtypeStruct(leaf.arrays[0].shape, DTYPES[leaf.arrays[0].dtype])
        if leaf.arrays
        else leaf.value
        for leaf in manifest.leaves
    }
    if like is not None:
        return jax.tree_util.tree_unflatten(like.treedef, [forms.get(path) for path in like.paths])
    with contextlib.suppress(TreeMismatch):  # a class that comes back through `like` alone
        return structure.build(manifest.structure, list(forms.values()))
    return forms


def _form(entry: LeafEntry) -> tuple[Shape | None, np.dtype | None]:
    """Shape and dtype of a leaf that is a number or an array of them; None twice for others."""
    if entry.handler == "bytes":
        return None, None
    if entry.arrays:
        return entry.arrays[0].shape, DTYPES[entry.arrays[0].dtype]
    value = python_value(entry, {})
    return ((), np.dtype(_NUMBERS[type(value)])) if type(value) in _NUMBERS else (None, None)


def _fits(value: Any, dtype: np.dtype) -> bool:
    """Whether a Python number becomes an item of this dtype; an int must keep its value in one."""
    try:
        item = np.array(value, dtype)
    except (OverflowError, ValueError, TypeError):
        return False
    return not (isinstance(value, int) and jnp.issubdtype(dtype, jnp.integer)) or int(item) == value


def python_value(entry: LeafEntry, arrays: Mapping[str, Array]) -> object:
    """The Python value of a scalar leaf."""
    return np.asarray(arrays[""]).item() if arrays else from_json(entry.value)


def _saved(entry: LeafEntry) -> str:
    shape, dtype = _form(entry)
    if entry.arrays and dtype is not None:
        return f"{dtype.name}[{','.join(map(str, shape or ()))}]"
    return entry.handler if entry.handler != "python" else type(python_value(entry, {})).__name__


def _describe(target: object) -> str:
    shape = getattr(target, "shape", None)
    if shape is None:
        return type(target).__name__
    return f"{getattr(target, 'dtype', '?')}[{','.join(map(str, shape))}]"
