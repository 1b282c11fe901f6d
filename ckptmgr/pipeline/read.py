"""The read stage: the files of a step become arrays on the host, every byte checked.

A large array is read chunk by chunk straight into the aligned buffer that jax then
takes over without a copy; of a pack the ranges that are wanted, and its leaves are
parts of one buffer. A buffer counts against the limit until its arrays have been
handed over.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from ckptmgr.errors import (
    DamagedStep,
    MissingFile,
    NoFile,
    OutOfMemory,
    StorageError,
    TruncatedFile,
)
from ckptmgr.format import keypath, zarr
from ckptmgr.format.bounds import LARGEST_METADATA
from ckptmgr.format.digest import Digest, digest
from ckptmgr.format.manifest import (
    ALIGNMENT,
    ArrayEntry,
    Grid,
    Manifest,
    Pack,
    PackedBox,
)
from ckptmgr.format.step import ARRAYS, PACKS
from ckptmgr.format.zarr import RAW, Shape
from ckptmgr.limiter import ByteLimiter, Lease
from ckptmgr.pipeline import codec, extent
from ckptmgr.pipeline.extent import Extent
from ckptmgr.pipeline.source import Found, Group, Index, Part, Request, Source
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Storage

_OTHER_METADATA: Final = "its metadata tells other readers of another array than the manifest"
_LARGE: Final = 256 << 20  # bytes; to list its files costs nothing beside reading them
_GAP: Final = 512  # bytes; the padding of small arrays is less than 64


# Of these there are thousands, never part of a cycle: the garbage collector need not count them.
class Wanted(msgspec.Struct, frozen=True, gc=False):
    """An array to read: which array of which leaf, and what the manifest says of it.

    Of an array in files of its own the parts that are delivered are `boxes`, of `nbytes`
    together; of a small one those it was packed in, where they share something with a box.
    `copied`: the bytes that whoever it is delivered to allocates for it, besides.
    """

    leaf: int
    path: str
    entry: ArrayEntry
    boxes: tuple[Extent, ...]
    nbytes: int
    copied: int = 0

    def packed(self) -> Iterator[tuple[int, PackedBox]]:
        """Where it lies in packs, as far as it is wanted, with the numbers of these parts."""
        for number, box in enumerate(self.entry.packed):
            if box.box is None or any(extent.meet(box.box, own) for own in self.boxes):
                yield number, box


class _Member(msgspec.Struct, frozen=True, gc=False):
    """A small array, or a part of one, in a pack."""

    want: Wanted
    number: int
    box: PackedBox

    @property
    def nbytes(self) -> int:
        return self.want.entry.nbytes_of(self.box)

    @property
    def shape(self) -> Shape:
        return self.want.entry.shape if self.box.box is None else extent.shape_of(self.box.box)


class Reader:
    """Reads arrays of one step.

    Args:
      storage, name: where the step lies.
      manifest: what it holds.
      limiter: what the buffers count against.
    """

    def __init__(
        self, storage: Storage, name: str, manifest: Manifest, limiter: ByteLimiter
    ) -> None:
        self._storage = storage
        self._name = name
        self._packs = {pack.process: pack for pack in manifest.packs}
        self._group = manifest.group
        self._limiter = limiter

    async def read(self, wanted: Sequence[Wanted], deliver: Callable[[Found], None]) -> None:
        """Read arrays and deliver them in groups that share a buffer, in no fixed order.

        `deliver` must have passed the group on when it returns: its bytes no longer count then.

        Raises:
          DamagedStep: bytes are missing or are not those that were saved.
        """
        with contextlib.ExitStack() as leases:
            source = Source(self._requests(wanted), self._limiter, leases)
            leases.callback(source.close)

            def worker() -> None:
                while (job := source.next()) is not None:
                    group, part = job
                    self._fill(part)
                    if source.is_last_of(group):
                        deliver(group.found)
                        group.lease.release()
                    del job, group, part  # the buffer is no longer ours to hold

            await run_threads(self._storage.read_tasks, worker, source.stop)

    def _requests(self, wanted: Sequence[Wanted]) -> Iterator[Request]:
        packed: dict[tuple[int, int], list[_Member]] = defaultdict(list)
        for want in wanted:
            if want.entry.grid:
                yield self._own(want, want.entry.grid)
            for number, box in want.packed():
                place = (box.pack, box.offset // self._packs[box.pack].chunk)
                packed[place].append(_Member(want, number, box))
        for (process, cell), members in packed.items():
            yield self._pack(self._packs[process], cell, members)
        group = [want.path for want in wanted if want.entry.grid]
        if group and self._group:
            expected = zarr.group_metadata()
            parts = _metadata(f"{self._name}/{ARRAYS}", self._group, expected, group[0])
            yield Request(LARGEST_METADATA, lambda lease: Group({}, parts, lease, len(parts)))

    def _own(self, want: Wanted, grid: Grid) -> Request:
        """A large array: a buffer for each of its boxes, and one part a chunk."""
        entry, raw = want.entry, grid.codec == RAW
        dtype = zarr.DTYPES[entry.dtype]
        stored = math.prod(grid.chunk) * dtype.itemsize
        size = stored + zarr.CHECKSUM_BYTES if raw else zarr.longest(grid.chunk, stored, grid.codec)
        whole = want.boxes == (extent.whole(entry.shape),)
        run = raw and whole and zarr.is_run(entry.shape, grid.chunk)
        at_a_time = min(self._storage.read_tasks, len(grid.digests))
        aside = 0 if run else at_a_time * (stored if raw else 2 * stored + size)
        directory = f"{self._name}/{ARRAYS}/{keypath.directory(want.path, entry.name)}"

        def make(lease: Lease) -> Group:
            self._refuse_absent(want, grid, directory)
            buffers = [_buffer(box, dtype, want.path) for box in want.boxes]
            parts = []
            for cell, proof in zip(zarr.grid(entry.shape, grid.chunk), grid.digests, strict=True):
                here = tuple((s, s + n) for s, n in zip(cell.start, cell.shape, strict=True))
                go = tuple(_places(here, want.boxes, buffers))
                if not go:
                    continue
                region = go[0][0]
                straight = raw and region.shape == cell.shape and region.flags.c_contiguous
                nbytes = math.prod(cell.shape) * dtype.itemsize
                parts.append(
                    Part(
                        key=f"{directory}/{cell.key}",
                        size=size,
                        checks=((0, nbytes, proof, want.path),),
                        target=_bytes(region) if straight and len(go) == 1 else None,
                        dtype=dtype,
                        shape=cell.shape,
                        go=go,
                        grid=None if raw else grid,
                    )
                )
            expected = zarr.array_metadata(dtype, entry.shape, grid.chunk, grid.codec)
            parts += _metadata(directory, grid.metadata, expected, want.path)
            found = {(want.leaf, entry.name, n): buffer for n, buffer in enumerate(buffers)}
            return Group(found, parts, lease, len(parts))

        return Request(want.nbytes + aside + want.copied, make)

    def _refuse_absent(self, want: Wanted, grid: Grid, directory: str) -> None:
        """Find all files of a very large array before there is memory for it."""
        if want.nbytes < _LARGE:
            return
        there = set(self._storage.files(directory))
        for cell in zarr.grid(want.entry.shape, grid.chunk):
            if cell.key not in there:
                file = f"{self._storage.root}/{directory}/{cell.key}"
                raise DamagedStep("a data file is missing", leaf=want.path, file=file)

    def _pack(self, pack: Pack, cell: int, members: list[_Member]) -> Request:
        """One chunk of a pack: a buffer that all its arrays are parts of, and one part a range."""
        members.sort(key=lambda member: member.box.offset)
        ranges = _ranges([(m.box.offset % pack.chunk, m.nbytes) for m in members])

        def make(lease: Lease) -> Group:
            buffer = aligned(
                sum(-(-(stop - start) // ALIGNMENT) * ALIGNMENT for start, stop, _ in ranges)
            )
            found: dict[tuple[int, str, int], np.ndarray] = {}
            parts, waiting, end = [], iter(members), 0
            for start, stop, count in ranges:
                target = buffer[end : end + stop - start]
                end += -(-(stop - start) // ALIGNMENT) * ALIGNMENT
                checks = []
                for member in itertools.islice(waiting, count):
                    want, first = member.want, member.box.offset % pack.chunk - start
                    last = first + member.nbytes
                    checks.append((first, last, member.box.digest, want.path))
                    span = target[first:last].view(zarr.DTYPES[want.entry.dtype])
                    found[want.leaf, want.entry.name, member.number] = span.reshape(member.shape)
                parts.append(
                    Part(
                        key=f"{self._name}/{PACKS}/{pack.process}/c.{cell}",
                        size=pack.chunk + zarr.CHECKSUM_BYTES,
                        checks=tuple(checks),
                        target=_bytes(target),
                        dtype=target.dtype,
                        shape=target.shape,
                        offset=start,
                    )
                )
            if cell == 0:
                parts += _metadata(
                    f"{self._name}/{PACKS}/{pack.process}",
                    pack.metadata,
                    zarr.pack_metadata(pack.nbytes, pack.chunk),
                    members[0].want.path,
                )
            return Group(found, parts, lease, len(parts))

        copied = sum(member.want.copied for member in members)
        return Request(sum(stop - start + ALIGNMENT for start, stop, _ in ranges) + copied, make)

    def _fill(self, part: Part) -> None:
        """Read a range of one file and check it.

        Raises:
          DamagedStep: it is missing, cut, or its bytes are not those that were saved.
        """
        file, leaf = f"{self._storage.root}/{part.key}", part.checks[0][3]
        try:
            target, wrong = self._read(part)
        except (MissingFile, NoFile, TruncatedFile) as error:
            raise DamagedStep(
                f"a data file: {error.message}", leaf=leaf, file=error.file
            ) from error
        except StorageError as error:
            if getattr(error.__cause__, "errno", None) != errno.EIO:
                raise
            raise DamagedStep(
                f"a data file cannot be read: {error.message}", leaf=leaf, file=error.file
            ) from error
        except ValueError as error:  # a codec's
            raise DamagedStep(f"a data file: {error}", leaf=leaf, file=file) from error
        if wrong is not None:
            raise DamagedStep("the bytes read are not the bytes saved", leaf=wrong, file=file)
        if part.whole is not None and not zarr.says_the_same(target.tobytes(), part.whole):
            raise DamagedStep(_OTHER_METADATA, leaf=leaf, file=file)
        if part.target is None and part.whole is None:
            cell = np.frombuffer(target, part.dtype).reshape(part.shape)
            for region, index in part.go:
                region[...] = cell[index]

    def _read(self, part: Part) -> tuple[memoryview, str | None]:
        """The bytes of a part, in its target if it has one, and the leaf whose digest differs."""
        target = part.target
        if part.whole is not None:
            target = memoryview(self._storage.read(part.key, part.size))
        elif part.grid is not None:
            data, grid = self._storage.read(part.key, part.size), part.grid
            target = _bytes(codec.decode(data, part.shape, part.dtype, grid.chunk, grid.codec))
        else:
            if target is None:
                target = _bytes(np.empty(part.shape, part.dtype))
            start, stop, proof, leaf = part.checks[0]
            found = Digest()  # of what was just read, while it is in the processor's cache
            alone = len(part.checks) == 1 and (start, stop) == (0, len(target))
            seen = found.add if alone else len
            self._storage.read_into(part.key, target, offset=part.offset, size=part.size, seen=seen)
            if alone:
                return target, None if found.text() == proof else leaf
        return target, _first_wrong(target, part.checks)


def _metadata(directory: str, proof: str, expected: bytes, leaf: str) -> list[Part]:
    """The zarr.json of a directory: only other readers need it, but a step is whole or damaged."""
    if not proof:
        return []  # written before there were digests of it
    checks = ((0, LARGEST_METADATA, proof, leaf),)
    key = f"{directory}/{zarr.METADATA}"
    return [Part(key, LARGEST_METADATA, checks, None, np.dtype("uint8"), (), whole=expected)]


def _places(
    cell: Extent, boxes: Sequence[Extent], buffers: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, Index]]:
    """What of the buffers of boxes a chunk fills, each with the part of the chunk that it is."""
    for box, buffer in zip(boxes, buffers, strict=True):
        common = extent.meet(cell, box)
        if common is not None:
            # With an ellipsis it is a view even without dimensions.
            here: Index = (*extent.inside(common, box), ...)
            yield buffer[here], (*extent.inside(common, cell), ...)


def _ranges(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """What to read of a file for these spans, offset and length in order: start, stop, how many.

    A gap of up to `_GAP` bytes is read over: another call to the store costs more than that.
    """
    found: list[tuple[int, int, int]] = []
    for offset, nbytes in spans:
        if found and offset - found[-1][1] <= _GAP:
            start, stop, count = found[-1]
            found[-1] = (start, max(stop, offset + nbytes), count + 1)
        else:
            found.append((offset, offset + nbytes, 1))
    return found


def _buffer(box: Extent, dtype: np.dtype, leaf: str) -> np.ndarray:
    nbytes = extent.items(box) * dtype.itemsize
    try:
        return aligned(nbytes).view(dtype).reshape(extent.shape_of(box))
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(
            f"{nbytes} bytes of memory are not to be had: load a part with select=, or spread "
            "the array with shardings=",
            leaf=leaf,
        ) from error


def aligned(nbytes: int) -> np.ndarray:
    """Fresh memory at a multiple of 64 bytes: jax takes it over without a copy on CPU."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def _first_wrong(data: memoryview, checks: Sequence[tuple[int, int, str, str]]) -> str | None:
    """The leaf of the first span whose digest differs."""
    for start, stop, proof, leaf in checks:
        if digest(data[start:stop]) != proof:
            return leaf
    return None


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
