"""A flax linen TrainState, saved as it is and resumed.

    python -m examples.train_linen --run=RUN --steps=20
    python -m examples.train_linen --run=RUN --steps=40

The class of the state comes back through the state that `resume` is given: its weights
and what the optimizer keeps are data, its functions stay those of the program.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import linen as nn
from flax.training.train_state import TrainState

from ckptmgr import CheckpointManager, Every, KeepBest, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
STEPS = flags.DEFINE_integer("steps", 20, "the updates of the whole run")


class Network(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """One number for each row."""
        hidden = nn.relu(nn.Dense(64)(x))
        out: jax.Array = nn.Dense(1)(hidden)
        return out[:, 0]


def created() -> TrainState:
    """A state of random weights."""
    network = Network()
    params = network.init(jax.random.key(0), jnp.ones((1, 8)))["params"]
    state: TrainState = TrainState.create(
        apply_fn=network.apply, params=params, tx=optax.adam(1e-2)
    )
    return state


@jax.jit
def train_step(state: TrainState, x: jax.Array) -> tuple[TrainState, jax.Array]:
    """One update: the network is to sum its input."""

    def loss_of(params: object) -> jax.Array:
        return jnp.mean((state.apply_fn({"params": params}, x) - x.sum(axis=1)) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def main(_: list[str]) -> None:
    """Train from wherever the run stands."""
    keep = KeepLast(2) | KeepBest("loss")
    with CheckpointManager(RUN.value, when=Every(steps=5), keep=keep) as manager:
        step, state = manager.resume(created())
        print(f"{'resumed' if step else 'started'} at step {step}")
        while step < STEPS.value:
            x = jax.random.normal(jax.random.key(step), (32, 8))
            state, loss = train_step(state, x)
            step += 1
            manager.maybe_save(step, state, metrics={"loss": loss})
    print(f"ended at step {step}")


if __name__ == "__main__":
    app.run(main)
