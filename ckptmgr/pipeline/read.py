"""The read stage: the files of a step become arrays on the host, every byte checked.

A large array is read chunk by chunk straight into the aligned buffer that jax then
takes over without a copy; of a pack the ranges that are wanted, and its leaves are
parts of one buffer. A buffer counts against the limit until its arrays have been
handed over.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import EllipsisType
from typing import Final, NamedTuple

import numpy as np

from ckptmgr.errors import DamagedStep, MissingFile, TruncatedFile
from ckptmgr.format import keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    ALIGNMENT,
    LARGEST_MANIFEST,
    LARGEST_RECORD,
    ArrayEntry,
    CommitRecord,
    Grid,
    Manifest,
    Pack,
    decode_manifest,
    decode_record,
)
from ckptmgr.format.step import ARRAYS, COMMIT_RECORD, MANIFEST, PACKS
from ckptmgr.format.zarr import RAW
from ckptmgr.limiter import ByteLimiter, Lease
from ckptmgr.pipeline import codec
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Storage

_GAP: Final = 512  # bytes; the padding of small arrays is less than 64
Found = Mapping[tuple[int, str], np.ndarray]  # by leaf and array name


class Wanted(NamedTuple):
    """An array to read: which array of which leaf, and what the manifest says of it.

    `copied`: the bytes that whoever it is delivered to allocates for it, besides.
    """

    leaf: int
    path: str
    entry: ArrayEntry
    nbytes: int
    copied: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of one file to read: it goes to `target`, where each span has a digest.

    Where the file's bytes are no contiguous run of the array, `target` is None: they are
    read aside, decoded where they have a codec, and copied to `cell`.
    """

    key: str
    size: int  # of the whole file; with a codec, the most that it can be
    checks: tuple[tuple[int, int, str, str], ...]  # start, stop, digest, leaf path
    target: memoryview | None
    cell: np.ndarray
    offset: int = 0
    grid: Grid | None = None  # given where it has a codec


@dataclass(slots=True)
class _Group:
    """Arrays that share a buffer, complete when no part is left to read."""

    found: Found
    parts: list[_Part]
    lease: Lease
    left: int


@dataclass(frozen=True, slots=True)
class _Request:
    """A buffer to be: its bytes, and what makes the group once they are granted."""

    nbytes: int
    make: Callable[[Lease], _Group]


def read_record(storage: Storage, name: str) -> CommitRecord:
    """The commit record of a step.

    Raises:
      MissingFile: there is none, so there is no such step.
      DamagedStep: it is not what was committed.
    """
    return decode_record(_record_bytes(storage, name), f"{storage.root}/{name}/{COMMIT_RECORD}")


def _record_bytes(storage: Storage, name: str) -> bytes:
    try:
        return storage.read(f"{name}/{COMMIT_RECORD}", LARGEST_RECORD)
    except TruncatedFile as error:
        raise DamagedStep(f"the commit record: {error.message}", file=error.file) from error


def read_manifest(storage: Storage, name: str, record: CommitRecord) -> Manifest:
    """The manifest of a step.

    Raises:
      DamagedStep: it is missing or not what was committed.
    """
    key = f"{name}/{MANIFEST}"
    try:
        data = storage.read(key, LARGEST_MANIFEST)
    except (MissingFile, TruncatedFile) as error:
        raise DamagedStep(f"the manifest: {error.message}", file=error.file) from error
    return decode_manifest(data, record, f"{storage.root}/{key}")


def read_both(storage: Storage, name: str) -> tuple[bytes, CommitRecord, Manifest]:
    """The bytes of the commit record of a step, the record, and the manifest that belongs to it.

    Raises:
      MissingFile, DamagedStep: as of `read_record` and `read_manifest`.
    """
    while True:
        data = _record_bytes(storage, name)
        record = decode_record(data, f"{storage.root}/{name}/{COMMIT_RECORD}")
        try:
            return data, record, read_manifest(storage, name, record)
        except DamagedStep:
            # One that was replaced in between is not damaged: read the new one.
            if _record_bytes(storage, name) == data:
                raise


