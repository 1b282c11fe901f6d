"""The assemble stage: arrays become what was asked for as they arrive, then the leaves.

Each is cast and placed as soon as its buffer is filled, many in one call to jax. An
array that lies in other processes too is made of the parts that this one has; what was
saved in other parts is put together here first.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import jax
import msgspec
import numpy as np
from jax.sharding import NamedSharding, Sharding

from ckptmgr.errors import UndecodableLeaf
from ckptmgr.format.manifest import ArrayEntry, Manifest
from ckptmgr.format.zarr import DTYPES, NAMES, Shape
from ckptmgr.future import LoadFuture, Progress
from ckptmgr.pipeline import extent
from ckptmgr.pipeline.broadcast import Sent, broadcast, can_send, replicas, to_bits
from ckptmgr.pipeline.extent import Extent
from ckptmgr.pipeline.forms import python_value
from ckptmgr.pipeline.match import Goal, Placement
from ckptmgr.pipeline.read import Wanted, aligned
from ckptmgr.pipeline.request import Request
from ckptmgr.pipeline.source import Found
from ckptmgr.tree.handlers import Array
from ckptmgr.tree.transfer import put

_ON_HOST: Final = Placement()
Boxes = tuple[np.ndarray, ...]  # the parts of an array, in the order of its target's boxes


class _Target(NamedTuple):
    """What becomes of an array: where it goes, and what of the saved one that takes.

    `devices`: the parts that this process will have, in the shape that is asked for, each
    with its devices; None where it will have the array whole. `axis`: the one of its mesh
    along which it is broadcast; who does not read it needs no boxes.
    """

    place: Placement
    shape: Shape
    dtype: np.dtype
    devices: Mapping[Extent, Sequence[Any]] | None
    boxes: tuple[Extent, ...]
    axis: str | None = None


@dataclass(slots=True)
class _Pieces:
    """A small array that was saved in parts, or is wanted in parts: `left` are still to come."""

    want: Wanted
    boxes: dict[Extent, np.ndarray]  # made when the first of them comes
    left: int


class Assembly:
    """Takes arrays as they are read, until the leaves can be made of them.

    Args:
      manifest: of the step.
      goals: what each leaf becomes, by its number.
      request: what jax is to be told besides.
      future: hears of the progress.

    Attributes:
      wanted: the arrays to read.
    """

    def __init__(
        self, manifest: Manifest, goals: Mapping[int, Goal], request: Request, future: LoadFuture
    ) -> None:
        self._manifest = manifest
        self._goals = goals
        self._request = request
        self._future = future
        self._arrays: dict[tuple[int, str], Array] = {}
        self._mutex = threading.Lock()
        self._sent: dict[tuple[int, str], Sent] = {}
        self._targets = dict(self._all_targets())
        if request.broadcast:
            self._share_reading(None if request.broadcast is True else request.broadcast)
        self.wanted = wanted = self._wanted()
        self._pieces = {
            (want.leaf, want.entry.name): _Pieces(want, {}, sum(1 for _ in want.packed()))
            for want in wanted
            if want.entry.packed and not _arrives_whole(want)
        }
        future.progress = Progress(
            bytes_total=sum(want.nbytes for want in wanted),
            leaves_done=len(goals) - len({want.leaf for want in wanted}),
            leaves_total=len(goals),
        )

    def _share_reading(self, axis: str | None) -> None:
        """Leave to the first replica what the others will have from it."""
        sendable = {
            key: target.place.sharding
            for key, target in self._targets.items()
            if isinstance(target.place.sharding, NamedSharding)
            and target.devices is not None
            and 0 not in target.shape
            and can_send(target.dtype)
        }
        here = self._request.processes.index
        chosen = replicas(list(sendable.values()), axis, here)
        for key, sharding in sendable.items():
            target, replica = self._targets[key], chosen[sharding.mesh]
            boxes = target.boxes if replica.reads else ()
            self._targets[key] = target._replace(axis=replica.axis, boxes=boxes)
            parts = target.devices or {}
            self._sent[key] = Sent(target.shape, target.dtype, sharding, replica.axis, parts, [])

    def broadcast(self) -> None:
        """Send what was read for others, and take what they did. In the caller's thread."""
        keys = sorted(self._sent)
        for (number, name), array in zip(
            keys, broadcast([self._sent[key] for key in keys]), strict=True
        ):
            self._arrays[number, name] = array

    def to_send(self) -> list[tuple[int, str, Shape, str, str]]:
        """What all processes must agree on before they broadcast."""
        return [
            (*key, sent.shape, sent.dtype.name, f"{sent.sharding.spec}, {sent.axis}")
            for key, sent in sorted(self._sent.items())
        ]

    def _all_targets(self) -> Iterator[tuple[tuple[int, str], _Target]]:
        """What becomes of each array; of thousands that go to one place most are alike."""
        known: dict[Hashable, _Target] = {}
        for number, goal in self._goals.items():
            for array in self._manifest.leaves[number].arrays:
                place = goal.places.get(array.name, _ON_HOST)
                kind = id(place), array.shape, array.dtype
                target = known.get(kind)
                if target is None:
                    target = known[kind] = _target(place, array)
                yield (number, array.name), target

    def _wanted(self) -> list[Wanted]:
        """Every array that has bytes to read here."""
        found = []
        for number in self._goals:
            leaf = self._manifest.leaves[number]
            for entry in leaf.arrays:
                target = self._targets[number, entry.name]
                nbytes = entry.nbytes
                if target.devices is not None:
                    items = sum(map(extent.items, target.boxes))
                    nbytes = items * DTYPES[entry.dtype].itemsize
                if nbytes:
                    copied = _copied(target, entry)
                    want = Wanted(number, leaf.path, entry, target.boxes, nbytes, copied)
                    if entry.packed and not _arrives_whole(want):
                        want = msgspec.structs.replace(want, copied=copied + nbytes)
                    found.append(want)
        return found

    def without_bytes(self) -> None:
        """Make the arrays that need no reading: those without items here, or of a Python number."""
        wanted = {(want.leaf, want.entry.name) for want in self.wanted}
        empty: list[tuple[int, str, Boxes]] = []
        for (number, name), target in self._targets.items():
            if (number, name) not in wanted and target.axis is None:
                entry = next(a for a in self._manifest.leaves[number].arrays if a.name == name)
                dtype = DTYPES[entry.dtype]
                boxes = tuple(np.empty(extent.shape_of(box), dtype) for box in target.boxes)
                empty.append((number, name, boxes))
        for number, goal in self._goals.items():
            entry_of = self._manifest.leaves[number]
            if goal.places and not entry_of.arrays:
                place = goal.places[""]
                assert place.dtype is not None
                value = np.array(python_value(entry_of, {}), place.dtype)
                fake = ArrayEntry(NAMES[place.dtype.newbyteorder("=")], ())
                self._targets[number, ""] = _target(place, fake)
                empty.append((number, "", (value,)))
        self._place(empty, alone=True)

    def deliver(self, found: Found) -> None:
        """Cast and place a group of arrays; their buffer is jax's or the caller's afterwards."""
        ready = list(self._complete(found))
        self._place(ready, alone=len(found) == 1)
        with self._mutex:
            done = self._future.progress
            nbytes = sum(array.nbytes for array in found.values())
            self._future.progress = replace(
                done,
                bytes_done=min(done.bytes_total, done.bytes_done + nbytes),
                leaves_done=min(done.leaves_total, done.leaves_done + len(ready)),
            )

    def _complete(self, found: Found) -> Iterable[tuple[int, str, Boxes]]:
        """The arrays of which everything is there now."""
        for key, parts in itertools.groupby(found.items(), lambda item: item[0][:2]):
            pieces = self._pieces.get(key)
            if pieces is None:
                yield *key, tuple(array for _, array in parts)
            elif self._fill(pieces, {part: array for (_, _, part), array in parts}):
                yield *key, tuple(pieces.boxes.values())

    def _fill(self, pieces: _Pieces, arrays: Mapping[int, np.ndarray]) -> bool:
        """Take parts of a small array; whether these were the last."""
        entry = pieces.want.entry
        with self._mutex:
            pieces.boxes = pieces.boxes or _made(pieces.want)
        whole = extent.whole(entry.shape)
        came = [(entry.packed[part].box or whole, array) for part, array in arrays.items()]
        for box, target in pieces.boxes.items():
            extent.fill(target, box, came)
        with self._mutex:
            pieces.left -= len(arrays)
            return not pieces.left

    def _place(self, arrays: Iterable[tuple[int, str, Boxes]], *, alone: bool) -> None:
        """Put arrays where they belong. Those that share a buffer are not `alone`."""
        batches: dict[Sharding | None, list[tuple[int, str, np.ndarray]]] = defaultdict(list)
        spanning: list[tuple[int, str, Boxes]] = []
        for number, name, boxes in arrays:
            target = self._targets[number, name]
            if target.devices is not None:
                spanning.append((number, name, boxes))
                continue
            (box,) = boxes
            array = _ready(box, target.dtype, target.shape)
            if target.place.on_device:
                batches[target.place.sharding].append((number, name, array))
            else:
                # Arrays that share a buffer part here: the caller may write to these.
                self._arrays[number, name] = array if alone else array.copy()
        with jax.enable_x64(True), jax.default_device(self._request.default_device):
            for sharding, batch in batches.items():
                placed = put([array for *_, array in batch], sharding)
                for (number, name, _), array in zip(
                    batch, jax.block_until_ready(placed), strict=True
                ):
                    self._arrays[number, name] = array
            if spanning:
                self._place_parts(spanning)

    def _place_parts(self, arrays: Sequence[tuple[int, str, Boxes]]) -> None:
        """Put the parts that this process has of arrays on its devices; all in one call."""
        parts: list[np.ndarray] = []
        devices: list[Any] = []
        counts: list[int] = []
        for number, name, boxes in arrays:
            target = self._targets[number, name]
            assert target.devices is not None
            found, before = dict(zip(target.boxes, boxes, strict=True)), len(parts)
            for part, holders in target.devices.items():
                source = found[extent.clipped(part, self._saved_shape(number, name))]
                ready = _ready(source, target.dtype, extent.shape_of(part))
                ready = ready if target.axis is None else to_bits(ready)
                parts += [ready] * len(holders)
                devices += holders
            counts.append(len(parts) - before)
        placed = iter(jax.block_until_ready(jax.device_put(parts, devices)))
        for (number, name, _), count in zip(arrays, counts, strict=True):
            target = self._targets[number, name]
            assert target.place.sharding is not None
            if target.axis is not None:
                self._sent[number, name].bits.extend(next(placed) for _ in range(count))
                continue
            self._arrays[number, name] = jax.make_array_from_single_device_arrays(
                target.shape,
                target.place.sharding,
                [next(placed) for _ in range(count)],
                dtype=target.dtype,
            )

    def _saved_shape(self, number: int, name: str) -> Shape:
        arrays = self._manifest.leaves[number].arrays
        return next((entry.shape for entry in arrays if entry.name == name), ())

    def finish(self) -> dict[int, object]:
        """The leaves by their numbers.

        Raises:
          UndecodableLeaf: handlers refuse what they stored; lists every leaf.
        """
        leaves, faults = {}, []
        for number, goal in self._goals.items():
            entry = self._manifest.leaves[number]
            names = [array.name for array in entry.arrays] or list(goal.places)
            arrays = {name: self._arrays[number, name] for name in names}
            try:
                leaves[number] = goal.finish(arrays)
            except Exception as error:  # noqa: BLE001  # of a user's decoder; all are raised below
                faults.append((entry, error))
        if faults:
            first, cause = faults[0]
            raise UndecodableLeaf(
                "these leaves cannot be made of what was stored:"
                + "".join(f"\n  {e.path!r}, handler {e.handler!r}: {why!r}" for e, why in faults),
                leaf=first.path,
            ) from cause
        return leaves


