"""Meshes, shardings and forms cross as ids and come back; what cannot is a clear error."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ckptmgr import InvalidOption
from ckptmgr.colocated.crossing import pack, unpack

DEVICES = jax.devices()
MESH = Mesh(
    np.array(DEVICES[::-1]).reshape(2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit)
)
NAMED = NamedSharding(MESH, PartitionSpec(("x", "y"), None), memory_kind="pinned_host")


@pytest.mark.parametrize(
    "value",
    [
        MESH,
        NAMED,
        NamedSharding(MESH, PartitionSpec()),
        SingleDeviceSharding(DEVICES[3]),
        tuple(DEVICES[5:2:-1]),
        jax.ShapeDtypeStruct((8, 2), jnp.bfloat16, sharding=NAMED),
        jax.ShapeDtypeStruct((), jnp.int4),
        {"a": [jax.ShapeDtypeStruct((0,), jnp.float8_e4m3fn), None], "b": (MESH, NAMED)},
        [],
        {},
    ],
)
def test_what_crosses_comes_back(value: object) -> None:
    """Equal, axis types and memory kinds included."""
    assert unpack(pack(value)) == value


def test_devices_are_found_by_id_wherever_they_stand() -> None:
    """On the other side they may come in another order."""
    assert unpack(pack([DEVICES[2], DEVICES[7]]), DEVICES[::-1]) == (DEVICES[2], DEVICES[7])


def test_what_crosses_is_plain_data() -> None:
    """No pickle: ids, names and numbers."""
    assert json.loads(pack([DEVICES[3]])) == {"devices": [3]}


def test_an_unknown_id_is_named() -> None:
    """With those that there are."""
    with pytest.raises(InvalidOption, match=r"no device here has the ids \[6, 7\]; .*\[0, 1, 2\]"):
        unpack(pack(DEVICES[6:8]), DEVICES[:3])


def test_an_id_that_two_devices_have_is_named() -> None:
    """In what is sent, in what arrives, and among the devices here."""
    with pytest.raises(InvalidOption, match=r"\[3\] are there more than once"):
        pack([DEVICES[3], DEVICES[3]])
    with pytest.raises(InvalidOption, match=r"\[3\] are there more than once"):
        unpack('{"devices": [3, 1, 3]}')
    with pytest.raises(InvalidOption, match=r"\[0\] are there more than once"):
        unpack('{"devices": [0]}', [*DEVICES, DEVICES[0]])


@pytest.mark.parametrize(
    "value",
    [
        3,
        "text",
        {1: None},
        NamedSharding(MESH.abstract_mesh, PartitionSpec()),
        jax.ShapeDtypeStruct((), jax.random.key(0).dtype),
        [print],
    ],
)
def test_what_does_not_cross_is_refused(value: Any) -> None:
    """By name, with what does."""
    with pytest.raises(InvalidOption, match="does not cross"):
        pack(value)
    with pytest.raises(InvalidOption, match="leaves an axis open"):
        pack(NamedSharding(MESH, PartitionSpec(PartitionSpec.UNCONSTRAINED)))


def test_what_pack_does_not_make_is_refused() -> None:
    """It is data, never a call."""
    with pytest.raises(InvalidOption, match="nothing like"):
        unpack('{"evil": []}')
