"""Reading the arrays of other people's checkpoints, each whole or in parts, under the limiter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ckptmgr.interop.base import Foreign
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.read import Wanted, aligned
from ckptmgr.pipeline.source import Found
from ckptmgr.pipeline.workers import run_threads

_THREADS: Final = 4


class ForeignReader:
    """What `pipeline.read.Reader` is to a step of ours.

    Args:
      found: what to read from.
      limiter: what the arrays count against.
    """

    def __init__(self, found: Foreign, limiter: ByteLimiter) -> None:
        self._sources = found.sources
        self._limiter = limiter

    async def read(self, wanted: Sequence[Wanted], deliver: Callable[[Found], None]) -> None:
        """Read arrays and deliver each as it is there.

        Raises:
          DamagedStep: what is to be read is missing, or is not what it must be.
        """
        todo = deque(wanted)

        def worker() -> None:
            while True:
                try:
                    want = todo.popleft()
                except IndexError:
                    return
                source = self._sources[want.leaf]
                with self._limiter.acquire(want.nbytes + want.copied + source.aside):
                    boxes = {
                        (want.leaf, want.entry.name, number): _ours(source.read(box))
                        for number, box in enumerate(want.boxes)
                    }
                    deliver(boxes)
                del boxes

        await run_threads(_THREADS, worker, todo.clear)


def _ours(array: np.ndarray) -> np.ndarray:
    """In memory that jax takes over: aligned, contiguous, and nobody else's."""
    if array.flags.c_contiguous and array.flags.owndata and not array.ctypes.data % 64:
        return array
    found = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
