"""`diff`: what changed from one step to another, by the digests in their manifests.

Nothing else is read, unless `values` asks how much an array has changed, or a leaf lies
in other chunks than before, so that the digests of the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import anyio
import numpy as np

from ckptmgr.cli import leaves, text
from ckptmgr.cli.checking import LIMIT
from ckptmgr.cli.contents import opened
from ckptmgr.cli.runs import look
from ckptmgr.cli.text import Column
from ckptmgr.format import zarr
from ckptmgr.format.manifest import ArrayEntry, LeafEntry, Manifest
from ckptmgr.format.step import step_name
from ckptmgr.limiter import ByteLimiter
from ckptmgr.storage.base import Storage

_AT_A_TIME: Final = 256 << 20  # bytes of arrays that are compared together
_ITEMS: Final = 1 << 20  # that are compared at a time


class Change(NamedTuple):
    """A leaf that differs: how, and of numbers the largest and the mean difference.

    `kind`: "added", "removed", "changed"; "rechunked" until it is known whether that is all.
    """

    kind: str
    path: str
    what: str
    largest: float | None = None
    mean: float | None = None


def diff(url: str, one: str, other: str, *, values: bool, json: bool) -> bool:
    """Print what differs from step `one` to step `other`; whether anything does."""
    seen = look(url)
    sides = [
        Side(seen.storage, name, opened(seen.storage, name)[1])
        for name in (step_name(seen.step(one)), step_name(seen.step(other)))
    ]
    before, after = ({leaf.path: leaf for leaf in side.manifest.leaves} for side in sides)
    changes = list(changed(before, after))
    read = {c.path for c in changes if c.kind == "rechunked" or (values and c.kind == "changed")}
    if read:
        changes = _measured(sides, changes, read)
    same = len(before.keys() & after.keys()) - sum(
        change.kind in ("changed", "rechunked") for change in changes
    )
    if json:
        text.say_json({"changes": changes, "equal": same})
    else:
        text.say(_lines(changes))
        kinds = [change.kind for change in changes]
        counts = [f"{kinds.count(kind)} {kind}" for kind in ("added", "removed", "changed")]
        text.say(f"{', '.join(counts)}, {same} equal")
    return bool(changes)


class Side(NamedTuple):
    """One of the two steps."""

    storage: Storage
    name: str
    manifest: Manifest


def changed(before: Mapping[str, LeafEntry], after: Mapping[str, LeafEntry]) -> Iterator[Change]:
    """What differs, as far as manifests tell. Pure."""
    for path, leaf in before.items():
        new = after.get(path)
        if new is None:
            yield Change("removed", path, leaves.kind(leaf))
        elif leaf != new:
            yield from _changed(leaf, new)
    for path, leaf in after.items():
        if path not in before:
            yield Change("added", path, leaves.kind(leaf))


def _changed(old: LeafEntry, new: LeafEntry) -> Iterator[Change]:
    if leaves.kind(old) != leaves.kind(new) or old.handler != new.handler:
        yield Change("changed", old.path, f"{leaves.kind(old)} -> {leaves.kind(new)}")
    elif old.value != new.value:
        yield Change("changed", old.path, f"{old.value} -> {new.value}")
    elif [_layout(array) for array in old.arrays] != [_layout(array) for array in new.arrays]:
        yield Change("rechunked", old.path, leaves.kind(new))
    elif [_digests(array) for array in old.arrays] != [_digests(array) for array in new.arrays]:
        yield Change("changed", old.path, leaves.kind(new))


def _layout(array: ArrayEntry) -> object:
    """What a digest is of; where this differs digests cannot be compared."""
    return (array.grid and array.grid.chunk, sorted(box.box or () for box in array.packed))


def _digests(array: ArrayEntry) -> object:
    packed = sorted((box.box or (), box.digest) for box in array.packed)
    return (array.grid and array.grid.digests, packed)


def _measured(sides: Sequence[Side], changes: list[Change], read: set[str]) -> list[Change]:
    """The changes with the differences of those leaves; a rechunked one that is equal is none."""
    found: dict[str, Change | None] = {}
    todo = [change for change in changes if change.path in read]
    kinds = [{x.path for x in side.manifest.leaves if leaves.is_array(x)} for side in sides]
    numeric = kinds[0] & kinds[1]
    sizes = {leaf.path: leaves.nbytes(leaf) for side in sides for leaf in side.manifest.leaves}
    while todo:
        batch, nbytes = [todo.pop()], 0
        while todo and nbytes + sizes[todo[-1].path] <= _AT_A_TIME:
            nbytes += sizes[todo[-1].path]
            batch.append(todo.pop())
        arrays = [values_of(side, {change.path for change in batch}) for side in sides]
        for change in batch:
            old, new = (side[change.path] for side in arrays)
            numbers = change.path in numeric
            found[change.path] = _difference(change, old, new, numbers=numbers)
    kept = (found.get(change.path, change) for change in changes)
    return [change for change in kept if change is not None]


def _difference(
    change: Change, old: Sequence[np.ndarray], new: Sequence[np.ndarray], *, numbers: bool
) -> Change | None:
    pairs = list(zip(old, new, strict=False))
    if change.kind == "rechunked":
        if all(a.tobytes() == b.tobytes() for a, b in pairs):
            return None
        change = change._replace(kind="changed")
    comparable = numbers and all(a.shape == b.shape for a, b in pairs)
    if not comparable or not sum(a.size for a, _ in pairs):
        return change
    largest, total, items = 0.0, 0.0, 0
    for a, b in pairs:
        for start in range(0, a.size, _ITEMS):
            apart = _apart(
                a.reshape(-1)[start : start + _ITEMS], b.reshape(-1)[start : start + _ITEMS]
            )
            largest, total = max(largest, float(apart.max())), total + float(apart.sum())
        items += a.size
    return change._replace(largest=largest, mean=total / items)


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How far apart items are: 0 where they are equal or both no number, inf where one is none."""
    # Wide enough for every int of 64 bits, where the machine has such floats.
    wide: Any = np.complex128 if one.dtype.kind == "c" else np.longdouble
    with np.errstate(all="ignore"):
        a, b = one.astype(wide), other.astype(wide)
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    found: np.ndarray = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
    return found


