"""The chunk grid."""

from __future__ import annotations

import pytest

from ckptmgr.format import zarr


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
