"""A trainer under asyncio: futures are awaited, and nothing blocks the loop.

    python -m examples.train_asyncio --run=RUN --steps=20
    python -m examples.train_asyncio --run=RUN --steps=40

Beside the training a task tells of each step as it becomes durable; another could serve
requests. The same lines run under trio.
"""

from __future__ import annotations

import asyncio

import jax
import jax.numpy as jnp
from absl import app, flags

from ckptmgr import CheckpointManager, Every, KeepLast, SaveFuture

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
STEPS = flags.DEFINE_integer("steps", 20, "the updates of the whole run")


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One update: the weights are to sum a row."""

    def loss_of(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch @ weights - batch.sum(axis=1)) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.05 * gradient, loss


async def tell(future: SaveFuture) -> None:
    """Wait for a save, beside whatever else the loop does."""
    info = await future
    if info is not None:
        print(f"step {info.step} is durable, loss {info.metrics['loss']:.4f}")


async def train(run: str, steps: int) -> None:
    """Train from wherever the run stands."""
    async with (
        CheckpointManager(run, when=Every(steps=5), keep=KeepLast(2)) as manager,
        asyncio.TaskGroup() as tasks,
    ):
        step, weights = await asyncio.to_thread(manager.resume, jnp.zeros(8))
        print(f"{'resumed' if step else 'started'} at step {step}")
        while step < steps:
            batch = jax.random.normal(jax.random.key(step), (32, 8))
            weights, loss = await asyncio.to_thread(train_step, weights, batch)
            step += 1
            future = manager.maybe_save(step, weights, metrics={"loss": loss})
            if future:
                tasks.create_task(tell(future))
    print(f"ended at step {step}")


def main(_: list[str]) -> None:
    """Run the loop."""
    asyncio.run(train(RUN.value, STEPS.value))


if __name__ == "__main__":
    app.run(main)
