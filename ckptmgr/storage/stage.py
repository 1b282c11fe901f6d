"""Writing past the page cache: large files go by way of a small buffer straight to the disk.

Through the cache the system has to find memory for every byte, at the trainer's cost,
and sends it to the disk late. Measured with 1.8 GB in files of 16 MiB, 4 threads, ext4 on
a disk of 1.5 GB/s, 2 cores: through the cache 0.8 to 1.5 GB/s and 0.9 to 2.5 s of processor
time, past it 1.5 GB/s and 0.6 s. A block is 1 MiB: it is copied and digested within the
processor's cache; of 4 MiB or 512 KiB it was a tenth slower.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence

from ckptmgr.storage.base import BLOCK, Bytes

_MOST_PARTS = 1024  # IOV_MAX on Linux


class Stages:
    """Buffers of one block on a page's border, each lent to one writer at a time."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    @contextlib.contextmanager
    def lent(self) -> Iterator[memoryview]:
        """A buffer, for as long as the context lasts."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = mmap.mmap(-1, BLOCK)
        try:
            yield memoryview(buffer)
        finally:
            self._free.append(buffer)


def write(descriptor: int, parts: Iterable[Bytes], stages: Stages) -> None:
    """Write a new file: past the cache where a block device lies below, but for the last block.

    What lies in memory has no cache to pass, and of file systems on a network nothing was
    measured: there it goes as it comes. On tmpfs that takes two thirds of the time.
    """
    if os.major(os.fstat(descriptor).st_dev):
        with stages.lent() as stage:
            _write_past(descriptor, parts, stage)
    else:
        for part in parts:
            write_all(descriptor, [part])


def _write_past(descriptor: int, parts: Iterable[Bytes], stage: memoryview) -> None:
    filled, direct = 0, False
    for part in parts:
        left = memoryview(part).cast("B")
        while left:
            count = min(len(left), len(stage) - filled)
            stage[filled : filled + count] = left[:count]
            left, filled = left[count:], filled + count
            if filled == len(stage):
                direct = direct or _pass_cache(descriptor)
                write_all(descriptor, [stage])
                filled = 0
    if direct:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    write_all(descriptor, [stage[:filled]])


def _pass_cache(descriptor: int) -> bool:
    """Whether writes go past the cache from now on."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:  # the file system cannot
        return False
    return True


def write_all(descriptor: int, parts: Sequence[Bytes]) -> None:
    """Write all parts, however little of them goes at a time."""
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        count = os.writev(descriptor, left[:_MOST_PARTS])
        while count:
            taken = min(count, len(left[0]))
            left[0], count = left[0][taken:], count - taken
            if not left[0]:
                del left[0]
