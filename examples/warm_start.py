"""Weights of one run as the start of another, with a new optimizer and a new head.

    python -m examples.warm_start --run=RUN

The second run reads the body of the first one's newest step and nothing else of it:
neither its head, which has another shape, nor what its optimizer kept.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags

import ckptmgr
from ckptmgr import CheckpointManager, Every, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory of both runs", required=True)
State = dict[str, Any]


def init(key: jax.Array, classes: int, optimizer: optax.GradientTransformation) -> State:
    """Random weights: a body, and a head of as many outputs as there are classes."""
    body, head = jax.random.split(key)
    params = {
        "body": {"kernel": jax.random.normal(body, (8, 64)), "bias": jnp.zeros(64)},
        "head": {"kernel": jax.random.normal(head, (64, classes)) / 8, "bias": jnp.zeros(classes)},
    }
    return {"params": params, "opt_state": optimizer.init(params)}


def loss_of(params: State, x: jax.Array) -> jax.Array:
    """Which of the first inputs is the largest."""
    body, head = params["body"], params["head"]
    logits = jax.nn.relu(x @ body["kernel"] + body["bias"]) @ head["kernel"] + head["bias"]
    right = jnp.argmax(x[:, : logits.shape[1]], axis=1)
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, right).mean()
    return loss


def train(
    manager: CheckpointManager, state: State, optimizer: optax.GradientTransformation
) -> float:
    """Train for a while; the loss at the end."""

    @jax.jit
    def train_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        return {
            "params": optax.apply_updates(state["params"], updates),
            "opt_state": opt_state,
        }, loss

    for step in range(1, 101):
        state, loss = train_step(state, jax.random.normal(jax.random.key(step), (64, 8)))
        manager.maybe_save(step, state, metrics={"loss": loss})
    return float(loss)


def main(_: list[str]) -> None:
    """The first run, then the second from it, and from nothing for comparison."""
    adam, sgd = optax.adam(1e-2), optax.sgd(1e-2)
    options: State = {"when": Every(steps=50), "keep": KeepLast(1)}
    with CheckpointManager(f"{RUN.value}-first", **options) as manager:
        loss = train(manager, init(jax.random.key(0), 8, adam), adam)
        print(f"the first run ended with loss {loss:.3f}")

    fresh = init(jax.random.key(1), 4, sgd)
    body = {"params": {"body": fresh["params"]["body"]}}
    warm = ckptmgr.load(f"{RUN.value}-first", like=body, select="params/body")
    params = {**fresh["params"], **warm["params"]}
    with CheckpointManager(f"{RUN.value}-second", **options) as manager:
        warmed = train(manager, {"params": params, "opt_state": sgd.init(params)}, sgd)
    with CheckpointManager(f"{RUN.value}-cold", **options) as manager:
        cold = train(manager, fresh, sgd)
    print(f"the second ended with loss {warmed:.3f}, {cold:.3f} without the first one's body")


if __name__ == "__main__":
    app.run(main)
