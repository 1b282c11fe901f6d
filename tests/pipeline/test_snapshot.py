"""The snapshot: what it views it lets go of."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ckptmgr import CheckpointManager

MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def pointers(array: jax.Array) -> list[int]:
    """Where its shards lie."""
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize(
    "sharding",
    [
        SingleDeviceSharding(jax.devices()[0]),
        NamedSharding(MESH, PartitionSpec("x")),
        NamedSharding(MESH, PartitionSpec()),
    ],
    ids=["one device", "sharded", "replicated"],
)
@pytest.mark.parametrize("shape", [(16,), (1000, 1000)], ids=["small", "large"])
def test_a_donated_step_has_the_memory_back_once_the_save_is_done(
    run: Path, sharding: Sharding, shape: tuple[int, ...]
) -> None:
    """Neither we nor the array itself keep a view of it: jax keeps one only where it copied."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with CheckpointManager(run) as manager:
        for number in range(3):
            state = step(jax.device_put(jnp.ones(shape), sharding))
            manager.save(number, [state]).result()
            manager.wait()
            before = pointers(state)
            after = jax.block_until_ready(step(state))
            assert pointers(after) == before
