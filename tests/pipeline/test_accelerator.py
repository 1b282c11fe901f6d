"""Arrays of accelerators: they are copied to the host by themselves, while the trainer goes on.

Here CPU devices pose as an accelerator's, whose pinned host memory they have as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager, LeafOptions, UnsupportedLeaf
from ckptmgr.tree import sharding, transfer
from tests.trees import assert_same

MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays were sent in each call; CPU devices are no CPU's."""
    calls: list[int] = []
    real = transfer.send

    def send(arrays: list[jax.Array]) -> list[jax.Array]:
        calls.append(len(arrays))
        return real(arrays)

    monkeypatch.setattr(sharding, "platform", lambda _: "gpu")
    monkeypatch.setattr(transfer, "send", send)
    return calls


def large(places: PartitionSpec) -> jax.Array:
    """4 MB."""
    return jnp.arange(1 << 20, dtype=jnp.float32, device=NamedSharding(MESH, places))


def state() -> dict[str, object]:
    """Something of each kind."""
    return {
        "one": jnp.arange(1 << 20, dtype=jnp.int32),
        "cut": large(PartitionSpec("x")),
        "same": large(PartitionSpec()),
        "small": jnp.arange(12, dtype=jnp.bfloat16),
        "odd": [jnp.float32(1), jnp.zeros((0, 3)), jnp.arange(8).astype(jnp.int4)],
        "parts": jax.device_put(jnp.arange(16.0), NamedSharding(MESH, PartitionSpec("x"))),
        "key": jax.random.key(7),
        "host": np.arange(1 << 19),
        "step": 3,
    }


def test_what_is_sent_is_what_comes_back(run: Path, sent: list[int]) -> None:
    """All large parts, and all small arrays in one call; what is donated at once among them."""
    tree = state()
    kept = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)
    with CheckpointManager(run) as manager:
        future = manager.save(0, tree)
        for name in ("one", "cut", "same", "small"):
            jax.jit(lambda x: x + 1, donate_argnums=0)(tree[name])
        future.result()
        assert sent == [3, 1, *[1] * 8, 1]
        assert_same(manager.restore(0), kept)


def test_memory_stays_within_the_limit(run: Path, sent: list[int]) -> None:
    """A tree larger than it goes through it."""
    tree = [jnp.full(1 << 18, i, jnp.float32) for i in range(16)]
    with CheckpointManager(run, in_flight_bytes="3MiB") as manager:
        manager.save(0, tree).result()
        assert manager.statistics().peak_bytes <= 3 << 20
        assert_same(manager.restore(0), tree)
    assert sent == [1] * 16


def test_what_is_stored_otherwise_is_checked_before_save_returns(
    run: Path, sent: list[int]
) -> None:
    """Values that the stored dtype does not hold are the trainer's error; nothing was sent."""
    options = [("a", LeafOptions(dtype="float16")), ("b", LeafOptions(compression="zstd:1"))]
    tree = {"a": jnp.arange(1 << 19, dtype=jnp.float32), "b": large(PartitionSpec("x"))}
    with CheckpointManager(run, leaf_options=options) as manager:
        with pytest.raises(UnsupportedLeaf, match="float16"):
            manager.save(0, tree)
        good = {**tree, "a": jnp.ones(1 << 19)}
        manager.save(0, good).result()
        assert_same(manager.restore(0, good), good)
    assert sent == []


@pytest.mark.parametrize("items", [4, 1 << 20])
def test_an_array_that_was_deleted_is_named(run: Path, items: int) -> None:
    """Nothing is left of the save."""
    gone = jnp.ones(items)
    gone.delete()
    with CheckpointManager(run) as manager:
        with pytest.raises(UnsupportedLeaf, match="deleted or donated") as caught:
            manager.save(0, {"good": jnp.ones(items), "gone": gone})
        assert caught.value.leaf == "gone"
        assert manager.pending() == []
        assert manager.statistics().used_bytes == 0


@jax.jit
def train_long(array: jax.Array) -> jax.Array:
    """Something that takes a second."""
    found: jax.Array = jax.lax.fori_loop(0, 60, lambda _, x: x @ x / 1500.0, array)
    return found


@pytest.mark.parametrize("items", [4, 1500])
def test_save_returns_while_the_state_is_being_computed(run: Path, items: int) -> None:
    """Nobody waits for the device but those that write."""
    start = jnp.ones((1500, 1500))
    jax.block_until_ready(train_long(start))
    with CheckpointManager(run) as manager:
        state = [train_long(start)[:items, :items]]
        future = manager.save(0, state)
        assert not state[0].is_ready()
        assert not future.done()
        future.result()
        assert_same(manager.restore(0), [jnp.ones((items, items))])


FAILING = """
import sys
import jax, jax.numpy as jnp
from ckptmgr import CheckpointManager
from ckptmgr.tree import sharding
from tests.pipeline.test_accelerator import train_long

def fail(_):
    raise ValueError("no luck")

sharding.platform = lambda _: "gpu"
shape = jax.ShapeDtypeStruct((int(sys.argv[2]),), jnp.float32)
pending = train_long(jnp.ones((1500, 1500)))
bad = jax.jit(lambda x: jax.pure_callback(fail, shape, x[0, 0]))(pending)
with CheckpointManager(sys.argv[1]) as manager:
    error = manager.save(0, {"bad": bad}).exception()
    print(type(error).__name__, error.leaf, error.step, "to compute it failed" in str(error))
    print(manager.all_steps(), manager.statistics().used_bytes)
    print(manager.save(0, {"good": jnp.ones(3)}).result().step)
"""


@pytest.mark.parametrize("items", [4, 1 << 20])
def test_a_computation_that_failed_fails_the_save(run: Path, items: int) -> None:
    """With the file's leaf; nothing is committed, and the next save works.

    In a process of its own, which jax tells of the failure once more as it ends.
    """
    command = [sys.executable, "-c", FAILING, str(run), str(items)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.stdout.splitlines() == ["CheckpointError bad 0 True", "[] 0", "0"], finished


@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="there is no NVIDIA GPU here")
def test_a_gpu_is_not_waited_for() -> None:
    """`save` returns while the device computes what is saved, and it is saved right."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    command = [sys.executable, "-m", "tests.benchmarks.accelerator", "1"]
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    (found,) = json.loads(finished.stdout)["accelerator"]
    assert found["returned_before_ready"]
    assert found["restored"]
