"""The chunk grid."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.format import zarr

LIMIT = 1 << 20
shapes = st.lists(st.integers(1, 3000), min_size=1, max_size=3).map(tuple)


@given(shapes)
def test_an_array_in_one_piece_wastes_less_than_a_row_of_its_grid(shape: zarr.Shape) -> None:
    """And each chunk is about as large as the limit allows."""
    chunk = zarr.chunk_shape(shape, shape, 4, LIMIT)
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
def test_chunks_of_shards_divide_them_and_are_contiguous(
    shard: zarr.Shape, parts: list[int]
) -> None:
    """So that no chunk has two writers."""
    shape = tuple(n * k for n, k in zip(shard, parts, strict=False))
    chunk = zarr.chunk_shape(shape, shard, 4, LIMIT)
    if shape != shard:
        assert all(n % edge == 0 for n, edge in zip(shard, chunk, strict=True))
    cut = next((axis for axis, edge in enumerate(chunk) if edge > 1), len(chunk))
    assert chunk[cut + 1 :] == shard[cut + 1 :]


def test_a_prime_shard_stays_whole_rather_than_falling_into_rows() -> None:
    """10,007 chunks of 4 KB would be absurd."""
    assert zarr.chunk_shape((20_014, 1024), (10_007, 1024), 4) == (10_007, 1024)


def test_the_grid_covers_every_element_once() -> None:
    """In C order, the last cells cut short."""
    cells = list(zarr.grid((5, 3), (2, 3)))
    assert [(c.start, c.shape, c.key) for c in cells] == [
        ((0, 0), (2, 3), "c.0.0"),
        ((2, 0), (2, 3), "c.1.0"),
        ((4, 0), (1, 3), "c.2.0"),
    ]
    assert zarr.cells((5, 3), (2, 3)) == 3


def test_an_array_without_dimensions_has_one_chunk() -> None:
    """Named `c`, as Zarr wants it."""
    assert [cell.key for cell in zarr.grid((), ())] == ["c"]


@pytest.mark.parametrize("name", sorted(zarr.DTYPES))
def test_every_dtype_has_a_name_and_metadata(name: str) -> None:
    """The table is its own inverse."""
    assert zarr.NAMES[zarr.DTYPES[name]] == name
    assert b'"node_type": "array"' in zarr.array_metadata(zarr.DTYPES[name], (4,), (2,))
