"""Reads a hostile run by every door, each run in a process of its own, and tells what happened.

    python -m tests.hostile.victim < the directories, one a line

Imports once and forks for each: the imports take longer than the reading. An answer is a
line of JSON: by door the error, its leaf and file, and the seconds and bytes that it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ckptmgr
from ckptmgr import CheckpointError, CheckpointManager


def peak() -> int:
    """The most memory this process has had at once, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("Linux tells it")


def outcome(door: Callable[[], object]) -> dict[str, Any]:
    """What a door leads to, and what it takes."""
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before, began = peak(), time.monotonic()
    said: dict[str, Any] = {"error": None}
    try:
        found = door()
        if isinstance(found, ckptmgr.VerifyReport):
            said["problems"] = [list(problem) for problem in found.problems[:20]]
    except CheckpointError as error:
        said |= {"error": type(error).__name__, "leaf": error.leaf, "file": error.file}
        said["text"] = str(error)
    except BaseException as error:  # noqa: BLE001  # whatever else it is, it is the finding
        said |= {"error": "foreign", "text": "".join(traceback.format_exception(error))}
    return {**said, "seconds": time.monotonic() - began, "bytes": peak() - before}


def restore(run: Path) -> object:
    """As a reader beside the trainer."""
    with CheckpointManager(run, read_only=True) as manager:
        return manager.restore(2)


def resume(run: Path) -> object:
    """As the trainer that goes on: from the step before, and over the damaged one."""
    with CheckpointManager(run) as manager:
        step, _ = manager.resume({"t": np.zeros(16, np.int32)}, select="t")
        for later in range(step + 1, 4):
            manager.save(later, {"n": later}).result()
        return manager.restore(3)


def visit(run: Path) -> dict[str, Any]:
    """Every door of a run whose step 2 is hostile, the one that changes it last."""
    ckptmgr.load(run.parent / "honest")  # what is made at the first use is not counted
    step = run / "step-00000002"
    doors: dict[str, Callable[[], object]] = {
        "load": lambda: jax.tree.map(np.asarray, ckptmgr.load(step)),
        "restore": lambda: restore(run),
        "structure": lambda: ckptmgr.load_structure(step),
        "verify": lambda: ckptmgr.verify(step),
        "resume": lambda: resume(run),
    }
    return {name: outcome(door) for name, door in doors.items()}


def main() -> None:
    """Answer for one directory after the other."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            with os.fdopen(writing, "w") as answer:
                answer.write(json.dumps(visit(Path(line.strip()))))
            os._exit(0)  # jax hangs at the exit of a forked child
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        _, status = os.waitpid(pid, 0)
        print(said if not status else json.dumps({"died": os.waitstatus_to_exitcode(status)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
