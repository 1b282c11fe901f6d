"""What a leaf costs before its snapshot: flatten, structure and plan, anew and from the cache.

Usage: python -m tests.benchmarks.plan [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import numpy as np

from ckptmgr.pipeline.planner import Planner
from ckptmgr.tree.registry import Registry

SIZES = (1_000, 10_000, 100_000)
_PACK_BELOW = 1 << 20


def tree(leaves: int) -> dict[str, object]:
    """Layers of ten small jax arrays each."""
    arrays = jax.device_put([np.full((4, 4), i, np.float32) for i in range(leaves)])
    return {
        f"layer_{i}": {f"weight_{j}": arrays[10 * i + j] for j in range(10)}
        for i in range(leaves // 10)
    }


def seconds(planner: Planner, of: object) -> float:
    """How long one plan takes."""
    began = time.perf_counter()
    planner.plan(of)
    return time.perf_counter() - began


def main() -> None:
    """Print the microseconds a leaf of each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        of, times = tree(size), {"first": list[float](), "cached": list[float]()}
        for _ in range(rounds + 1):
            planner = Planner(Registry(), _PACK_BELOW)
            for values in times.values():
                values.append(1e6 * seconds(planner, of) / size)
        found[size] = {name: values[1:] for name, values in times.items()}  # the first is warm-up
    print(json.dumps({"plan": found}))


if __name__ == "__main__":
    main()
