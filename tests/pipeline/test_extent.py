"""Parts of arrays: what they share, and how one is put together of others."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from ckptmgr.pipeline import extent
from ckptmgr.pipeline.extent import Extent

AXIS = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (min(pair), max(pair)))
EXTENT = st.tuples(AXIS, AXIS)
WHOLE = np.arange(36).reshape(6, 6)


def part(of: Extent) -> np.ndarray:
    """That part of the example."""
    return WHOLE[extent.inside(of, extent.whole(WHOLE.shape))]


@given(EXTENT, EXTENT)
def test_what_two_parts_share_is_in_both(one: Extent, other: Extent) -> None:
    """And is nothing where no item is."""
    common = extent.meet(one, other)
    both = set(part(one).flat) & set(part(other).flat)
    if common is None:
        assert not both
    else:
        assert set(part(common).flat) == both
        assert part(one)[extent.inside(common, one)].tolist() == part(common).tolist()
        assert extent.items(common) == part(common).size
        assert extent.shape_of(common) == part(common).shape


@given(EXTENT, st.sampled_from([(1, 6), (2, 3), (3, 2), (6, 6)]))
def test_a_part_is_put_together_of_the_cells_of_a_grid(wanted: Extent, edges: Extent) -> None:
    """Whatever it cuts."""
    rows, columns = edges
    cells = [
        ((r, r + rows), (c, c + columns))
        for r in range(0, 6, rows)  # type: ignore[call-overload]  # ints, two of them
        for c in range(0, 6, columns)  # type: ignore[call-overload]  # the same
    ]
    target = np.full(extent.shape_of(wanted), -1)
    extent.fill(target, wanted, [(cell, part(cell)) for cell in cells])
    assert target.tolist() == part(wanted).tolist()


def test_a_part_is_clipped_to_a_smaller_array() -> None:
    """Perhaps to nothing."""
    assert extent.clipped(((0, 4), (4, 8)), (6, 6)) == ((0, 4), (4, 6))
    assert extent.items(extent.clipped(((8, 12), (0, 2)), (6, 6))) == 0


def test_the_parts_of_a_sharding_and_who_holds_them() -> None:
    """Devices with the same part stand together."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    found = extent.of_devices(NamedSharding(mesh, PartitionSpec("x")), (4, 2))
    assert {box: len(devices) for box, devices in found.items()} == {
        ((0, 2), (0, 2)): 4,
        ((2, 4), (0, 2)): 4,
    }
    assert list(extent.of_devices(NamedSharding(mesh, PartitionSpec()), ())) == [()]
