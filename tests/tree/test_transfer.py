"""Host arrays onto devices: as device_put does it, and by its private last step."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ckptmgr.format.zarr import DTYPES
from ckptmgr.tree import transfer

MESH = Mesh(np.array(jax.devices()[:2]), ("x",))
PLACES: list[Sharding | None] = [
    None,
    SingleDeviceSharding(jax.devices()[3]),
    NamedSharding(Mesh(np.array(jax.devices()[4:5]), ("x",)), PartitionSpec("x")),
    NamedSharding(MESH, PartitionSpec("x")),
    NamedSharding(MESH, PartitionSpec()),
]


def test_the_private_step_is_where_we_look_for_it() -> None:
    """If this fails jax has moved it: loads go on by device_put, at five times the cost."""
    assert transfer._last_step is not None


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("private", [True, False])
def test_every_dtype_arrives_as_by_device_put(
    place: Sharding | None, monkeypatch: pytest.MonkeyPatch, *, private: bool
) -> None:
    """With its values, dtype, sharding and commitment, fit to be computed with."""
    if not private:
        monkeypatch.setattr(transfer, "_last_step", None)
    with jax.enable_x64(True):
        kinds = [dtype for name, dtype in DTYPES.items() if not name.startswith("float6")]
        arrays = [np.arange(8).astype(dtype) for dtype in kinds]
        found = transfer.put(arrays, place)
        wanted = jax.device_put(arrays, place)
        for one, other, array in zip(found, wanted, arrays, strict=True):
            assert (one.dtype, one.shape) == (array.dtype, array.shape)
            assert one.sharding == other.sharding
            assert one.committed == other.committed
            assert np.asarray(one).tobytes() == array.tobytes()
            assert one.aval == other.aval
        assert (jax.jit(lambda x: x)(found[0]) == found[0]).all()


def test_memory_of_ours_is_taken_over_without_a_copy() -> None:
    """At a multiple of 64 bytes."""
    memory = np.zeros(4096 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + 4096].view(np.float32)
    (found,) = transfer.put([array], SingleDeviceSharding(jax.devices()[0]))
    assert found.unsafe_buffer_pointer() == array.ctypes.data
