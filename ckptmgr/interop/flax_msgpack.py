"""The wire format of flax: a tree of dicts and arrays in one msgpack file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ckptmgr.errors import MsgpackError, StorageError
from ckptmgr.format import keypath, msgpack
from ckptmgr.format.zarr import NAMES, Shape
from ckptmgr.interop.base import NUMPY, Foreign, Leaf, foreign
from ckptmgr.interop.writing import Item, Read
from ckptmgr.pipeline.extent import Extent

NAME: Final = "msgpack"


@dataclass(frozen=True, slots=True)
class InMemory:
    """An array that is in memory already."""

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        """Its own."""
        return self.array.dtype

    @property
    def shape(self) -> Shape:
        """Its own."""
        return self.array.shape

    @property
    def aside(self) -> int:
        """A part is a view."""
        return 0

    def read(self, extent: Extent) -> np.ndarray:
        """A view of it."""
        return np.asarray(self.array[tuple(slice(start, stop) for start, stop in extent)])


def open_at(path: str) -> Foreign:
    """Open a file; all of it is read, as the format knows no parts.

    Raises:
      DamagedStep, UnsupportedFormat: it cannot be read.
    """
    return foreign(NAME, path, leaves_of(path))


def leaves_of(path: str) -> object:
    """The tree of a file, its arrays as leaves."""
    try:
        with open(path, "rb") as file:
            return _leaves(msgpack.restore(file.read()))
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file=path) from error
    except MsgpackError as error:
        error.file = path
        raise


def _leaves(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _leaves(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_leaves(child) for child in value]
    if isinstance(value, tuple):
        return tuple(_leaves(child) for child in value)
    if isinstance(value, np.ndarray):
        return Leaf(InMemory(value), handler=NUMPY)
    if isinstance(value, np.generic) and value.dtype in NAMES:
        return Leaf(InMemory(np.asarray(value)), handler="numpy.generic")
    if isinstance(value, bytes):
        return Leaf(InMemory(np.frombuffer(value, np.uint8)), "bytes", "bytes")
    return None if value is None else Leaf(value=value)


class Writer:
    """Writes dicts of arrays, numbers and texts. All of it is in memory, as the format has it."""

    def unfit(self, path: str, item: Item) -> str | None:
        """None: it is a tree of dicts, the keys of lists being their places."""
        return "it has no name" if path == "" else None

    def write(
        self, path: str, items: Mapping[str, Item], read: Read, hollow: Mapping[str, object]
    ) -> None:
        """Read all, then write."""
        tree: dict[str, Any] = {}

        def put(name: str, value: object) -> None:
            *above, last = keypath.split(name)
            place = tree
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value

        for name, value in hollow.items():
            put(name, value)
        for name, item in items.items():
            if item.source is None:
                put(name, item.value)
                continue
            with read(item) as array:
                put(name, array)
        with open(path, "xb") as file:
            file.write(msgpack.serialize(tree, in_place=True))
