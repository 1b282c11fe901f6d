"""A sweep over learning rates, which pins the best step that it found.

    python -m examples.sweep --run=RUN

Each rate has a run of its own. A pinned step stays whatever the rules say, also when the
sweep goes on another day with other rules.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from absl import app, flags

from ckptmgr import CheckpointManager, Every, KeepBest, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory that the runs begin with", required=True)
RATES = (0.3, 0.1, 0.03, 0.01)


@jax.jit
def train_step(weights: jax.Array, rate: float, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One update: the weights are to sum a row."""

    def loss_of(weights: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights - x.sum(axis=1)) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - rate * gradient, loss


def run_of(rate: float) -> str:
    """The directory of a rate."""
    return f"{RUN.value}-{rate}"


def train(rate: float) -> tuple[float, int]:
    """Train with a rate; the lowest loss that was saved, and its step."""
    keep = KeepLast(1) | KeepBest("loss")
    with CheckpointManager(run_of(rate), when=Every(steps=10), keep=keep) as manager:
        step, weights = manager.resume(jnp.zeros(8))
        while step < 100:
            x = jax.random.normal(jax.random.key(step), (32, 8))
            weights, loss = train_step(weights, rate, x)
            step += 1
            manager.maybe_save(step, weights, metrics={"loss": loss}, metadata={"rate": rate})
        manager.wait()
        best = manager.best_step("loss")
        return manager.info(best).metrics["loss"], best


def main(_: list[str]) -> None:
    """Try each rate, and pin the best step of all."""
    found = {rate: train(rate) for rate in RATES}
    for rate, (loss, step) in found.items():
        print(f"rate {rate}: loss {loss:.2e} at step {step}")
    best = min(found, key=lambda rate: found[rate])
    with CheckpointManager(run_of(best), read_only=True) as manager:
        manager.pin(found[best][1])
        info = manager.info(found[best][1])
        print(f"pinned: {info.path}, rate {info.metadata['rate']}")
        weights = manager.restore(info.step or 0)
        print(f"its weights are ones but for {float(abs(weights - 1).max()):.1e}")


if __name__ == "__main__":
    app.run(main)
