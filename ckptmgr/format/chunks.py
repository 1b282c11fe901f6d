"""Chunk shapes: how the shards of an array are cut, by default and as a leaf's options say. Pure.

By default a chunk is one contiguous run of its shard: shards are cut on axis 0, and on
the next axis only where one row is too large by itself. What a caller asks for must
divide the shard, and each error says what would.
"""

from __future__ import annotations

import math
from typing import Final

from ckptmgr.errors import InvalidOption
from ckptmgr.format.zarr import Shape

CHUNK_BYTES: Final = 16 << 20


def default_chunk(shape: Shape, shard: Shape, itemsize: int, limit: int = CHUNK_BYTES) -> Shape:
    """The cells of the regular grid that cuts each shard into chunks of about `limit` bytes.

    An array in one piece is cut into n = ceil(bytes / limit) slabs of ceil(rows / n)
    rows: less than one row of padding. Where several shards share the grid an edge
    must divide theirs: of all divisors the one whose chunk is nearest to the limit
    (on a log scale), so a prime edge stays whole rather than falling into single rows.
    """
    edges = list(shard)
    for axis, edge in enumerate(shard):
        row = itemsize * math.prod(shard[axis + 1 :])
        if edge * row <= limit:
            break
        if shape == shard:
            edges[axis] = math.ceil(edge / math.ceil(edge * row / limit))
        else:
            edges[axis] = min(divisors(edge), key=lambda d: abs(math.log(d * row / limit)))
        if edges[axis] > 1 or row <= limit:
            break
    return tuple(edges)


def divisors(number: int) -> list[int]:
    """What divides a number, from 1 to itself."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def largest_chunk(shard: Shape, sharded: tuple[bool, ...], items: int) -> Shape:
    """The largest chunk of at most `items` items whose edges divide the shard's.

    Of several that are equally large the one that cuts the axes that are sharded first,
    the longest among them first.

    Args:
      shard: the shape of a shard.
      sharded: whether each axis is divided among devices.
      items: at least 1.
    """
    order = sorted(range(len(shard)), key=lambda axis: (not sharded[axis], -shard[axis], axis))
    # The largest product for each choice so far: there are no more products than divisors of
    # the whole. The axis to be cut first comes last here, and takes the smallest edge it can.
    best: dict[int, dict[int, int]] = {1: {}}
    for axis in reversed(order):
        found: dict[int, dict[int, int]] = {}
        for product, edges in best.items():
            for edge in divisors(shard[axis]):
                if product * edge <= items:
                    kept = found.get(product * edge)
                    if kept is None or edge < kept[axis]:
                        found[product * edge] = {**edges, axis: edge}
        best = found
    chosen = best[max(best)]
    return tuple(chosen[axis] for axis in range(len(shard)))


def check_divides(chunk: Shape, whole: Shape, option: str, of: str, leaf: str) -> None:
    """Refuse a chunk that does not divide the whole.

    Raises:
      InvalidOption: it has another number of axes, or an edge divides not; says what would.
    """
    if len(chunk) != len(whole):
        raise InvalidOption(
            f"{option}={chunk} has {len(chunk)} axes, {of} {whole} has {len(whole)}", leaf=leaf
        )
    for axis, (edge, full) in enumerate(zip(chunk, whole, strict=True)):
        if full % edge:
            raise InvalidOption(
                f"{option}={chunk} must divide {of} {whole}: on axis {axis}, {edge} does not "
                f"divide {full}; its divisors are {divisors(full)}",
                leaf=leaf,
            )
