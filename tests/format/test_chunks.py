"""Chunk shapes: by default, and as they are asked for."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr import InvalidOption
from ckptmgr.format.chunks import check_divides, default_chunk, divisors, largest_chunk
from ckptmgr.format.zarr import Shape

LIMIT = 1 << 20
shapes = st.lists(st.integers(1, 3000), min_size=1, max_size=3).map(tuple)


@given(shapes)
def test_an_array_in_one_piece_wastes_less_than_a_row_of_its_grid(shape: Shape) -> None:
    """And each chunk is about as large as the limit allows."""
    chunk = default_chunk(shape, shape, 4, LIMIT)
    cut = next((axis for axis, (e, n) in enumerate(zip(chunk, shape, strict=True)) if e < n), None)
    if cut is None:
        assert math.prod(shape) * 4 <= LIMIT
        return
    counts = [math.ceil(n / edge) for n, edge in zip(shape, chunk, strict=True)]
    assert all(
        count * edge - n < count for count, edge, n in zip(counts, chunk, shape, strict=True)
    )
    row = 4 * math.prod(chunk[cut + 1 :])
    assert math.prod(chunk) * 4 <= max(LIMIT + row, row)


@given(shapes, st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_chunks_of_shards_divide_them_and_are_contiguous(shard: Shape, parts: list[int]) -> None:
    """So that no chunk has two writers."""
    shape = tuple(n * k for n, k in zip(shard, parts, strict=False))
    chunk = default_chunk(shape, shard, 4, LIMIT)
    if shape != shard:
        assert all(n % edge == 0 for n, edge in zip(shard, chunk, strict=True))
    cut = next((axis for axis, edge in enumerate(chunk) if edge > 1), len(chunk))
    assert chunk[cut + 1 :] == shard[cut + 1 :]


def test_a_prime_shard_stays_whole_rather_than_falling_into_rows() -> None:
    """10,007 chunks of 4 KB would be absurd."""
    assert default_chunk((20_014, 1024), (10_007, 1024), 4) == (10_007, 1024)


small = st.lists(st.integers(1, 24), min_size=1, max_size=3).map(tuple)


@given(small, st.integers(1, 5000))
def test_the_largest_chunk_is_the_largest_that_divides_and_fits(shard: Shape, items: int) -> None:
    """As trying every one of them shows."""
    chunk = largest_chunk(shard, (False,) * len(shard), items)
    assert all(n % edge == 0 for n, edge in zip(shard, chunk, strict=True))
    fitting = (math.prod(c) for c in itertools.product(*map(divisors, shard)))
    assert math.prod(chunk) == max(size for size in fitting if size <= items)


@pytest.mark.parametrize(
    ("shard", "sharded", "items", "chunk"),
    [
        ((16, 16), (False, False), 32, (2, 16)),
        ((16, 16), (False, True), 32, (16, 2)),
        ((8, 32), (False, False), 64, (8, 8)),
        ((8, 32), (True, False), 64, (2, 32)),
        ((8, 32, 4), (True, True, False), 256, (8, 8, 4)),
        ((7,), (False,), 3, (1,)),
        ((), (), 1, ()),
    ],
)
def test_the_longest_axis_that_is_sharded_is_cut_first(
    shard: Shape, sharded: tuple[bool, ...], items: int, chunk: Shape
) -> None:
    """Where several chunks are equally large."""
    assert largest_chunk(shard, sharded, items) == chunk


@given(st.integers(1, 10_000))
def test_divisors_are_all_of_them(number: int) -> None:
    """In order."""
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_the_error_says_what_would_divide() -> None:
    """So that it can be put right at once."""
    with pytest.raises(InvalidOption, match=r"axis 1, 5 does not divide 12.*\[1, 2, 3, 4, 6, 12\]"):
        check_divides((4, 5), (8, 12), "write_chunk", "the shard", "w")
    with pytest.raises(InvalidOption, match="has 1 axes"):
        check_divides((4,), (8, 12), "write_chunk", "the shard", "w")
