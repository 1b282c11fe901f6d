"""The read stage: the files of a step become arrays on the host, every byte checked.

A large array is read chunk by chunk straight into the aligned buffer that jax then
takes over without a copy; a pack is read whole and its leaves are parts of that one
buffer. A buffer counts against the limit until its arrays have been handed over.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import EllipsisType
from typing import NamedTuple

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
from ckptmgr.format.zarr import Shape
from ckptmgr.limiter import ByteLimiter, Lease
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Storage

Found = Mapping[tuple[int, str], np.ndarray]  # by leaf and array name


class Wanted(NamedTuple):
    """An array to read: which array of which leaf, and what the manifest says of it."""

    leaf: int
    path: str
    entry: ArrayEntry
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """One file to read: its first bytes go to `target`, where each span has a digest.

    Where the file's bytes are no contiguous run of the array, `target` is None: they are
    read aside and copied to `cell`.
    """

    key: str
    size: int
    checks: tuple[tuple[int, int, str, str], ...]  # start, stop, digest, leaf path
    target: memoryview | None
    cell: np.ndarray


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
    key = f"{name}/{COMMIT_RECORD}"
    try:
        return decode_record(storage.read(key, LARGEST_RECORD), f"{storage.root}/{key}")
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
        entry = want.entry
        dtype = zarr.DTYPES[entry.dtype]
        stored = math.prod(grid.chunk) * dtype.itemsize
        aside = 0 if _is_run(entry.shape, grid.chunk) else self._storage.read_tasks * stored
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
                        size=stored + zarr.CHECKSUM_BYTES,
                        checks=((0, region.nbytes, proof, want.path),),
                        target=_bytes(region) if region.flags.c_contiguous else None,
                        cell=region,
                    )
                )
            return _Group({(want.leaf, entry.name): whole}, parts, lease, len(parts))

        return _Request(want.nbytes + aside, make)

    def _pack(self, pack: Pack, cell: int, members: Sequence[Wanted]) -> _Request:
        """One chunk of a pack: a buffer that all its arrays are parts of, and one part."""

        def make(lease: Lease) -> _Group:
            buffer = aligned(pack.chunk)
            found, checks = {}, []
            for want in members:
                entry, box = want.entry, want.entry.packed[0]
                start = box.offset % pack.chunk
                span = buffer[start : start + want.nbytes]
                dtype = zarr.DTYPES[entry.dtype]
                found[want.leaf, entry.name] = span.view(dtype).reshape(entry.shape)
                checks.append((start, start + want.nbytes, box.digest, want.path))
            part = _Part(
                key=f"{self._name}/{PACKS}/{pack.process}/c.{cell}",
                size=pack.chunk + zarr.CHECKSUM_BYTES,
                checks=tuple(checks),
                target=_bytes(buffer),
                cell=buffer,
            )
            return _Group(found, [part], lease, 1)

        return _Request(pack.chunk, make)

    def _fill(self, part: _Part) -> None:
        """Read one file and check it.

        Raises:
          DamagedStep: it is missing, cut, or its bytes are not those that were saved.
        """
        target = part.target
        if target is None:
            target = _bytes(np.empty(part.cell.shape, part.cell.dtype))
        try:
            self._storage.read_into(part.key, target, offset=0, size=part.size)
        except (MissingFile, TruncatedFile) as error:
            leaf = part.checks[0][3]
            raise DamagedStep(
                f"a data file: {error.message}", leaf=leaf, file=error.file
            ) from error
        wrong = _first_wrong(target, part.checks)
        if wrong is not None:
            raise DamagedStep(
                "the bytes read are not the bytes saved",
                leaf=wrong,
                file=f"{self._storage.root}/{part.key}",
            )
        if part.target is None:
            part.cell[...] = np.frombuffer(target, part.cell.dtype).reshape(part.cell.shape)


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


def _is_run(shape: Shape, chunk: Shape) -> bool:
    """Whether each chunk is one run of the array: full in all axes after the first cut."""
    cut = next((axis for axis, edge in enumerate(chunk) if edge > 1), len(chunk))
    return all(edge >= n for edge, n in zip(chunk[cut + 1 :], shape[cut + 1 :], strict=True))


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
