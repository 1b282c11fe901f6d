"""Verifying: every file of a step read and checked, and everything that is wrong with it told.

Each chunk against its digest, its checksum for other readers and its padding; the
metadata of arrays against what the manifest makes of them; each note against its own
digest. What the system has cached is not trusted where the store can pass it by.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import anyio.to_thread
import numpy as np

from ckptmgr.errors import CheckpointError, DamagedStep, Exhausted, StorageError, UnsupportedFormat
from ckptmgr.format import keypath, zarr
from ckptmgr.format.bounds import LARGEST_METADATA
from ckptmgr.format.digest import Checksum, digest
from ckptmgr.format.manifest import ArrayEntry, Grid, Manifest
from ckptmgr.format.step import ARRAYS, COMMIT_RECORD, NOTES, PACKS
from ckptmgr.format.zarr import RAW
from ckptmgr.future import Progress
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline import codec
from ckptmgr.pipeline.notes import is_note, read_note
from ckptmgr.pipeline.records import read_both
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Storage


class Problem(NamedTuple):
    """Something wrong with a step: the leaf it is about, if any, the file, and what it is."""

    leaf: str | None
    file: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification has found.

    Attributes:
      step: the step; None for a checkpoint outside a run.
      files, nbytes: how many files were read, and how many bytes.
      problems: all that is wrong.
    """

    step: int | None
    files: int
    nbytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is."""
        return not self.problems

    @property
    def whole(self) -> bool:
        """Whether the step itself is what was saved, whatever was noted of it since."""
        return all(f"/{NOTES}/" in problem.file for problem in self.problems)

    def error(self) -> DamagedStep:
        """The problems as an error."""
        first = self.problems[0]
        more = f", and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
        return DamagedStep(first.what + more, step=self.step, leaf=first.leaf, file=first.file)


class _Check(NamedTuple):
    """A file: the most bytes it may have, the leaf it belongs to, and what is right."""

    key: str
    most: int
    leaf: str | None
    spans: tuple[tuple[int, int, str, str], ...] = ()  # start, stop, digest, leaf
    whole: tuple[str, bytes] | None = None  # of metadata: its digest, and what it must say
    coded: tuple[ArrayEntry, Grid, zarr.Shape] | None = None


async def verify(
    storage: Storage,
    name: str,
    limiter: ByteLimiter,
    step: int | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> VerifyReport:
    """Read everything that belongs to a step, under the limiter, and check it.

    `step`: the number that its commit record must have, in a run. `tell` hears how far it is,
    in one thread after the other.

    Raises:
      MissingFile: there is no such step.
      UnsupportedFormat: it was written by a newer version.
    """
    try:
        _, record, manifest = await anyio.to_thread.run_sync(read_both, storage, name)
    except UnsupportedFormat:
        raise
    except DamagedStep as error:
        problem = Problem(error.leaf, str(error.file), error.message)
        return VerifyReport(None, 0, 0, (problem,))
    report = await check(storage, name, manifest, limiter, record.step, tell)
    if step in (None, record.step):
        return report
    file = f"{storage.root}/{name}/{COMMIT_RECORD}"
    problem = Problem(None, file, f"its commit record is that of step {record.step}")
    return replace(report, problems=(problem, *report.problems))


async def check(
    storage: Storage,
    name: str,
    manifest: Manifest,
    limiter: ByteLimiter,
    step: int | None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> VerifyReport:
    """Check every file that a manifest names, and the notes beside them."""
    todo = deque(_checks(storage, name, manifest))
    files, total, nbytes = len(todo), 0, threading.Lock()
    most, done = sum(check.most for check in todo if check.whole is None), 0
    problems: list[Problem] = []

    def worker() -> None:
        nonlocal total, done
        while True:
            try:
                check = todo.popleft()
            except IndexError:
                return
            with limiter.acquire(check.most * (2 if check.coded else 1)):
                found, size = _wrong(storage, check)
            with nbytes:
                total += size
                done += check.most if check.whole is None else 0
                tell(Progress(bytes_done=done, bytes_total=most))
            problems.extend(found)

    await run_threads(storage.read_tasks, worker, todo.clear)
    return VerifyReport(step, files, total, tuple(sorted(problems, key=str)))


def _checks(storage: Storage, name: str, manifest: Manifest) -> Iterator[_Check]:
    """Every file that a step must have, and its notes."""
    packed: dict[tuple[int, int], list[tuple[int, int, str, str]]] = defaultdict(list)
    packs = {pack.process: pack for pack in manifest.packs}
    own = False
    for leaf in manifest.leaves:
        for array in leaf.arrays:
            if array.grid:
                own = True
                directory = f"{name}/{ARRAYS}/{keypath.directory(leaf.path, array.name)}"
                dtype, grid = zarr.DTYPES[array.dtype], array.grid
                expected = zarr.array_metadata(dtype, array.shape, grid.chunk, grid.codec)
                yield _metadata(directory, grid.metadata, expected, leaf.path)
                yield from _chunks(directory, leaf.path, array, array.grid)
            for box in array.packed:
                cell, start = divmod(box.offset, packs[box.pack].chunk)
                stop = start + array.nbytes_of(box)
                packed[box.pack, cell].append((start, stop, box.digest, leaf.path))
    if own:
        yield _metadata(f"{name}/{ARRAYS}", manifest.group, zarr.group_metadata(), None)
    for pack in manifest.packs:
        expected = zarr.pack_metadata(pack.nbytes, pack.chunk)
        yield _metadata(f"{name}/{PACKS}/{pack.process}", pack.metadata, expected, None)
        for cell in range(math.ceil(pack.nbytes / pack.chunk)):
            spans = tuple(sorted(packed[pack.process, cell]))
            key = f"{name}/{PACKS}/{pack.process}/c.{cell}"
            yield _Check(key, pack.chunk + zarr.CHECKSUM_BYTES, None, spans)
    for file in storage.files(f"{name}/{NOTES}"):
        if is_note(file):
            yield _Check(f"{name}/{NOTES}/{file}", 0, None)


def _metadata(directory: str, proof: str, expected: bytes, leaf: str | None) -> _Check:
    key = f"{directory}/{zarr.METADATA}"
    return _Check(key, LARGEST_METADATA, leaf, whole=(proof, expected))


def _chunks(directory: str, path: str, array: ArrayEntry, grid: Grid) -> Iterator[_Check]:
    itemsize = zarr.DTYPES[array.dtype].itemsize
    stored = math.prod(grid.chunk) * itemsize
    for cell, proof in zip(zarr.grid(array.shape, grid.chunk), grid.digests, strict=True):
        spans = ((0, math.prod(cell.shape) * itemsize, proof, path),)
        key = f"{directory}/{cell.key}"
        if grid.codec == RAW:
            yield _Check(key, stored + zarr.CHECKSUM_BYTES, path, spans)
        else:
            most = zarr.longest(grid.chunk, stored, grid.codec)
            yield _Check(key, most, path, spans, coded=(array, grid, cell.shape))


class _Says(Protocol):
    def __call__(self, what: str, leaf: str | None = ...) -> Problem: ...


def _wrong(storage: Storage, check: _Check) -> tuple[list[Problem], int]:
    """What is wrong with a file, and its size."""
    file = f"{storage.root}/{check.key}"

    def problem(what: str, leaf: str | None = check.leaf) -> Problem:
        return Problem(leaf, file, what)

    try:
        if f"/{NOTES}/" in check.key:
            read_note(storage, check.key)
            return [], 0
        data = storage.read(check.key, check.most, fresh=True)
    except Exhausted:
        raise
    except StorageError as error:
        # A file of several leaves that cannot be read is the loss of each of them.
        leaves: list[str | None] = list(dict.fromkeys(leaf for *_, leaf in check.spans))
        leaves = leaves or [check.leaf]
        return [problem(error.message, leaf) for leaf in leaves], 0
    except CheckpointError as error:
        return [problem(error.message)], 0
    if check.whole is not None:
        proof, expected = check.whole
        if proof not in ("", digest(data)):  # empty: written before there were any
            return [problem("the bytes are not those that were saved")], len(data)
        same = zarr.says_the_same(data, expected)
        return ([] if same else [problem("it tells of another array than the manifest")]), len(data)
    return _wrong_data(check, data, problem), len(data)


def _wrong_data(check: _Check, data: bytes, problem: _Says) -> list[Problem]:
    decoded = memoryview(data)
    if check.coded is not None:
        array, grid, shape = check.coded
        try:
            found = codec.decode(data, shape, zarr.DTYPES[array.dtype], grid.chunk, grid.codec)
        except ValueError as error:
            return [problem(str(error))]
        decoded = found.reshape(-1).view(np.uint8).data
    elif len(data) != check.most:
        return [problem(f"{len(data)} bytes long, not {check.most}")]
    problems = [
        problem("the bytes are not those that were saved", leaf)
        for start, stop, proof, leaf in check.spans
        if digest(decoded[start:stop]) != proof
    ]
    if not problems and check.coded is None and _checksum(decoded[:-4]) != data[-4:]:
        problems.append(problem("its padding or its checksum is not what was written"))
    return problems


def _checksum(data: bytes | memoryview) -> bytes:
    found = Checksum()
    found.add(data)
    return found.stored()