def values_of(side: Side, paths: set[str]) -> dict[str, list[np.ndarray]]:
    """The arrays of some leaves, each byte of them checked."""
    # What reads arrays needs jax, which takes half a second to import.
    from ckptmgr.pipeline import extent  # noqa: PLC0415
    from ckptmgr.pipeline.read import Reader, Wanted  # noqa: PLC0415
    from ckptmgr.pipeline.source import Found  # noqa: PLC0415

    wanted = {
        (number, array.name): Wanted(
            number, leaf.path, array, (extent.whole(array.shape),), array.nbytes
        )
        for number, leaf in enumerate(side.manifest.leaves)
        if leaf.path in paths
        for array in leaf.arrays
    }
    parts: dict[tuple[int, str], list[tuple[extent.Extent, np.ndarray]]] = {}

    def deliver(found: Found) -> None:
        for (leaf, name, number), piece in found.items():
            entry = wanted[leaf, name].entry
            box = entry.packed[number].box if entry.packed else None
            place = extent.whole(entry.shape) if box is None else box
            parts.setdefault((leaf, name), []).append((place, np.array(piece)))

    reader = Reader(side.storage, side.name, side.manifest, ByteLimiter(LIMIT))
    with side.storage.reading(side.name):
        anyio.run(reader.read, list(wanted.values()), deliver)
    result: dict[str, list[np.ndarray]] = {path: [] for path in paths}
    for key, want in wanted.items():
        array = np.empty(want.entry.shape, zarr.DTYPES[want.entry.dtype])
        extent.fill(array, extent.whole(want.entry.shape), parts.get(key, []))
        result[want.path].append(array)
    return result


def _lines(changes: Sequence[Change]) -> Sequence[str]:
    measured = any(change.largest is not None for change in changes)
    columns = [Column(""), Column("leaf"), Column("what")]
    rows = [[change.kind, change.path, change.what] for change in changes]
    if measured:
        columns[2:2] = [Column("largest", right=True), Column("mean", right=True)]
        for row, change in zip(rows, changes, strict=True):
            row[2:2] = [
                "" if value is None else f"{value:.4g}" for value in (change.largest, change.mean)
            ]
    return list(text.table(columns, rows)) if rows else []
