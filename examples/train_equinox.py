"""An equinox model, saved without its functions and resumed.

    python -m examples.train_equinox --run=RUN --steps=20
    python -m examples.train_equinox --run=RUN --steps=40

A model holds arrays and functions; `partition` divides it, and the arrays are saved.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from absl import app, flags

from ckptmgr import CheckpointManager, Every, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory of the run", required=True)
STEPS = flags.DEFINE_integer("steps", 20, "the updates of the whole run")
OPTIMIZER = optax.adam(1e-2)


def main(_: list[str]) -> None:
    """Train from wherever the run stands."""
    model = eqx.nn.MLP(8, "scalar", width_size=64, depth=1, key=jax.random.key(0))
    arrays, functions = eqx.partition(model, eqx.is_array)

    def loss_of(arrays: Any, x: jax.Array) -> jax.Array:
        out = jax.vmap(eqx.combine(arrays, functions))(x)
        return jnp.mean((out - x.sum(axis=1)) ** 2)

    @jax.jit
    def train_step(arrays: Any, opt_state: Any, x: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(arrays, x)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        return eqx.apply_updates(arrays, updates), opt_state, loss

    state = {"model": arrays, "opt_state": OPTIMIZER.init(arrays)}
    with CheckpointManager(RUN.value, when=Every(steps=5), keep=KeepLast(2)) as manager:
        step, state = manager.resume(state)
        print(f"{'resumed' if step else 'started'} at step {step}")
        while step < STEPS.value:
            x = jax.random.normal(jax.random.key(step), (32, 8))
            model, opt_state, loss = train_step(state["model"], state["opt_state"], x)
            state = {"model": model, "opt_state": opt_state}
            step += 1
            manager.maybe_save(step, state, metrics={"loss": loss})
    print(f"ended at step {step}")


if __name__ == "__main__":
    app.run(main)
