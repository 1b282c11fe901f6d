"""Training by several processes on one machine, as it would run on several machines.

    python -m examples.train_multiprocess --run=RUN --processes=2
    python -m examples.train_multiprocess --run=RUN --processes=4

Four devices in all, whatever the number of processes: each holds a quarter of the
weights and of what the optimizer keeps of them, and trains on a quarter of the batch.
The second command goes on where the first one ended. Gradients are summed in the order
of the devices, so the result does not depend, not in a single bit, on which process
they belong to.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager, key_paths

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
PROCESSES = flags.DEFINE_integer("processes", 2, "how many processes: 1, 2 or 4")
STEPS = flags.DEFINE_integer("steps", 40, "the updates of the whole run")
INDEX = flags.DEFINE_integer("index", None, "which of the processes this is; without it, start all")
PORT = flags.DEFINE_integer("port", None, "where process 0 listens")

DEVICES, WIDTH, HIDDEN, BATCH = 4, 256, 4096, 32
OPTIMIZER = optax.adam(1e-3)
CONFIG = Path(__file__).parents[1] / "configs" / "multiprocess.toml"
SPLIT: Final = PartitionSpec("devices")
State = dict[str, Any]


def start() -> list[subprocess.Popen[bytes]]:
    """The processes of the job, each of which is this program with its own index."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    devices = str(DEVICES // PROCESSES.value)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": devices}
    command = [sys.executable, "-m", "examples.train_multiprocess", *sys.argv[1:], f"--port={port}"]
    return [
        subprocess.Popen([*command, f"--index={index}"], env=environment)
        for index in range(PROCESSES.value)
    ]


def init(key: jax.Array) -> State:
    """Random weights of a block of two layers, and what the optimizer keeps of them."""
    up, down = jax.random.split(key)
    params = {
        "up": WIDTH**-0.5 * jax.random.normal(up, (WIDTH, HIDDEN)),
        "down": HIDDEN**-0.5 * jax.random.normal(down, (HIDDEN, WIDTH)),
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def specs(state: State) -> State:
    """The weights are divided, and what belongs to each of them; the rest is on all devices."""
    names = [path.rpartition("/")[2] for path in key_paths(state)]
    places = [SPLIT if name in ("up", "down") else PartitionSpec() for name in names]
    found: State = jax.tree.unflatten(jax.tree.structure(state), places)
    return found


def loss_of(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """The block is to reverse its input."""
    out = jax.nn.gelu(batch @ params["up"]) @ params["down"]
    return jnp.mean((out - batch[:, ::-1]) ** 2)


def update(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
    """One update, as each device does it: with its part of the state and of the batch."""
    mine = state["params"]
    params = {name: jax.lax.all_gather(part, "devices", tiled=True) for name, part in mine.items()}
    loss, grads = jax.value_and_grad(loss_of)(params, batch)

    def own(grad: jax.Array, part: jax.Array) -> jax.Array:
        # Not psum: its order is that of the network, and with it the last bits.
        whole = jnp.sum(jax.lax.all_gather(grad, "devices"), axis=0) / DEVICES
        rows = part.shape[0]
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index("devices") * rows, rows)

    updates, opt_state = OPTIMIZER.update(jax.tree.map(own, grads, mine), state["opt_state"])
    state = {"params": optax.apply_updates(mine, updates), "opt_state": opt_state}
    return state, jnp.mean(jax.lax.all_gather(loss, "devices"))


def train_step(mesh: Mesh, split: State) -> Callable[[State, jax.Array], tuple[State, jax.Array]]:
    """The update on all devices; the old state is donated."""
    mapped = jax.shard_map(
        update,
        mesh=mesh,
        in_specs=(split, SPLIT),
        out_specs=(split, PartitionSpec()),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0)


def train() -> None:
    """Go on from the newest step, whatever the number of processes it was saved by."""
    logging.set_verbosity(logging.WARNING)
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    split = specs(jax.eval_shape(init, jax.random.key(0)))
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), split)
    state: State = jax.jit(init, out_shardings=places)(jax.random.key(0))
    step_fn, batches = train_step(mesh, split), NamedSharding(mesh, SPLIT)
    with CheckpointManager.from_config(CONFIG, directory=RUN.value) as manager:
        step, state = manager.resume(state)
        tell(f"{jax.process_count()} processes: {'resumed' if step else 'started'} at step {step}")
        while step < STEPS.value and not manager.preempted:
            data = np.random.default_rng(step).standard_normal((BATCH, WIDTH), np.float32)
            batch = jax.make_array_from_callback(data.shape, batches, data.__getitem__)
            state, loss = step_fn(state, batch)
            step += 1
            if manager.maybe_save(step, state, metrics={"loss": loss}):
                tell(f"step {step:4d}  loss {float(loss):.6f}  saving")
    tell(f"ended at step {step}")


def tell(text: str) -> None:
    """Say it once for all processes."""
    if jax.process_index() == 0:
        print(text, flush=True)


def main(_: list[str]) -> None:
    """One of the processes, or the start of them all."""
    if INDEX.value is None:
        sys.exit(max(abs(process.wait()) for process in start()))
    jax.distributed.initialize(
        f"127.0.0.1:{PORT.value}",
        num_processes=PROCESSES.value,
        process_id=INDEX.value,
        heartbeat_timeout_seconds=10,  # after the death of one jax ends the others
    )
    train()


if __name__ == "__main__":
    app.run(main)
