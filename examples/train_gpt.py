"""A small decoder-only transformer on English text that saves itself and resumes by itself.

    python -m examples.train_gpt --run=RUN
    python -m examples.train_gpt --run=s3://bucket/run --config=configs/object_store.toml

Bytes are tokens; the text is what Python's own documentation says about the language.
Kill it whenever you like and start it again: it goes on where it was, and ends bit for
bit where it would have ended.
"""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import statistics
import time
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from ckptmgr import CheckpointManager, Every, KeepBest, KeepEvery, KeepLast

RUN = flags.DEFINE_string("run", None, "the directory or URL of the run", required=True)
LOCAL = str(Path(__file__).parents[1] / "configs" / "local.toml")
CONFIG = flags.DEFINE_string("config", LOCAL, "a TOML file of the manager's options")
STEPS = flags.DEFINE_integer("steps", 120, "how many updates to do")
EVERY = flags.DEFINE_integer("every", 10, "how many updates between checkpoints")
RESULT = flags.DEFINE_string("result", None, "where to write the losses as JSON")

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 160, 4, 4, 64, 24
Params: TypeAlias = dict[str, jax.Array]
State: TypeAlias = dict[str, object]


def text() -> np.ndarray:
    """All that `help()` knows of the language, as bytes."""
    topics = pydoc_data.topics.topics
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)


def batch(data: np.ndarray, step: int) -> np.ndarray:
    """The sequences of a step: they depend on nothing else, so a resumed run sees the same."""
    random = np.random.default_rng(step)
    starts = random.integers(0, len(data) - CONTEXT - 1, BATCH)
    return np.stack([data[start : start + CONTEXT + 1] for start in starts]).astype(np.int32)


def init(key: jax.Array) -> Params:
    """Random weights; each layer's are stacked along the first axis."""
    shapes = {
        "embed": (256, WIDTH),
        "position": (CONTEXT, WIDTH),
        "qkv": (LAYERS, WIDTH, 3 * WIDTH),
        "out": (LAYERS, WIDTH, WIDTH),
        "up": (LAYERS, WIDTH, 4 * WIDTH),
        "down": (LAYERS, 4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: WIDTH**-0.5 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x: jax.Array) -> jax.Array:
    """Root mean square normalisation without weights."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
    """Causal attention, then a feed-forward block."""
    shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
    query, key, value = jnp.split(norm(x) @ weights["qkv"], 3, axis=-1)
    attended = jax.nn.dot_product_attention(
        query.reshape(shape), key.reshape(shape), value.reshape(shape), is_causal=True
    )
    x += attended.reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"], None


def loss_of(params: Params, tokens: jax.Array) -> jax.Array:
    """Mean cross entropy of the next byte."""
    x = params["embed"][tokens[:, :-1]] + params["position"]
    stacked = {name: params[name] for name in ("qkv", "out", "up", "down")}
    x, _ = jax.lax.scan(layer, x, stacked)
    logits = norm(x) @ params["embed"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -chosen.mean()


OPTIMIZER = optax.adamw(optax.linear_schedule(0.0, 3e-3, 20), weight_decay=0.01)


@jax.jit(donate_argnums=0)
def train_step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
    """One update; the old state is donated."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], tokens)
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, loss


class Timing:
    """When a save let the trainer go on, and when it was durable, in ms since it began."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.stall = 1e3 * (time.perf_counter() - began)
        self.durable = math.nan

    def finish(self, _: object) -> None:
        """The future is done."""
        self.durable = 1e3 * (time.perf_counter() - self.began)


def main(_: list[str]) -> None:
    """Train, save, and say what it cost."""
    logging.set_verbosity(logging.WARNING)
    data, params = text(), init(jax.random.key(0))
    state: State = {"params": params, "opt_state": OPTIMIZER.init(params)}
    keep = KeepLast(2) | KeepEvery(steps=5 * EVERY.value) | KeepBest("loss", mode="min")
    saves: list[Timing] = []
    losses: dict[int, str] = {}
    when = Every(steps=EVERY.value)
    with CheckpointManager.from_config(
        CONFIG.value, directory=RUN.value, when=when, keep=keep
    ) as manager:
        step, state = manager.resume(state)
        first = step
        print(f"resumed at step {step}" if step else "started from nothing", flush=True)
        while step < STEPS.value:
            state, loss = train_step(state, batch(data, step))
            step += 1
            losses[step] = float(loss).hex()
            began = time.perf_counter()
            future = manager.maybe_save(step, state, metrics={"loss": loss})
            if future:
                saves.append(Timing(began))
                future.add_done_callback(saves[-1].finish)
                print(f"step {step:4d}  loss {float(loss):.4f}  saving", flush=True)
        manager.wait()
        report(manager, step - first, saves)
    if RESULT.value:
        with open(RESULT.value, "w") as file:
            json.dump(losses, file)


def report(manager: CheckpointManager, steps: int, saves: list[Timing]) -> None:
    """A table that a person reads at a glance."""
    console, table = Console(), Table("what", "value", title="this run")
    table.add_row("steps", str(steps))
    table.add_row("saves", str(len(saves)))
    times = {
        "stall per save": [save.stall for save in saves],
        "until durable": [save.durable for save in saves if save.durable > 0],
    }
    for name, values in times.items():
        if values:
            median = statistics.median(values)
            table.add_row(name, f"median {median:.1f} ms, at most {max(values):.1f} ms")
    newest = manager.info(manager.all_steps()[-1])
    table.add_row("bytes a step", f"{newest.nbytes / 1e6:.1f} MB in {newest.leaves} leaves")
    console.print(table)
    verdict = manager.explain()
    fates = Table("step", "loss", "kept or deleted, and why", title="retention")
    for step in sorted({*verdict.kept, *verdict.deleted}):
        if step in verdict.kept:
            loss = f"{manager.info(step).metrics['loss']:.4f}"
            fates.add_row(str(step), loss, f"kept: {', '.join(verdict.kept[step])}")
        else:
            fates.add_row(str(step), "", f"deleted: {verdict.deleted[step]}", style="dim")
    console.print(fates)


if __name__ == "__main__":
    app.run(main)
