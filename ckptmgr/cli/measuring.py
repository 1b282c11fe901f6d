"""`bench`: what a disk does with a tree, and how often it can be saved for 1 % of the time.

A loop of steps that take every core is run with and without a save beside it; what the
save makes the steps take longer, and the time that `save()` keeps them, is its cost.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp

from ckptmgr import pace
from ckptmgr.cli import text
from ckptmgr.errors import InvalidOption, OutOfMemory, StorageError
from ckptmgr.limiter import parse_bytes
from ckptmgr.manager import CheckpointManager
from ckptmgr.retention import KeepLast
from ckptmgr.units import size, span

SHARE: Final = 0.01
_ROUNDS: Final = 3
_STEPS: Final = 20  # without a save beside them, before each
_WIDTH: Final = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: medians, in bytes and seconds.

    Attributes:
      nbytes, leaves: of the tree.
      stall, durable, restore: of a save and a restore with nothing beside them.
      cost: what a save costs a loop that takes every core.
      interval: how far apart saves must begin to cost 1 % of that loop's time.
    """

    nbytes: int
    leaves: int
    stall: float
    durable: float
    restore: float
    cost: float

    @property
    def interval(self) -> float:
        """Seconds from one save to the next at which saving costs 1 % of the time."""
        return self.cost / SHARE


def bench(directory: str, nbytes: str, leaves: int, *, json: bool) -> None:
    """Measure, and print what that means."""
    total = parse_bytes(nbytes, "--size")
    if total < 4 * leaves:
        raise InvalidOption(f"--size is at least 4 bytes for each leaf, not {nbytes}")
    found = measured(directory, total, leaves)
    if json:
        text.say_json(
            {**{n: getattr(found, n) for n in found.__slots__}, "interval": found.interval}
        )
        return
    text.say(lines(found))


def lines(found: Measured) -> Iterator[str]:
    """What was measured, in words. Pure."""
    yield f"tree      {size(found.nbytes)} in {found.leaves} arrays"
    yield f"save()    {span(found.stall)}"
    yield f"durable   {span(found.durable)}, {size(found.nbytes / found.durable)}/s"
    yield f"restore   {span(found.restore)}, {size(found.nbytes / found.restore)}/s, cached"
    yield f"cost      {span(found.cost)} of a loop that takes every core"
    yield f"cadence   a save every {span(found.interval)} costs 1 %:"
    for step in (0.1, 1.0, 10.0):
        yield f"          Every(steps={steps(found, step)}) where a step takes {span(step)}"
    yield "          OverheadBelow(0.01) finds it out by itself"


def steps(found: Measured, seconds: float) -> int:
    """Every how many steps of so many seconds a save costs at most 1 %. Pure."""
    return max(1, math.ceil(found.interval / seconds))


def measured(directory: str, nbytes: int, leaves: int) -> Measured:
    """Save and restore a tree of so many bytes in a directory of its own, which is removed."""
    stalls, durables, restores, costs = [], [], [], []
    with scratch(directory) as run, CheckpointManager(run, keep=KeepLast(1)) as manager:
        tree, work = made(nbytes, leaves), worker()
        manager.save(0, tree).result()
        for number in range(1, 1 + 2 * _ROUNDS, 2):
            began = time.perf_counter()
            future = manager.save(number, tree)
            stalls.append(time.perf_counter() - began)
            future.result()
            durables.append(time.perf_counter() - began)
            began = time.perf_counter()
            manager.restore(number)
            restores.append(time.perf_counter() - began)
            costs.append(cost_beside(work, manager, number + 1, tree))
    stall = statistics.median(stalls)
    return Measured(
        sum(leaf.nbytes for leaf in tree.values()),
        leaves,
        stall,
        statistics.median(durables),
        statistics.median(restores),
        max(statistics.median(costs), stall),
    )


def made(nbytes: int, leaves: int) -> dict[str, jax.Array]:
    """A tree of so many bytes.

    Raises:
      OutOfMemory: there is not that much.
    """
    items = nbytes // leaves // 4
    try:
        tree = {f"array_{n}": jnp.full(items, n, jnp.float32) for n in range(leaves)}
        jax.block_until_ready(tree)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        raise OutOfMemory(f"a tree of {size(nbytes)} does not fit; give less --size") from error
    return tree


@contextmanager
def scratch(directory: str) -> Iterator[str]:
    """A directory of its own in another, removed at the end."""
    try:
        path = tempfile.mkdtemp(prefix=".ckptmgr-bench-", dir=directory)
    except OSError as error:
        raise StorageError(f"nothing can be written: {error.strerror}", file=directory) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def worker() -> Callable[[], None]:
    """A step of work that takes every core for some milliseconds."""
    matrix = jnp.ones((_WIDTH, _WIDTH), jnp.float32) / _WIDTH
    product = jax.jit(lambda x: x @ x @ x)

    def work() -> None:
        product(matrix).block_until_ready()

    work()  # compiled
    return work


def cost_beside(
    work: Callable[[], None], manager: CheckpointManager, step: int, tree: object
) -> float:
    """The seconds that one save costs a loop: its stall, and what the steps take longer."""
    state = pace.Overhead()
    for number in range(_STEPS):
        state = pace.offered(state, number, time.monotonic(), busy=False)
        work()
    began = time.monotonic()
    state = pace.offered(state, _STEPS, began, busy=False)
    future = manager.save(step, tree)
    state = pace.saved(state, began, time.monotonic())
    number = _STEPS
    while not future.done():
        work()
        number += 1
        state = pace.offered(state, number, time.monotonic(), busy=True)
    manager.wait()
    return state.cost
