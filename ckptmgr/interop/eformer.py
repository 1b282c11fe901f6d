"""eformer's `tensorstore_index.json`: one Zarr 2 array a leaf, at its dotted path.

The index of version 2 has the arrays of several named trees, that of version 1 of one
without a name. Lists come back as what they were saved as, dicts; what is pickled beside
it is never read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from ckptmgr.errors import DamagedStep, NoSuchStep, UnsupportedFormat
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.interop.base import JAX, NUMPY, Foreign, Leaf, foreign, nested, read_json
from ckptmgr.interop.recognise import EFORMER_INDEX
from ckptmgr.interop.tensorstores import ZARR2, Arrays, create
from ckptmgr.interop.writing import Item, Read

NAME: Final = "eformer"
_WIDE: Final = ("int64", "uint64", "float64", "complex128")


class Entry(msgspec.Struct):
    """An array of the index; `path` as its keys joined by dots."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class Index(msgspec.Struct):
    """The file."""

    format: str = "tensorstore"
    version: int | str = 1
    prefixes: dict[str, list[Entry]] | None = None
    arrays: list[Entry] | None = None


def open_at(path: str, prefix: str | None = None) -> Foreign:
    """Open a directory: the tree of a prefix, or all of them by their names.

    Raises:
      NoSuchStep: there is no such prefix; names those that there are.
      DamagedStep, UnsupportedFormat: it cannot be read.
    """
    index = read_json(f"{path}/{EFORMER_INDEX}", Index, "index of eformer's")
    if index.format != "tensorstore":
        raise UnsupportedFormat(f"an index of {index.format!r} is not known", file=path)
    arrays = Arrays(path, zarr3=False, ocdbt=False)
    trees = index.prefixes or {}
    if prefix is not None:
        if prefix not in trees:
            raise NoSuchStep(f"no tree is called {prefix!r}; there are {sorted(trees)}", file=path)
        return foreign(NAME, path, _tree(arrays, trees[prefix]))
    if not trees:
        return foreign(NAME, path, _tree(arrays, index.arrays or []))
    return foreign(NAME, path, {name: _tree(arrays, found) for name, found in trees.items()})


def _tree(arrays: Arrays, entries: list[Entry]) -> object:
    for entry in entries:
        if any(part in ("", ".", "..") or "\0" in part for part in _parts(entry.path)):
            raise DamagedStep(f"{entry.path!r} is no path of an array", leaf=entry.path)
    sources = arrays.open_all(["/".join(_parts(entry.path)) for entry in entries])
    flat: list[tuple[list[tuple[object, bool]], object]] = []
    for entry, source in zip(entries, sources, strict=True):
        if source.shape != entry.shape or source.dtype.name != entry.dtype:
            raise DamagedStep(
                f"it is {source.dtype}{list(source.shape)}, and {entry.dtype}{list(entry.shape)} "
                "by the index",
                leaf=entry.path,
            )
        keys: list[tuple[object, bool]] = [(key, False) for key in _parts(entry.path)]
        # What jax holds only with jax_enable_x64 comes back as numpy's.
        leaf = Leaf(source, handler=JAX, sharding=ShardingEntry())
        flat.append((keys, Leaf(source, handler=NUMPY) if source.dtype.name in _WIDE else leaf))
    return nested(flat) if flat else {}


def _parts(path: str) -> list[str]:
    return path.replace("/", ".").split(".")


class Writer:
    """Writes Zarr 2 arrays at dotted paths, then the index; Python numbers as arrays of one."""

    def unfit(self, path: str, item: Item) -> str | None:
        """Texts, names that would lead elsewhere, and dtypes that Zarr 2 lacks."""
        if item.source is None and not isinstance(item.value, bool | int | float):
            return f"it is a {type(item.value).__name__}"
        if any(part in ("", ".", "..") or "." in part or "~" in part for part in path.split("/")):
            return "its name would not come back as it is"
        return None if item.dtype.name in ZARR2 else f"Zarr 2 has no dtype {item.dtype}"

    def write(
        self, path: str, items: Mapping[str, Item], read: Read, hollow: Mapping[str, object]
    ) -> None:
        """One array after the other."""
        os.mkdir(path)
        entries = []
        for name, item in items.items():
            with read(item) as array:
                create(f"{path}/{name}", array)
            entries.append(Entry(name.replace("/", "."), item.shape, item.dtype.name))
        with open(f"{path}/{EFORMER_INDEX}", "xb") as file:
            file.write(msgspec.json.encode(Index(version=1, arrays=entries)))
            os.fsync(file.fileno())
