"""Shardings as data."""

from __future__ import annotations

import jax
import msgspec
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ckptmgr import DamagedStep
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.tree import sharding

MESH = jax.make_mesh((2, 4), ("x", "y"))


@pytest.mark.parametrize(
    "spec",
    [(), ("x",), ("x", "y"), (None, "y"), (("x", "y"),), ("y", None, "x")],
    ids=str,
)
def test_a_named_sharding_is_rebuilt_from_json(spec: tuple[str | None, ...]) -> None:
    """Axis names, sizes and types, and the spec."""
    original = NamedSharding(MESH, PartitionSpec(*spec))
    data = msgspec.json.encode(sharding.describe(original))
    entry = msgspec.json.decode(data, type=ShardingEntry)
    assert sharding.rebuild(entry, jax.devices()) == original


def test_no_device_id_reaches_the_data() -> None:
    """They differ from process to process."""
    reverse = Mesh(MESH.devices[::-1], MESH.axis_names, axis_types=MESH.axis_types)
    here, there = (NamedSharding(mesh, PartitionSpec("x")) for mesh in (MESH, reverse))
    assert sharding.describe(here) == sharding.describe(there)


def test_where_devices_are_too_few_there_is_none() -> None:
    """The load then takes the default device."""
    entry = sharding.describe(NamedSharding(MESH, PartitionSpec("x")))
    assert sharding.rebuild(entry, jax.devices()[:4]) is None
    assert sharding.rebuild(sharding.describe(SingleDeviceSharding(jax.devices()[3])), []) is None


@pytest.mark.parametrize(
    "entry",
    [
        ShardingEntry(axes=(("x", 2),), axis_types=("Magic",), spec=("x",)),
        ShardingEntry(axes=(("x", 2),), axis_types=("Auto",), spec=("z",)),
    ],
)
def test_a_description_of_no_sharding_is_damage(entry: ShardingEntry) -> None:
    """Not a foreign error."""
    with pytest.raises(DamagedStep, match="no sharding"):
        sharding.rebuild(entry, jax.devices())
