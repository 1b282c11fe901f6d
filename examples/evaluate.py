"""An evaluator in another process, which follows a run while the trainer deletes its steps.

    python -m examples.evaluate --run=RUN

It waits for each step, holds it so that it is not deleted meanwhile, restores the weights
alone, and notes a score. The trainer's rules look at it: the best step stays.
"""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
from absl import app, flags

from ckptmgr import CheckpointManager, KeepBest, KeepLast, NoSuchStep, StepDeleted

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
ROLE = flags.DEFINE_enum("role", None, ["trainer", "evaluator"], "which; without it start both")
STEPS = 200


@jax.jit
def train_step(weights: jax.Array, x: jax.Array) -> jax.Array:
    """One update: the weights are to sum a row."""
    gradient: jax.Array = jax.grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(weights)
    return weights - 0.01 * gradient


def train() -> None:
    """Save every step, keep the newest and the best that are known."""
    weights, velocity = jnp.zeros(512), jnp.zeros(512)
    keep = KeepLast(1) | KeepBest("score", mode="max")
    with CheckpointManager(RUN.value, keep=keep) as manager:
        for step in range(1, STEPS + 1):
            weights = train_step(weights, jax.random.normal(jax.random.key(step), (64, 512)))
            manager.save(step, {"weights": weights, "optimizer": velocity})
        manager.wait()
        print(f"the trainer saved {STEPS} steps")


def evaluate() -> None:
    """Score what there is whenever there is something new."""
    held_out = jax.random.normal(jax.random.key(0), (256, 512))
    with CheckpointManager(RUN.value, read_only=True) as reader:
        step, scored = 0, 0
        while step < STEPS:
            newest = reader.wait_for_step(after=step, timeout=60)
            if newest is None:
                raise SystemExit("the trainer has not saved for a minute")
            step = newest
            try:
                with reader.hold(step):
                    weights = reader.restore(step, select="weights")["weights"]
                    error = held_out @ weights - held_out.sum(axis=1)
                    reader.annotate(step, metrics={"score": -jnp.mean(error**2)})
                    scored += 1
            except (StepDeleted, NoSuchStep):
                continue  # the trainer was quicker: there is a newer one
        best = reader.best_step("score", mode="max")
        print(f"the evaluator scored {scored} of them; the best that is left is step {best}")


def main(_: list[str]) -> None:
    """One of the two, or both."""
    if ROLE.value == "trainer":
        train()
        return
    if ROLE.value == "evaluator":
        evaluate()
        return
    command = [sys.executable, "-m", "examples.evaluate", f"--run={RUN.value}"]
    roles = [
        subprocess.Popen([*command, f"--role={role}"], env=os.environ)
        for role in ("evaluator", "trainer")
    ]
    sys.exit(max(process.wait() for process in roles))


if __name__ == "__main__":
    app.run(main)
