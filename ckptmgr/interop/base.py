"""What a checkpoint of another library is opened as: a manifest, and sources of its arrays."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from ckptmgr.errors import DamagedStep, StorageError, UnsupportedFormat
from ckptmgr.format import keypath
from ckptmgr.format.manifest import (
    FORMAT,
    ArrayEntry,
    DictNode,
    Grid,
    LeafEntry,
    ListNode,
    Manifest,
    Node,
    NoneNode,
    ShardingEntry,
    TupleNode,
)
from ckptmgr.format.scalar import to_json
from ckptmgr.format.zarr import NAMES, Shape
from ckptmgr.pipeline.extent import Extent

LARGEST: Final = 1 << 30  # bytes of a file of metadata
# What msgspec raises of bytes that are something else.
NO_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
JAX, NUMPY, PYTHON = "jax.Array", "numpy.ndarray", "python"


class Source(Protocol):
    """An array that can be read in parts, from any thread.

    Attributes:
      dtype, shape: what it is.
      aside: the bytes that reading a part allocates beside it.
    """

    @property
    def dtype(self) -> np.dtype: ...  # noqa: D102  # told above

    @property
    def shape(self) -> Shape: ...  # noqa: D102

    @property
    def aside(self) -> int: ...  # noqa: D102

    def read(self, extent: Extent) -> np.ndarray:
        """A part of it; blocks.

        Raises:
          DamagedStep: a chunk is missing, or cannot be decoded.
        """


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a tree of another library.

    Attributes:
      source: its array; None: it is `value`.
      value: a str, int, float, bool or None; beside an array what its handler needs to know.
      handler: which of ours makes it.
      sharding: how it lay on devices, where that is known.
    """

    source: Source | None = None
    value: object = None
    handler: str = PYTHON
    sharding: ShardingEntry | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """An opened checkpoint of another library.

    Attributes:
      format: what it is called.
      path: where it lies.
      manifest: what it holds, as ours says it.
      sources: of its arrays, by the numbers of their leaves.
      step: which step of its run it is, where it is one of one.
      metrics, metadata: what else it says of itself.
    """

    format: str
    path: str
    manifest: Manifest
    sources: Mapping[int, Source]
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def foreign(name: str, path: str, tree: object, step: int | None = None) -> Foreign:
    """A tree of dicts, lists, tuples, None and `Leaf`s as a checkpoint.

    Raises:
      UnsupportedFormat: two leaves have one key path, or an array a dtype that we do not know.
    """
    leaves: list[LeafEntry] = []
    sources: dict[int, Source] = {}
    structure = _node(tree, (), leaves, sources, path)
    paths = [leaf.path for leaf in leaves]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UnsupportedFormat("two leaves have this key path", leaf=twice, file=path)
    return Foreign(name, path, Manifest(FORMAT, structure, tuple(leaves)), sources, step)


def _node(
    tree: object,
    keys: tuple[object, ...],
    leaves: list[LeafEntry],
    sources: dict[int, Source],
    path: str,
) -> Node:
    def below(key: object, child: object) -> Node:
        return _node(child, (*keys, key), leaves, sources, path)

    match tree:
        case None:
            return NoneNode()
        case dict():
            kept = isinstance(tree, OrderedDict)
            named = not kept and all(isinstance(key, str) for key in tree)
            ordered = sorted(tree) if named else list(tree)
            children = tuple(below(key, tree[key]) for key in ordered)
            return DictNode(tuple(map(to_json, ordered)), children, kept)
        case list():
            return ListNode(tuple(below(n, child) for n, child in enumerate(tree)))
        case tuple():
            return TupleNode(tuple(below(n, child) for n, child in enumerate(tree)))
        case Leaf():
            if tree.source is not None:
                sources[len(leaves)] = tree.source
            leaves.append(_entry(tree, keypath.join(keys), path))
            return len(leaves) - 1
    raise AssertionError(f"{type(tree)} is no tree of a format")


def _entry(leaf: Leaf, path: str, file: str) -> LeafEntry:
    source = leaf.source
    if source is None:
        return LeafEntry(path, leaf.handler, to_json(leaf.value))
    if source.dtype not in NAMES:
        raise UnsupportedFormat(f"no dtype {source.dtype} is known", leaf=path, file=file)
    # Where it lies is the source's to know: to who reads it it is one chunk.
    grid = Grid(source.shape, ("",)) if 0 not in source.shape else None
    array = ArrayEntry(NAMES[source.dtype], source.shape, sharding=leaf.sharding, grid=grid)
    value = None if leaf.value is None else to_json(leaf.value)
    return LeafEntry(path, leaf.handler, value, (array,))


def read_json(file: str, kind: Any, what: str) -> Any:
    """The JSON in a file, of a type.

    Raises:
      StorageError: it cannot be read.
      DamagedStep: it is something else than `what` it should be.
    """
    try:
        if os.path.getsize(file) > LARGEST:
            raise DamagedStep(f"{what} is larger than a reader takes", file=file)
        with open(file, "rb") as opened:
            return msgspec.json.decode(opened.read(), type=kind)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file=file) from error
    except NO_JSON as error:
        raise DamagedStep(f"this is no {what}: {error}", file=file) from error


def nested(flat: Sequence[tuple[Sequence[tuple[object, bool]], object]]) -> object:
    """A tree of leaves by their keys, each with whether it is the place in a list. Pure.

    What is the place in a list at one level is so at all of it, else it is a dict.

    Raises:
      UnsupportedFormat: the path of one is the beginning of another's.
    """
    if any(not keys for keys, _ in flat):
        if len(flat) > 1:
            raise UnsupportedFormat("the key path of one leaf is the beginning of another's")
        return flat[0][1]
    groups: dict[object, list[tuple[Sequence[tuple[object, bool]], object]]] = {}
    for keys, leaf in flat:
        groups.setdefault(keys[0][0], []).append((keys[1:], leaf))
    children = {key: nested(group) for key, group in groups.items()}
    places = list(map(str, range(len(children))))
    if all(keys[0][1] for keys, _ in flat) and {str(key) for key in children} == set(places):
        by_place = {str(key): child for key, child in children.items()}
        return [by_place[place] for place in places]
    return children