class Reader:
    """Reads arrays of one step.

    Args:
      storage, name: where the step lies.
      packs: the packs of its manifest.
      limiter: what the buffers count against.
    """

    def __init__(
        self, storage: Storage, name: str, packs: Sequence[Pack], limiter: ByteLimiter
    ) -> None:
        self._storage = storage
        self._name = name
        self._packs = {pack.process: pack for pack in packs}
        self._limiter = limiter

    async def read(self, wanted: Sequence[Wanted], deliver: Callable[[Found], None]) -> None:
        """Read arrays and deliver them in groups that share a buffer, in no fixed order.

        `deliver` must have passed the group on when it returns: its bytes no longer count then.

        Raises:
          DamagedStep: bytes are missing or are not those that were saved.
        """
        with contextlib.ExitStack() as leases:
            source = _Source(self._requests(wanted), self._limiter, leases)
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

    def _requests(self, wanted: Sequence[Wanted]) -> Iterator[_Request]:
        packed: dict[tuple[int, int], list[Wanted]] = defaultdict(list)
        for want in wanted:
            if want.entry.grid:
                yield self._own(want, want.entry.grid)
            for box in want.entry.packed:
                packed[box.pack, box.offset // self._packs[box.pack].chunk].append(want)
        for (process, cell), members in packed.items():
            yield self._pack(self._packs[process], cell, members)

    def _own(self, want: Wanted, grid: Grid) -> _Request:
        """A large array: a buffer of its own, and one part a chunk."""
        entry, raw = want.entry, grid.codec == RAW
        dtype = zarr.DTYPES[entry.dtype]
        stored = math.prod(grid.chunk) * dtype.itemsize
        size = stored + zarr.CHECKSUM_BYTES if raw else zarr.longest(grid.chunk, stored, grid.codec)
        run = raw and zarr.is_run(entry.shape, grid.chunk)
        at_a_time = min(self._storage.read_tasks, len(grid.digests))
        aside = 0 if run else at_a_time * (stored if raw else 2 * stored + size)
        directory = f"{self._name}/{ARRAYS}/{keypath.directory(want.path, entry.name)}"

        def make(lease: Lease) -> _Group:
            whole = aligned(want.nbytes).view(dtype).reshape(entry.shape)
            parts = []
            for cell, proof in zip(zarr.grid(entry.shape, grid.chunk), grid.digests, strict=True):
                index: list[slice | EllipsisType] = [...]  # a view even without dimensions
                index[:0] = (slice(s, s + n) for s, n in zip(cell.start, cell.shape, strict=True))
                region = whole[tuple(index)]
                parts.append(
                    _Part(
                        key=f"{directory}/{cell.key}",
                        size=size,
                        checks=((0, region.nbytes, proof, want.path),),
                        target=_bytes(region) if raw and region.flags.c_contiguous else None,
                        cell=region,
                        grid=None if raw else grid,
                    )
                )
            return _Group({(want.leaf, entry.name): whole}, parts, lease, len(parts))

        return _Request(want.nbytes + aside + want.copied, make)

    def _pack(self, pack: Pack, cell: int, members: list[Wanted]) -> _Request:
        """One chunk of a pack: a buffer that all its arrays are parts of, and one part a range."""
        members.sort(key=lambda want: want.entry.packed[0].offset)
        ranges = _ranges([(w.entry.packed[0].offset % pack.chunk, w.nbytes) for w in members])

        def make(lease: Lease) -> _Group:
            buffer = aligned(
                sum(-(-(stop - start) // ALIGNMENT) * ALIGNMENT for start, stop, _ in ranges)
            )
            found: dict[tuple[int, str], np.ndarray] = {}
            parts, waiting, end = [], iter(members), 0
            for start, stop, count in ranges:
                target = buffer[end : end + stop - start]
                end += -(-(stop - start) // ALIGNMENT) * ALIGNMENT
                checks = []
                for want in itertools.islice(waiting, count):
                    entry, box = want.entry, want.entry.packed[0]
                    first = box.offset % pack.chunk - start
                    checks.append((first, first + want.nbytes, box.digest, want.path))
                    span = target[first : first + want.nbytes].view(zarr.DTYPES[entry.dtype])
                    found[want.leaf, entry.name] = span.reshape(entry.shape)
                parts.append(
                    _Part(
                        key=f"{self._name}/{PACKS}/{pack.process}/c.{cell}",
                        size=pack.chunk + zarr.CHECKSUM_BYTES,
                        checks=tuple(checks),
                        target=_bytes(target),
                        cell=target,
                        offset=start,
                    )
                )
            return _Group(found, parts, lease, len(parts))

        copied = sum(want.copied for want in members)
        return _Request(sum(stop - start + ALIGNMENT for start, stop, _ in ranges) + copied, make)

    def _fill(self, part: _Part) -> None:
        """Read a range of one file and check it.

        Raises:
          DamagedStep: it is missing, cut, or its bytes are not those that were saved.
        """
        file, leaf = f"{self._storage.root}/{part.key}", part.checks[0][3]
        try:
            target = self._read(part)
        except (MissingFile, TruncatedFile) as error:
            raise DamagedStep(
                f"a data file: {error.message}", leaf=leaf, file=error.file
            ) from error
        except ValueError as error:  # a codec's
            raise DamagedStep(f"a data file: {error}", leaf=leaf, file=file) from error
        wrong = _first_wrong(target, part.checks)
        if wrong is not None:
            raise DamagedStep("the bytes read are not the bytes saved", leaf=wrong, file=file)
        if part.target is None:
            part.cell[...] = np.frombuffer(target, part.cell.dtype).reshape(part.cell.shape)

    def _read(self, part: _Part) -> memoryview:
        """The bytes of a part, in its target if it has one."""
        if part.grid is not None:
            data = self._storage.read(part.key, part.size)
            cell, grid = part.cell, part.grid
            return _bytes(codec.decode(data, cell.shape, cell.dtype, grid.chunk, grid.codec))
        target = part.target
        if target is None:
            target = _bytes(np.empty(part.cell.shape, part.cell.dtype))
        self._storage.read_into(part.key, target, offset=part.offset, size=part.size)
        return target


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


class _Source:
    """Hands out the parts of one request after the other, each once its bytes are granted."""

    def __init__(
        self, requests: Iterator[_Request], limiter: ByteLimiter, leases: contextlib.ExitStack
    ) -> None:
        self._requests = requests
        self._limiter = limiter
        self._leases = leases
        self._turn = threading.Lock()  # held while waiting for the limiter
        self._counting = threading.Lock()  # so this is another: what waits ends by a group's end
        self._waiting: Future[Lease] | None = None
        self._stopped = False
        self._parts = self._all()

    def next(self) -> tuple[_Group, _Part] | None:
        """The next part; None after the last, or once stopped."""
        with self._turn:
            return None if self._stopped else next(self._parts, None)

    def is_last_of(self, group: _Group) -> bool:
        """Whether the part that was just filled was the last one of its group."""
        with self._counting:
            group.left -= 1
            return not group.left

    def stop(self) -> None:
        """Hand out no more, not even what waits for the limiter now."""
        self._stopped = True
        waiting = self._waiting
        if waiting is not None:
            self._limiter.give_up(waiting)

    def close(self) -> None:
        """Let go of the last group."""
        self._parts.close()

    def _all(self) -> Generator[tuple[_Group, _Part], None, None]:
        for request in self._requests:
            self._waiting = self._limiter.request(request.nbytes)
            if self._stopped:
                self._limiter.give_up(self._waiting)
            try:
                lease = self._waiting.result()
            except CancelledError:
                return
            self._leases.callback(lease.release)
            group = request.make(lease)
            for part in group.parts:
                yield group, part


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
