"""How much a file of a checkpoint may claim: bytes, values, levels, before anything believes it.

A checkpoint may come from a stranger. A few megabytes of JSON can become gigabytes of
objects, so what it costs to parse is bounded from its text alone, before a parser sees
it; and what is written is held to the same bounds, so that all of it can be read again.
"""

from __future__ import annotations

from typing import Final

LARGEST_RECORD: Final = 16 << 20  # bytes, as of a note
LARGEST_MANIFEST: Final = 1 << 30
LARGEST_METADATA: Final = 1 << 20  # of a zarr.json
LARGEST_CHUNK: Final = 1 << 36
LARGEST_SHARD: Final = 1 << 30  # a chunk with chunks inside, which TensorStore holds at once
LARGEST_ZIPPED: Final = 32 << 20  # a compressed chunk, of which a few bytes make all; four at once
MOST_CHUNKS_INSIDE: Final = 1 << 20  # of a chunk, each with an entry in its index
MOST_CELLS: Final = 1 << 20  # chunks of a pack
MOST_AXES: Final = 64  # numpy's limit
MOST_LEVELS: Final = 200  # of a tree; what walks it takes two of Python's 1000 frames a level
MOST_FIELDS: Final = 4096  # of a namedtuple: its class is made anew
MOST_CLASSES: Final = 1024  # of namedtuples
LATEST_TIME: Final = 253_402_300_799  # the end of the year 9999, in seconds since the epoch

# The objects of 112 million bytes of text, or of about 100,000 leaves, take this at most;
_ROOM: Final = 224 << 20
# those of more leaves four times as much as the data they describe.
_ROOM_PER_BYTE: Final = 4
MOST_PER_BYTE: Final = 138  # of text: what `cost` may come to


def room(data_nbytes: int = 0) -> int:
    """The bytes of memory that what describes this much data may take when it is parsed."""
    return _ROOM + _ROOM_PER_BYTE * data_nbytes


def largest_chunk(*, zipped: bool, inside: bool) -> int:
    """The most bytes of a chunk before its codec."""
    return LARGEST_ZIPPED if zipped else LARGEST_SHARD if inside else LARGEST_CHUNK


def cost(text: bytes) -> int:
    """A bound on the bytes of memory that JSON and the objects made of it take.

    Measured of the worst there is: a dict of one item takes 208 bytes, a list without any
    72, a short str in a list 72 (CPython 3.11, msgspec 0.22); an honest manifest takes half.
    """
    return 2 * len(text) + 72 * text.count(b",") + 136 * text.count(b"{") + 24 * text.count(b"[")
