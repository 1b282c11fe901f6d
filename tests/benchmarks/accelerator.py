"""An accelerator: what a save costs the trainer there, and how fast it becomes durable.

Usage: python -m tests.benchmarks.accelerator [GIGABYTES ...] [--directory DIRECTORY]

The state is saved as soon as the step that makes it was dispatched, as in a train loop.
Told are the stall, whether the device was still computing after it, the seconds until
the step is durable, the seconds that the same bytes take to the host alone, and whether
what is restored is the same. With no accelerator it says so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from ckptmgr import CheckpointManager

_ARRAYS = 64
_UNITS = 1 << 30


@jax.jit
def train_step(state: list[jax.Array]) -> list[jax.Array]:
    """A step that makes all of the state anew, and takes the device a while."""
    weights = jnp.ones((4096, 4096), jnp.float32)
    busy = jax.lax.fori_loop(0, 200, lambda _, x: x @ weights / 4096.0, weights)
    return [array + busy[0, 0] for array in state]


def measure(gigabytes: int, directory: str) -> dict[str, float | bool]:
    """One size."""
    items = gigabytes * _UNITS // _ARRAYS // 4
    state = jax.block_until_ready([jnp.full(items, i, jnp.float32) for i in range(_ARRAYS)])
    with CheckpointManager(directory, in_flight_bytes=(gigabytes + 1) * _UNITS) as manager:
        manager.save(0, jax.block_until_ready(train_step(state))).result()
        state = train_step(state)
        began = time.perf_counter()
        future = manager.save(1, state)
        stall = time.perf_counter() - began
        early = not state[-1].is_ready()
        future.result()
        durable = time.perf_counter() - began
        state = train_step(jax.block_until_ready(state))
        jax.block_until_ready(state)
        began = time.perf_counter()
        for array in state:
            np.asarray(array)
        alone = time.perf_counter() - began
        restored = manager.restore(1, state)
        same = all(
            bool((one == array - 1).all()) for one, array in zip(restored, state, strict=True)
        )
    return {
        "gigabytes": gigabytes,
        "stall": stall,
        "returned_before_ready": early,
        "durable": durable,
        "to_host": alone,
        "restored": same,
    }


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gigabytes", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--directory", default=None)
    arguments = parser.parse_args()
    if jax.default_backend() == "cpu":
        print(json.dumps({"accelerator": "there is none here"}))
        return
    found = []
    for gigabytes in arguments.gigabytes:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            found.append(measure(gigabytes, f"{directory}/run"))
    print(json.dumps({"accelerator": found}))


if __name__ == "__main__":
    main()
