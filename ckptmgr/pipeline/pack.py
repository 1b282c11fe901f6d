"""The pack: where small arrays lie, end to end in a few files. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ckptmgr.format import zarr
from ckptmgr.format.chunks import CHUNK_BYTES
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import ALIGNMENT, Pack
from ckptmgr.format.step import PACKS
from ckptmgr.pipeline.layout import File


def fill(sizes: Sequence[int], number: int = 0) -> tuple[Pack | None, list[int]]:
    """Where arrays of these sizes lie in the pack: aligned, in order, none across two chunks.

    With n = ceil(total / 16 MiB) chunks, each is filled until it holds total / n: n
    always suffice, and together they waste at most n times the largest array.
    """
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    total = sum(padded)
    if not total:
        return None, []
    capacity = math.ceil(total / math.ceil(total / CHUNK_BYTES)) + max(padded)
    fills, starts = [0], []
    for size in padded:
        if fills[-1] + size > capacity:
            fills.append(0)
        starts.append((len(fills) - 1, fills[-1]))
        fills[-1] += size
    chunk = max(fills)
    nbytes = (len(fills) - 1) * chunk + fills[-1]
    pack = Pack(number, nbytes, chunk, digest(zarr.pack_metadata(nbytes, chunk)))
    return pack, [cell * chunk + start for cell, start in starts]


def files(pack: Pack, offsets: Sequence[int], sizes: Sequence[int], slot: int) -> tuple[File, ...]:
    """The files of a pack, each with the spans in it; these have the slots from `slot` on."""
    inside: dict[int, list[tuple[int, int]]] = {}
    for offset, size in zip(offsets, sizes, strict=True):
        start = offset % pack.chunk
        inside.setdefault(offset // pack.chunk, []).append((start, start + size))
    found = []
    for cell, spans in inside.items():
        path = f"{PACKS}/{pack.process}/c.{cell}"
        found.append(File(path=path, nbytes=pack.chunk, slot=slot, spans=tuple(spans)))
        slot += len(spans)
    return tuple(found)
