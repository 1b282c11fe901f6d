"""Speed: every contender in turn, A B C A B C ..., and medians with minimum and maximum.

Usage: python -m tests.benchmarks.speed WORK DIRECTORY [--rounds N]

Prints one JSON object: for each contender and figure the values of all counted rounds.
The first round is discarded. Stall is measured after `block_until_ready`; `loop_stall`
and `step_excess` inside a loop that donates its state, against its steps without a save.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import gc
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict

import jax
import jax.numpy as jnp

from tests.benchmarks.contenders import ALL, Contender
from tests.benchmarks.works import WORKS, nbytes

Figures = dict[str, float]
_LOOP_STEPS = 8
_MOST_COMPILED = 10_000  # leaves; to compile a step of 100,000 takes XLA 24 GB
_MOST_THRICE = 5 << 30  # bytes; in a loop there are the tree, the state, and what the save views


def drop_page_cache() -> bool:
    """Make the next reads cold; False where that is not permitted."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    except OSError:
        return False
    return True


def release_memory() -> None:
    """Give back what the allocator has kept, so that nobody starts with another's memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: object) -> object:
    """A step that touches all of the state and donates it."""
    return jax.tree.map(lambda x: x + jnp.ones_like(x), state)


def measure(contender: type[Contender], tree: object, directory: str) -> Figures:
    """A save and two restores, after a first save: what only that one costs is not counted."""
    figures: Figures = {}
    with contender(directory) as one:
        one.save(0, tree)()
        before = bytes_below(directory)
        os.sync()  # nobody waits for the write-back of what another has left
        began = time.perf_counter()
        finish = one.save(1, tree)
        figures["stall"] = time.perf_counter() - began
        finish()
        figures["durable"] = time.perf_counter() - began
        figures["bytes_on_disk"] = bytes_below(directory) - before
        kinds = ("restore_cold", "restore_warm") if drop_page_cache() else ("restore_warm",) * 2
        for kind in kinds:
            began = time.perf_counter()
            restored = one.restore(1, tree)
            figures[kind] = time.perf_counter() - began
            del restored
    return figures


def bytes_below(directory: str) -> int:
    """The size of all files under a directory."""
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(directory)
        for name in names
    )


def measure_loop(contender: type[Contender], tree: object, directory: str) -> Figures:
    """A save inside a loop that donates its state: its stall, and what the next steps lose."""
    state = jax.block_until_ready(jax.tree.map(jnp.copy, tree))

    def steps(state: object) -> tuple[object, list[float]]:
        spent = []
        for _ in range(_LOOP_STEPS):
            began = time.perf_counter()
            state = jax.block_until_ready(train_step(state))
            spent.append(time.perf_counter() - began)
        return state, spent

    state, _ = steps(state)
    state, alone = steps(state)
    with contender(directory) as one:
        one.save(0, state)()
        began = time.perf_counter()
        finish = one.save(1, state)
        stall = time.perf_counter() - began
        state, beside = steps(state)
        finish()
    excess = sum(beside) - _LOOP_STEPS * statistics.median(alone)
    return {"loop_stall": stall, "step_excess": max(0.0, excess)}


def run(work: str, directory: str, rounds: int, who: str = "") -> dict[str, object]:
    """All rounds of one work, by those that `who` names, or all."""
    tree = jax.block_until_ready(WORKS[work]())
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds + 1):
        for contender in ALL:
            if who and contender.name not in who.split(","):
                continue
            small = len(jax.tree.leaves(tree)) <= _MOST_COMPILED and nbytes(tree) <= _MOST_THRICE
            for probe in [measure, measure_loop] if contender.in_loop and small else [measure]:
                release_memory()
                place = tempfile.mkdtemp(dir=directory)
                try:
                    figures = probe(contender, tree, place)
                finally:
                    shutil.rmtree(place)
                for name, value in figures.items() if number else ():
                    found[contender.name][name].append(value)
        print(f"{work}: round {number} of {rounds}", file=sys.stderr)
    return {"work": work, "nbytes": nbytes(tree), "figures": found}


def main() -> None:
    """Run one work and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--who", default="")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        directory = os.path.abspath(arguments.directory)
        result = run(arguments.work, directory, arguments.rounds, arguments.who)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
