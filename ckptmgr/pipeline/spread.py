"""Spreading: which process writes what several hold, so that each writes as much. Pure.

Every process makes the same plan, so each chunk goes to the holder with the fewest
bytes so far. For that to come out even where there is little to write, chunks get
smaller there: a sixteenth of what a process is to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ckptmgr.format.chunks import CHUNK_BYTES
from ckptmgr.tree.per_process import Processes

_PARTS: Final = 16
_LEAST_CHUNK: Final = 64 << 10


class Spread:
    """The bytes that each process is to write so far.

    Args:
      processes: which one this is, of how many.
      nbytes: of the whole tree.

    Attributes:
      chunk_bytes: the largest chunk that several processes may hold, in bytes.
      owners: the process that was chosen for each piece, in the order of asking.
    """

    def __init__(self, processes: Processes, nbytes: int) -> None:
        self._index, count = processes.index, processes.count
        self._loads = [0] * count
        even = nbytes // (count * _PARTS)
        small = min(max(even, _LEAST_CHUNK), CHUNK_BYTES)
        self.chunk_bytes = CHUNK_BYTES if count == 1 else small
        self.owners: list[int] = []

    def owner(self, holders: Sequence[int], nbytes: int) -> int:
        """The process that writes a piece of so many bytes, one of its holders."""
        if len(self._loads) == 1:
            return 0
        chosen = min(holders, key=self._loads.__getitem__)
        self._loads[chosen] += nbytes
        self.owners.append(chosen)
        return chosen

    def mine(self, holders: tuple[int, ...], nbytes: int) -> bool:
        """Whether that is this process."""
        return self.owner(holders, nbytes) == self._index
