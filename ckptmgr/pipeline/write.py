"""The write stage: pieces become files and digests, a few at a time.

Each piece is digested, put as one durable file and released: data, zeros up to the
chunk's edge, crc32c; or what its codec makes of it. A put that has begun is finished;
cancellation only keeps the next from beginning.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ckptmgr.format.digest import ZEROS, chunk_checksum, digest
from ckptmgr.format.zarr import RAW
from ckptmgr.future import Progress
from ckptmgr.pipeline import codec
from ckptmgr.pipeline.incremental import Former
from ckptmgr.pipeline.layout import File
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.snapshot import Handover, Piece
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Attempt, Bytes


async def write(
    plan: Plan,
    handover: Handover,
    attempt: Attempt,
    threads: int,
    report: Callable[[Progress], None],
    former: Former | None = None,
) -> list[str]:
    """Write every piece that is handed over; returns the digest of each slot.

    `threads` pieces are in work at a time. `report` hears the progress after each. What
    `former` lends is linked instead.
    """
    digests = [""] * len(plan.slot_leaf)
    tally = _Tally(plan, report)

    def worker() -> None:
        while (piece := handover.get()) is not None:
            try:
                found = [digest(piece.data()[start:stop]) for start, stop in piece.file.spans]
                if not (former and former.lends(attempt, piece.file, piece.array, found)):
                    attempt.put(piece.file.path, _encode(piece))
            finally:
                piece.lease.release()
            digests[piece.file.slot : piece.file.slot + len(found)] = found
            tally.wrote(piece.file)
            del piece  # its memory goes before the next piece comes

    await run_threads(threads, worker, handover.abandon)
    return digests


def _encode(piece: Piece) -> list[Bytes]:
    """The parts of the piece's file."""
    if piece.array is not None and piece.array.codec != RAW:
        return [codec.encode(piece.host, piece.array.chunk or (), piece.array.codec)]
    data = piece.data()
    padding = piece.file.nbytes - len(data)
    checksum = chunk_checksum(data, padding)
    whole, rest = divmod(padding, len(ZEROS))
    return [data, *[ZEROS] * whole, ZEROS[:rest], checksum]


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