def _target(place: Placement, entry: ArrayEntry) -> _Target:
    """What becomes of a saved array."""
    shape, dtype = place.shape or entry.shape, place.dtype or DTYPES[entry.dtype]
    if place.on_device and place.sharding and not place.sharding.is_fully_addressable:
        devices = extent.of_devices(place.sharding, shape)
        boxes = tuple({extent.clipped(part, entry.shape): None for part in devices})
        return _Target(place, shape, dtype, devices, boxes)
    return _Target(place, shape, dtype, None, (extent.whole(entry.shape),))


def _copied(target: _Target, entry: ArrayEntry) -> int:
    """The bytes that are allocated for an array beside the buffer it is read into."""
    recast = target.shape != entry.shape or target.dtype != DTYPES[entry.dtype]
    again = bool(entry.packed) and not target.place.on_device
    if not (recast or again):
        return 0
    items = sum(map(extent.items, target.devices or [extent.whole(target.shape)]))
    return items * target.dtype.itemsize * (recast + again)


def _arrives_whole(want: Wanted) -> bool:
    """Whether a small array comes in one piece and is wanted so."""
    return want.entry.packed[0].box is None and want.boxes == (extent.whole(want.entry.shape),)


def _made(want: Wanted) -> dict[Extent, np.ndarray]:
    """Memory for the parts of an array."""
    dtype = DTYPES[want.entry.dtype]
    return {
        box: aligned(extent.items(box) * dtype.itemsize).view(dtype).reshape(extent.shape_of(box))
        for box in want.boxes
    }


def _ready(array: np.ndarray, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """The array in the dtype and shape that are asked for."""
    return resized(array, shape).astype(dtype, copy=False)


def resized(array: np.ndarray, shape: Shape) -> np.ndarray:
    """The array padded with zeros, or cut at the end, to a shape of as many axes."""
    if array.shape == shape:
        return array
    size = extent.items(extent.whole(shape)) * array.dtype.itemsize
    found = aligned(size).view(array.dtype).reshape(shape)
    found[...] = np.zeros((), array.dtype)
    both = tuple(slice(min(n, m)) for n, m in zip(array.shape, shape, strict=True))
    found[both] = array[both]
    return found
