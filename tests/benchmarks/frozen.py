"""Incremental saves of the llm work, of which a tenth changes, against whole ones.

Usage: python -m tests.benchmarks.frozen DIRECTORY [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

import jax

from ckptmgr import CheckpointManager, KeepLast
from ckptmgr.format.step import step_name
from tests.benchmarks.speed import release_memory
from tests.benchmarks.works import llm, nbytes

_LAYERS = 4  # of 14, and in the params alone: a tenth of all bytes


def changed(tree: Any, step: int) -> Any:
    """The tree as training a few layers leaves it."""
    layers = {
        f"layer_{i}": jax.tree.map(lambda x: x + step, tree["params"][f"layer_{i}"])
        for i in range(_LAYERS)
    }
    return jax.block_until_ready({**tree, "params": {**tree["params"], **layers}})


def blocks(directory: str) -> dict[int, int]:
    """The bytes that each file below a directory takes on the disk, by its inode."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            state = os.stat(os.path.join(folder, name))
            found[state.st_ino] = state.st_blocks * 512
    return found


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    tree: Any = jax.block_until_ready(llm())
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    place = tempfile.mkdtemp(dir=arguments.directory)
    try:
        for number in range(arguments.rounds + 1):
            for kind in ("whole", "incremental"):
                run = f"{place}/{kind}"
                with CheckpointManager(
                    run, incremental=kind == "incremental", keep=KeepLast(2)
                ) as manager:
                    manager.save(2 * number, tree).result()
                    manager.wait()
                    state = changed(tree, number + 1)
                    release_memory()
                    os.sync()
                    before, began = blocks(run), time.perf_counter()
                    manager.save(2 * number + 1, state).result()
                    durable = time.perf_counter() - began
                    new = blocks(f"{run}/{step_name(2 * number + 1)}")
                    written = sum(size for inode, size in new.items() if inode not in before)
                    del state
                if number:
                    found[kind]["durable"].append(durable)
                    found[kind]["bytes"].append(written / nbytes(tree))
            print(f"frozen: round {number} of {arguments.rounds}", file=sys.stderr)
    finally:
        shutil.rmtree(place)
    print(json.dumps({"figures": found}))


if __name__ == "__main__":
    main()
