"""The write stage: pieces become files and digests, a few at a time.

Each piece is digested, put as one durable file and released: data, zeros up to the
chunk's edge, crc32c; or what its codec makes of it. A put that has begun is finished;
cancellation only keeps the next from beginning.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import jax
import numpy as np

from ckptmgr.errors import CheckpointError
from ckptmgr.format.digest import Checksum, Digest, digest
from ckptmgr.format.zarr import RAW
from ckptmgr.future import Progress
from ckptmgr.pipeline import codec
from ckptmgr.pipeline.handover import Handover, Piece
from ckptmgr.pipeline.incremental import Former
from ckptmgr.pipeline.layout import File
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import BLOCK, Attempt, Bytes

_ZEROS = bytes(BLOCK)
# Measured with steps that take both of two cores, saves back to back: the steps' median goes from
# 1.65 times what it is without saves to 1.15, and a save takes 1.4 times as long; with 19 to 1.1,
# and three times as long.
_NICENESS: Final = 10


async def write(
    plan: Plan,
    handover: Handover,
    attempt: Attempt,
    threads: int,
    report: Callable[[Progress], None],
    former: Former | None = None,
    *,
    beside: bool = True,
) -> list[str]:
    """Write every piece that is handed over; returns the digest of each slot.

    `threads` pieces are in work at a time. `report` hears the progress after each. What
    `former` lends is linked instead. `beside`: a trainer goes on meanwhile, and goes first.
    """
    digests = [""] * len(plan.slot_leaf)
    tally = _Tally(plan, report)

    def worker() -> None:
        if beside:
            _give_way()
        while (piece := handover.get()) is not None:
            try:
                found = _put(piece, attempt, former)
            except jax.errors.JaxRuntimeError as error:
                raise CheckpointError(
                    f"this array cannot be read; what was to compute it failed: {error}",
                    leaf=plan.paths[plan.slot_leaf[piece.file.slot]],
                ) from error
            finally:
                piece.lease.release()
            digests[piece.file.slot : piece.file.slot + len(found)] = found
            tally.wrote(piece.file)
            del piece  # its memory goes before the next piece comes

    await run_threads(threads, worker, handover.abandon)
    return digests


def _give_way() -> None:
    """Let the threads that train go first, where there are more of both than processors."""
    thread = threading.get_native_id()
    niceness = max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS)
    with contextlib.suppress(PermissionError):  # in a sandbox: then it goes without
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _put(piece: Piece, attempt: Attempt, former: Former | None) -> list[str]:
    """Put a piece's file, or have it linked; the digests of its spans."""
    data, file, array = piece.data(), piece.file, piece.array
    raw = array is None or array.codec == RAW
    if raw and former is None and len(file.spans) == 1:
        chunk = _Chunk(data, file.nbytes)
        attempt.put(file.path, chunk)
        return [chunk.digest.text()]
    found = [digest(data[start:stop]) for start, stop in file.spans]
    if former and former.lends(attempt, file, array, found):
        return found
    if array is None or raw:
        attempt.put(file.path, _Chunk(data, file.nbytes))
    else:
        attempt.put(
            file.path, [codec.encode(np.asarray(piece.host), array.chunk or (), array.codec)]
        )
    return found


class _Chunk:
    """The bytes of a chunk's file, in blocks, each digested when it is asked for.

    So it is read from memory once: for its digest, its checksum and the store.

    Args:
      data: what it holds; nbytes: how much that is with the zeros up to the chunk's edge.

    Attributes:
      digest: of the data, once all has been gone through.
    """

    def __init__(self, data: memoryview, nbytes: int) -> None:
        self._data = data
        self._nbytes = nbytes
        self.digest = Digest()

    def __iter__(self) -> Iterator[Bytes]:
        """From its beginning."""
        self.digest, checksum = Digest(), Checksum()
        for start in range(0, len(self._data), BLOCK):
            block = self._data[start : start + BLOCK]
            self.digest.add(block)
            checksum.add(block)
            yield block
        for start in range(len(self._data), self._nbytes, BLOCK):
            zeros = _ZEROS[: self._nbytes - start]
            checksum.add(zeros)
            yield zeros
        yield checksum.stored()


class _Tally:
    """Counts bytes and whole leaves as their files become durable."""

    def __init__(self, plan: Plan, report: Callable[[Progress], None]) -> None:
        self._plan = plan
        self._report = report
        self._left = Counter(plan.slot_leaf[slot] for slot in plan.mine)
        self._leaves = len(plan.paths) - len(self._left)  # those without bytes here are done
        self._bytes = 0
        self._mutex = threading.Lock()
        self._tell()

    def wrote(self, file: File) -> None:
        with self._mutex:
            self._bytes += sum(stop - start for start, stop in file.spans)
            for leaf in self._plan.slot_leaf[file.slot : file.slot + len(file.spans)]:
                self._left[leaf] -= 1
                self._leaves += not self._left[leaf]
            self._tell()

    def _tell(self) -> None:
        self._report(
            Progress(self._bytes, self._plan.mine_nbytes, self._leaves, len(self._plan.paths))
        )
