"""Broadcasting: along which axis, and that bits survive; that it works is tested by processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptmgr import InvalidOption
from ckptmgr.format.zarr import DTYPES
from ckptmgr.pipeline.broadcast import _fault, can_send, from_bits, replicas, to_bits

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


def placed(*spec: object) -> NamedSharding:
    """A sharding on the mesh."""
    return NamedSharding(MESH, PartitionSpec(*spec))


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if can_send(d)], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(4, 6), (3,), ()])
def test_bits_are_the_same_before_and_after(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """NaN payloads and -0.0 too, and whatever the backend makes of them."""
    raw = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    raw = raw % 2 if dtype == np.bool_ else raw
    array = raw.reshape(-1).view(dtype).reshape(shape)
    with jax.enable_x64(True):
        bits = to_bits(array)
        assert bits.dtype.kind == "u"
        assert bits.nbytes == array.nbytes
        back = jax.jit(from_bits, static_argnums=(1, 2))(jnp.asarray(bits[0]), dtype, shape)
    assert (back.dtype, back.shape) == (dtype, shape)
    assert np.asarray(back).tobytes() == array.tobytes()


def test_dtypes_of_less_than_a_byte_are_read_by_all() -> None:
    """They do not go through."""
    names = {dtype.name for dtype in DTYPES.values() if not can_send(dtype)}
    floats = {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
    assert names == {"int2", "uint2", "int4", "uint4", *floats}


class Elsewhere(SimpleNamespace):
    """A mesh whose devices belong to several processes."""

    def __init__(self, processes: list[list[int]]) -> None:
        devices = np.array([[SimpleNamespace(process_index=p) for p in row] for row in processes])
        shape = dict(zip("xy", devices.shape, strict=True))
        super().__init__(devices=devices, axis_names=("x", "y"), shape=shape)


@pytest.mark.parametrize(
    ("processes", "used", "axis", "fault"),
    [
        ([[0, 0], [1, 1]], set(), "x", None),
        ([[0, 1], [0, 1]], set(), "y", None),
        ([[0, 0], [1, 1]], set(), "y", "process 0 lies in several replicas"),
        ([[0, 1], [1, 0]], set(), "x", "process 1 lies in several replicas"),
        ([[0, 1], [2, 1]], set(), "x", "process 1 lies in several replicas"),
        ([[0, 0], [1, 1]], {"x"}, "x", "arrays are divided along 'x'"),
        ([[0, 1]], set(), "x", "'x' has one replica only"),
        ([[0, 1]], set(), "z", "there is no axis 'z'"),
    ],
)
def test_an_axis_will_do_or_it_is_said_why_not(
    processes: list[list[int]], used: set[str], axis: str, fault: str | None
) -> None:
    """Each replica must be made of whole processes, and every array be the same along it."""
    mesh: Any = Elsewhere(processes)
    found = _fault(mesh, used, axis)
    assert (found is None) if fault is None else fault in str(found)


def test_no_axis_at_all_is_one_error_with_every_reason() -> None:
    """In a single process none will do."""
    with pytest.raises(InvalidOption, match=r"divided along 'x'; process 0 lies in several"):
        replicas([placed("x"), placed()], None, 0)
