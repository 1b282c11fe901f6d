"""The position of a data iterator, saved with the state: no batch is seen twice, none is missed.

    python -m examples.train_iterator --run=RUN --steps=20
    python -m examples.train_iterator --run=RUN --steps=40

Each process has a position of its own, which `PerProcess` says. What the random generator
is at is plain Python numbers, and they come back exactly.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from ckptmgr import CheckpointManager, Every, KeepLast, PerProcess

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
STEPS = flags.DEFINE_integer("steps", 20, "the updates of the whole run")
ROWS, BATCH = 100, 32


class Batches:
    """Shuffles the rows anew in each epoch, and hands them out in batches."""

    def __init__(self, data: np.ndarray, seed: int) -> None:
        self.data = data
        self.random = np.random.default_rng(seed)
        self.order, self.at = self.random.permutation(len(data)), 0

    def __next__(self) -> np.ndarray:
        """The next batch; what is left of an epoch is left out."""
        if self.at + BATCH > len(self.data):
            self.order, self.at = self.random.permutation(len(self.data)), 0
        self.at += BATCH
        batch: np.ndarray = self.data[self.order[self.at - BATCH : self.at]]
        return batch

    def position(self) -> dict[str, Any]:
        """Where it is; with this another goes on as it would."""
        return {"order": self.order, "at": self.at, "random": self.random.bit_generator.state}

    def go_to(self, position: dict[str, Any]) -> None:
        """Go on from there."""
        self.order, self.at = position["order"], position["at"]
        self.random.bit_generator.state = position["random"]


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One update: the weights are to sum a row."""

    def loss_of(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch @ weights - batch.sum(axis=1)) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.05 * gradient, loss


def main(_: list[str]) -> None:
    """Train from wherever the run stands, weights and data alike."""
    data = np.random.default_rng(0).standard_normal((ROWS, 8), np.float32)
    batches = Batches(data, seed=jax.process_index())
    position = PerProcess(batches.position())
    state: dict[str, Any] = {"weights": jnp.zeros(8), "data": position}
    with CheckpointManager(RUN.value, when=Every(steps=5), keep=KeepLast(2)) as manager:
        step, state = manager.resume(state)
        batches.go_to(state["data"].value)
        print(f"{'resumed' if step else 'started'} at step {step}")
        while step < STEPS.value:
            weights, loss = train_step(state["weights"], next(batches))
            state = {"weights": weights, "data": PerProcess(batches.position())}
            step += 1
            manager.maybe_save(step, state, metrics={"loss": loss})
    print(f"ended at step {step}")


if __name__ == "__main__":
    app.run(main)
