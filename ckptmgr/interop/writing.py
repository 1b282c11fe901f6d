"""Writing a checkpoint in a format of others: leaf by leaf, and none of it where one does not fit.

What cannot be expressed is found before anything is written, and all of it is told. The
file gets its name when it is whole and durable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ckptmgr.errors import StepExists, StorageError, UnsupportedFormat
from ckptmgr.format import keypath
from ckptmgr.format.manifest import DictNode, LeafEntry, Node, NoneNode
from ckptmgr.format.scalar import from_json
from ckptmgr.format.step import nonce
from ckptmgr.format.zarr import Shape
from ckptmgr.future import Progress
from ckptmgr.interop.base import JAX, NUMPY, PYTHON, Foreign, Source
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline import extent

_SHOWN = 10
Tell = Callable[[Progress], None]


class Format(Protocol):
    """A format that can be written."""

    def unfit(self, path: str, item: Item) -> str | None:
        """Why a leaf cannot be expressed, if it cannot."""

    def write(
        self, path: str, items: Mapping[str, Item], read: Read, hollow: Mapping[str, object]
    ) -> None:
        """Write all of them to a path that is new; `read` gives the array of each.

        `hollow`: the paths of None and of empty containers, for those that have a place for them.
        """


@dataclass(frozen=True, slots=True)
class Item:
    """A leaf: an array to be read, or a plain value."""

    source: Source | None
    value: object

    @property
    def dtype(self) -> np.dtype:
        """Of the array, or of the value as one."""
        return self.source.dtype if self.source else np.asarray(self.value).dtype

    @property
    def shape(self) -> Shape:
        """Of the array."""
        return self.source.shape if self.source else ()

    @property
    def nbytes(self) -> int:
        """Of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


Read = Callable[[Item], contextlib.AbstractContextManager[np.ndarray]]


def export(
    found: Foreign, target: str, form: Format, name: str, limiter: ByteLimiter, tell: Tell
) -> None:
    """Write a checkpoint to `target` in another format; blocks until it is durable.

    Raises:
      StepExists: there is something of that name.
      UnsupportedFormat: leaves cannot be expressed; names them and says why.
      DamagedStep: what is to be read is not whole; nothing is left then.
      StorageError: it cannot be written.
    """
    if os.path.lexists(target):
        raise StepExists("there is something of this name; remove it first", file=target)
    items, faults = _items(found)
    faults += [
        f"{path!r}: {why}" for path, item in items.items() if (why := form.unfit(path, item))
    ]
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise UnsupportedFormat(
            f"{name} cannot express these leaves; leave them out with --select, or change them "
            "with --dtype:\n  " + "\n  ".join(faults[:_SHOWN]) + more,
            file=target,
        )
    total, done = sum(item.nbytes for item in items.values()), 0

    @contextlib.contextmanager
    def read(item: Item) -> Iterator[np.ndarray]:
        nonlocal done
        aside = item.source.aside if item.source else 0
        with limiter.acquire(item.nbytes + aside):
            yield _array(item)
        done += item.nbytes
        tell(Progress(done, total))

    new = f"{target}.{nonce()}"
    try:
        form.write(new, items, read, _hollow(found.manifest.structure, ()))
        sync(new)
        os.rename(new, target)
        sync(os.path.dirname(os.path.abspath(target)))
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", file=target) from error
    finally:
        if os.path.isdir(new):
            shutil.rmtree(new)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def _items(found: Foreign) -> tuple[dict[str, Item], list[str]]:
    items: dict[str, Item] = {}
    faults = []
    for number, leaf in enumerate(found.manifest.leaves):
        why = _strange(leaf)
        if why:
            faults.append(f"{leaf.path!r}: {why}")
        elif leaf.handler == PYTHON:
            items[leaf.path] = Item(None, from_json(leaf.value))
        else:
            items[leaf.path] = Item(found.sources.get(number), None)
    return items, faults


def _hollow(node: Node, keys: tuple[object, ...]) -> dict[str, object]:
    """None, and empty containers as dicts, by their paths."""
    if isinstance(node, int):
        return {}
    path = keypath.join(keys)
    if isinstance(node, NoneNode):
        return {path: None}
    if not node.children:
        return {path: {}}
    below = node.keys if isinstance(node, DictNode) else range(len(node.children))
    found: dict[str, object] = {}
    for key, child in zip(below, node.children, strict=True):
        found |= _hollow(child, (*keys, from_json(key) if isinstance(node, DictNode) else key))
    return found


def _strange(leaf: LeafEntry) -> str | None:
    """Why a leaf is none that other formats know, if it is."""
    known = (JAX, NUMPY, "numpy.generic", PYTHON)
    return (
        None
        if leaf.handler in known and (leaf.handler == PYTHON or leaf.value is None)
        else (f"it is a {leaf.handler}")
    )


def _array(item: Item) -> np.ndarray:
    if item.source is None:
        return np.asarray(item.value)
    return item.source.read(extent.whole(item.shape))


def sync(path: str) -> None:
    """Make a file or directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
