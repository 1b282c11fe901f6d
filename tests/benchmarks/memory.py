"""Extra peak memory while the 1.8 GB work is saved, each case in a process of its own.

Usage: python -m tests.benchmarks.memory CASE DIRECTORY

The peak is the kernel's (VmHWM), reset before the save; what is told is how far it goes
above the same trainer's peak without a save, and the most that was borrowed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import ckptmgr
from tests.benchmarks.contenders import Contender, JaxSerialization, Orbax
from tests.benchmarks.speed import release_memory, train_step
from tests.benchmarks.works import llm

LIMIT = "256MiB"
CASES: dict[str, dict[str, bool] | type[Contender]] = {
    "views, idle": {},
    "views, donating steps": {},
    "copies, idle": {"borrow": False},
    "copies, donating steps": {"borrow": False},
    "numpy": {},
    "orbax, idle": Orbax,
    "jax, idle": JaxSerialization,
}
_STEPS = 12


def peak() -> int:
    """The most memory that the process has had since `reset`, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def reset() -> None:
    """Begin to look for a new peak."""
    release_memory()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def steps(state: object, count: int) -> object:
    """Steps that donate, as a trainer's do; none for a trainer that is idle."""
    for _ in range(count):
        state = jax.block_until_ready(train_step(state))
    return state


def measure(case: str, directory: str) -> dict[str, float]:
    """Run one case."""
    options = CASES[case]
    count = _STEPS if case.endswith("donating steps") else 0
    tree: object = jax.block_until_ready(llm())
    if case == "numpy":
        tree = jax.tree.map(np.array, tree)
    if isinstance(options, type):
        return _other(options, tree, directory)
    borrow = options.get("borrow", True)
    with ckptmgr.CheckpointManager(directory, in_flight_bytes=LIMIT, borrow=borrow) as manager:
        manager.save(0, {"warm": jnp.ones(3)}).result()
        tree = steps(tree, 2 if count else 0)
        reset()
        tree = steps(tree, count)
        alone = peak()
        reset()
        future = manager.save(1, tree)
        borrowed = manager.statistics().borrowed_bytes
        returned_before_durable = not future.done()
        tree = steps(tree, count)
        future.result()
        return {
            "extra": peak() - alone,
            "borrowed": borrowed,
            "borrowed_after": manager.statistics().borrowed_bytes,
            "copied_at_most": manager.statistics().peak_bytes,
            "returned_before_durable": returned_before_durable,
        }


def _other(contender: type[Contender], tree: object, directory: str) -> dict[str, float]:
    with contender(directory) as one:
        one.save(0, {"warm": jnp.ones(3)})()
        reset()
        alone = peak()
        one.save(1, tree)()
        return {"extra": peak() - alone, "borrowed": 0}


def main() -> None:
    """Run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("directory")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with (
        contextlib.redirect_stdout(sys.stderr),
        tempfile.TemporaryDirectory(dir=os.path.abspath(arguments.directory)) as directory,
    ):
        figures = measure(arguments.case, directory)
    print(json.dumps({"case": arguments.case, **figures}))


if __name__ == "__main__":
    main()
