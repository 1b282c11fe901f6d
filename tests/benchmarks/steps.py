"""A directory of many committed steps: opening it, asking what there is, one retention pass.

Usage: python -m tests.benchmarks.steps DIRECTORY [--steps N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict

import msgspec
import numpy as np

from ckptmgr import CheckpointManager, KeepEvery, KeepLast
from ckptmgr.format.encoding import decode_record, encode_record
from ckptmgr.format.step import COMMIT_RECORD, MANIFEST, step_name


def made(run: str, steps: int) -> None:
    """A run of so many steps: one that was saved, and the others like it, a second apart."""
    with CheckpointManager(run) as manager:
        manager.save(0, {"a": np.ones(3)}).result()
    first = f"{run}/{step_name(0)}"
    with open(f"{first}/{COMMIT_RECORD}", "rb") as file:
        record = decode_record(file.read(), first)
    for step in range(1, steps):
        place = f"{run}/{step_name(step)}"
        os.mkdir(place)
        os.link(f"{first}/{MANIFEST}", f"{place}/{MANIFEST}")
        with open(f"{place}/{COMMIT_RECORD}", "wb") as file:
            like = msgspec.structs.replace(record, step=step, time=record.time + step)
            file.write(encode_record(like))


def main() -> None:
    """Measure, and print the seconds of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        run = f"{directory}/run"
        made(run, arguments.steps)
        for number in range(arguments.rounds + 1):
            keep = KeepLast(arguments.steps) | KeepEvery(steps=100)
            began = time.perf_counter()
            manager = CheckpointManager(run, keep=keep)
            assert manager.latest_step() == arguments.steps - 1
            opened = time.perf_counter()
            assert len(manager.all_steps()) == arguments.steps
            listed = time.perf_counter()
            manager._catalog.retain()
            retained = time.perf_counter()
            manager.close()
            if number:
                found["open, latest_step"].append(opened - began)
                found["all_steps"].append(listed - opened)
                found["retention"].append(retained - listed)
            print(f"steps: round {number} of {arguments.rounds}", file=sys.stderr)
    print(json.dumps({"steps": arguments.steps, "figures": found}))


if __name__ == "__main__":
    main()
