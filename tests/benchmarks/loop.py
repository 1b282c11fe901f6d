"""A train loop that donates its state and saves: what that does to the time of its steps.

Usage: python -m tests.benchmarks.loop DIRECTORY [--rounds N] [--seconds S]

A multilayer perceptron under Adam in f32; a step is a batch's forward, backward and
update. Told are, in milliseconds, the steps' median and 99th percentile without saving,
and while each contender saves again as soon as it has saved; then what saving as often
as `OverheadBelow(0.01)` asks has cost, as a part of the time without.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from ckptmgr import CheckpointManager, KeepLast, OverheadBelow
from tests.benchmarks.contenders import Ckptmgr, Contender, Orbax
from tests.benchmarks.speed import release_memory

_WIDTH, _LAYERS, _BATCH = 2048, 4, 256
_SHARE = 0.01
_OPTIMIZER = optax.adam(1e-3)
State = tuple[list[jax.Array], optax.OptState]


def begin() -> State:
    """Parameters and moments, 201 MB."""
    keys = jax.random.split(jax.random.key(0), _LAYERS)
    params = [jax.random.normal(key, (_WIDTH, _WIDTH)) * _WIDTH**-0.5 for key in keys]
    return params, _OPTIMIZER.init(params)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: State, batch: jax.Array) -> State:
    """One update towards the identity."""
    params, moments = state

    def loss(params: list[jax.Array]) -> jax.Array:
        x = batch
        for weights in params:
            x = jax.nn.relu(x @ weights)
        return jnp.mean((x - batch) ** 2)

    updates, moments = _OPTIMIZER.update(jax.grad(loss)(params), moments, params)
    return jax.tree.map(jnp.add, params, updates), moments


class Trainer:
    """Steps on, and times each."""

    def __init__(self) -> None:
        self.state = begin()
        self.step = 0
        self._batch = jax.random.normal(jax.random.key(1), (_BATCH, _WIDTH))

    def run(self, seconds: float, after: Callable[[int, State], object] | None) -> list[float]:
        """The time of each step, with what is done after it."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            self.state = jax.block_until_ready(train_step(self.state, self._batch))
            self.step += 1
            if after:
                after(self.step, self.state)
            times.append(time.perf_counter() - began)
        return times


def back_to_back(
    trainer: Trainer, contender: type[Contender], directory: str, seconds: float
) -> tuple[list[float], int]:
    """Steps while one save follows the other, and how many there were."""
    with tempfile.TemporaryDirectory(dir=directory) as place, contender(place, keep=2) as one:
        waiting: list[threading.Thread] = []

        def save(step: int, state: State) -> None:
            if not waiting or not waiting[-1].is_alive():
                waiting.append(threading.Thread(target=one.save(step, state)))
                waiting[-1].start()

        times = trainer.run(seconds, save)
        waiting[-1].join()
    return times, len(waiting)


def by_overhead(trainer: Trainer, directory: str, seconds: float) -> dict[str, float]:
    """What `OverheadBelow` costs: steps with it against as many seconds before and after."""
    before = trainer.run(seconds / 4, None)
    saves = 0
    with (
        tempfile.TemporaryDirectory(dir=directory) as place,
        CheckpointManager(place, when=OverheadBelow(_SHARE), keep=KeepLast(2)) as manager,
    ):

        def save(step: int, state: State) -> None:
            nonlocal saves
            saves += manager.maybe_save(step, state) is not None

        beside = trainer.run(seconds, save)
    alone = statistics.fmean(before + trainer.run(seconds / 4, None))
    return {"share": statistics.fmean(beside) / alone - 1, "saves": saves}


def percentiles(times: list[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    cuts = statistics.quantiles(times, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def main() -> None:
    """Measure, and print the figures of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overhead-seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    directory = os.path.abspath(arguments.directory)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with contextlib.redirect_stdout(sys.stderr):
        trainer = Trainer()
        for number in range(arguments.rounds + 1):
            for contender in (None, Ckptmgr, Orbax):
                release_memory()
                if contender is None:
                    times, saves = trainer.run(arguments.seconds, None), 0
                else:
                    times, saves = back_to_back(trainer, contender, directory, arguments.seconds)
                figures = {**percentiles(times), "saves": saves}
                for name, value in figures.items() if number else ():
                    found[contender.name if contender else "alone"][name].append(value)
            print(f"loop: round {number} of {arguments.rounds}", file=sys.stderr)
        overhead = by_overhead(trainer, directory, arguments.overhead_seconds)
    print(json.dumps({"figures": found, "overhead": overhead}))


if __name__ == "__main__":
    main()
