"""A flax nnx model and its optimizer, saved as their state and resumed.

    python -m examples.train_nnx --run=RUN --steps=20
    python -m examples.train_nnx --run=RUN --steps=40

nnx splits objects into a graph, which stays the program's, and a state, which is a tree.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

from ckptmgr import CheckpointManager, Every, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
STEPS = flags.DEFINE_integer("steps", 20, "the updates of the whole run")


class Network(nnx.Module):
    """Two layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(8, 64, rngs=rngs)
        self.outer = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """One number for each row."""
        out: jax.Array = self.outer(nnx.relu(self.inner(x)))
        return out[:, 0]


@nnx.jit
def train_step(model: Network, optimizer: Any, x: jax.Array) -> jax.Array:
    """One update in place: the network is to sum its input."""

    def loss_of(model: Network) -> jax.Array:
        return jnp.mean((model(x) - x.sum(axis=1)) ** 2)

    loss: jax.Array
    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main(_: list[str]) -> None:
    """Train from wherever the run stands."""
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    with CheckpointManager(RUN.value, when=Every(steps=5), keep=KeepLast(2)) as manager:
        step, state = manager.resume(nnx.state((model, optimizer)))
        nnx.update((model, optimizer), state)
        print(f"{'resumed' if step else 'started'} at step {step}")
        while step < STEPS.value:
            x = jax.random.normal(jax.random.key(step), (32, 8))
            loss = train_step(model, optimizer, x)
            step += 1
            manager.maybe_save(step, nnx.state((model, optimizer)), metrics={"loss": loss})
    print(f"ended at step {step}")


if __name__ == "__main__":
    app.run(main)
