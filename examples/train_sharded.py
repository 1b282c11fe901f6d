"""Training on a mesh of devices, saved there, restored on a mesh of another shape.

    JAX_NUM_CPU_DEVICES=8 python -m examples.train_sharded --run=RUN --mesh=4x2
    JAX_NUM_CPU_DEVICES=8 python -m examples.train_sharded --run=RUN --mesh=2x4

The batch is split along `data`, the weights along both axes, and so is what the
optimizer keeps of them. The second command goes on where the first one ended, whatever
its mesh: `resume` puts each array where the state that it is given has it. SIGTERM
saves the step at hand and ends.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager, Every, KeepLast, OnPreemption, key_paths

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
MESH = flags.DEFINE_string("mesh", "4x2", "how many devices along data, and along model")
STEPS = flags.DEFINE_integer("steps", 20, "how many updates to do in this call")

WIDTH, HIDDEN, BATCH = 256, 1024, 64
SPECS: Final = {"up": PartitionSpec("data", "model"), "down": PartitionSpec("model", "data")}
OPTIMIZER = optax.adam(1e-3)
State = dict[str, Any]


def mesh() -> Mesh:
    """Devices as the flag has them."""
    data, model = map(int, MESH.value.split("x"))
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def init(key: jax.Array) -> State:
    """Random weights of a block of two layers, and what the optimizer keeps of them."""
    up, down = jax.random.split(key)
    params = {
        "up": WIDTH**-0.5 * jax.random.normal(up, (WIDTH, HIDDEN)),
        "down": HIDDEN**-0.5 * jax.random.normal(down, (HIDDEN, WIDTH)),
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params), "key": key}


def shardings(state: State, devices: Mesh) -> State:
    """Each array by the last key of its path; what has none of these names is on all devices."""
    names = [path.rpartition("/")[2] for path in key_paths(state)]
    places = [NamedSharding(devices, SPECS.get(name, PartitionSpec())) for name in names]
    found: State = jax.tree.unflatten(jax.tree.structure(state), places)
    return found


def loss_of(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """The block is to reverse its input."""
    out = jax.nn.gelu(batch @ params["up"]) @ params["down"]
    return jnp.mean((out - batch[:, ::-1]) ** 2)


@jax.jit(donate_argnums=0)
def train_step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
    """One update; the old state is donated."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt_state": opt_state, "key": state["key"]}, loss


def main(_: list[str]) -> None:
    """Go on from the newest step, on whatever mesh it was saved."""
    logging.set_verbosity(logging.WARNING)
    devices = mesh()
    fresh = init(jax.random.key(0))
    state: State = jax.device_put(fresh, shardings(fresh, devices))
    split = NamedSharding(devices, PartitionSpec("data"))
    when = Every(steps=10) | OnPreemption()
    with CheckpointManager(RUN.value, when=when, keep=KeepLast(2)) as manager:
        step, state = manager.resume(state)
        last = step + STEPS.value
        print(f"mesh {MESH.value}: {'resumed' if step else 'started'} at step {step}", flush=True)
        while step < last and not manager.preempted:
            batch = np.random.default_rng(step).standard_normal((BATCH, WIDTH), np.float32)
            state, loss = train_step(state, jax.device_put(batch, split))
            step += 1
            if manager.maybe_save(step, state, metrics={"loss": loss}):
                print(f"step {step:4d}  loss {float(loss):.6f}  saving", flush=True)
        shard = state["params"]["up"].addressable_shards[0].data.shape
        print(f"ended at step {step}; a shard of `up` is {shard[0]} x {shard[1]}", flush=True)


if __name__ == "__main__":
    app.run(main)
