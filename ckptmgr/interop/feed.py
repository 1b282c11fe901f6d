"""The feed: what the snapshot is to a trainer's tree, for arrays that are yet to be read.

A few threads read, each array under a lease of its own, while those that write are at
the ones before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np

from ckptmgr.interop.base import Source
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline import extent
from ckptmgr.pipeline.handover import Handover, Piece
from ckptmgr.pipeline.layout import File
from ckptmgr.pipeline.plan import Plan, PlannedArray
from ckptmgr.pipeline.snapshot import released_on_error

_READERS: Final = 4
_SMALL_READERS: Final = 8  # of the arrays of one pack, which mostly wait


def feed(
    plan: Plan,
    sources: Mapping[int, Source],
    limiter: ByteLimiter,
    handover: Handover,
    read: Callable[[int], None],
) -> None:
    """Read every array of a plan and hand it over; blocks until all are read.

    `sources` by the numbers of the plan's leaves. `read` hears of the bytes of each.

    Raises:
      DamagedStep: one cannot be read; then nothing more is handed over.
    """
    packed = iter(plan.packed)
    todo: deque[Callable[[], bool]] = deque()
    for file in plan.pack_files:
        members = [(start, next(packed)) for start, _ in file.spans]
        todo.append(partial(_pack, file, members, sources, limiter, handover, read))
    todo += [partial(_array, a, sources[a.leaf], limiter, handover, read) for a in plan.own]

    def worker() -> None:
        while True:
            try:
                job = todo.popleft()
            except IndexError:
                return
            try:
                wanted = job()
            except BaseException:
                todo.clear()
                raise
            if not wanted:
                todo.clear()

    with ThreadPoolExecutor(_READERS, "ckptmgr read") as pool:
        try:
            for future in [pool.submit(worker) for _ in range(_READERS)]:
                future.result()
        except BaseException:  # Ctrl-C, too: what has begun is finished, and no more is begun
            todo.clear()
            raise


def _pack(
    file: File,
    members: Sequence[tuple[int, PlannedArray]],
    sources: Mapping[int, Source],
    limiter: ByteLimiter,
    handover: Handover,
    read: Callable[[int], None],
) -> bool:
    """The arrays of a pack's file; False where nobody wants it."""
    lease = limiter.acquire(file.nbytes)
    with released_on_error(lease):
        buffer = np.zeros(file.spans[-1][1], np.uint8)

        def fill(member: tuple[int, PlannedArray]) -> None:
            start, array = member
            found = _whole(sources[array.leaf])
            buffer[start : start + array.nbytes] = found.reshape(-1).view(np.uint8)
            read(array.nbytes)

        with ThreadPoolExecutor(_SMALL_READERS, "ckptmgr read") as pool:
            deque(pool.map(fill, members), maxlen=0)
    return handover.push([Piece(file, buffer, 0, len(buffer), lease)], wake=True)


def _array(
    array: PlannedArray,
    source: Source,
    limiter: ByteLimiter,
    handover: Handover,
    read: Callable[[int], None],
) -> bool:
    """A large array: its chunks are runs of it, or copies; False where nobody wants them."""
    (box,) = array.boxes
    again = 0 if box.runs else array.nbytes
    lease = limiter.acquire(array.nbytes + again + source.aside)
    with released_on_error(lease):
        host = _whole(source)
        read(array.nbytes)
        copies = [] if box.runs else [np.ascontiguousarray(host[cut.part]) for cut in box.chunks]
    kept = lease.part(array.nbytes).share(len(box.chunks))
    lease.release()
    if box.runs:
        pieces = [Piece(cut.file, host, cut.start, cut.stop, kept) for cut in box.chunks]
    else:
        pieces = [
            Piece(cut.file, copy, 0, copy.nbytes, kept)
            for cut, copy in zip(box.chunks, copies, strict=True)
        ]
    return handover.push(pieces, wake=True)


def _whole(source: Source) -> np.ndarray:
    return np.ascontiguousarray(source.read(extent.whole(source.shape)))
