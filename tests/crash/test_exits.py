"""The interpreter's exit at every call of a save or a load: what was queued is there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ckptmgr import CheckpointManager
from tests.crash.faults import Calls, same, tree
from tests.life.scripts import script

ENDING = """
import atexit, os, sys, threading
import ckptmgr
from tests.crash.faults import Calls, tree

run, operation, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
there, leaving = threading.Event(), threading.Event()
manager = ckptmgr.CheckpointManager(run)
atexit.register(leaving.set)  # runs before what was registered earlier
calls = Calls(run, at, lambda: (there.set(), leaving.wait()))
watched = calls.watched()
watched.__enter__()
if operation == "save":
    manager.save(2, tree(2))
    future = manager.save(3, tree(3))
else:
    future = manager.restore_async()
future.add_wakeup(lambda _: there.set())
there.wait()
"""


@pytest.mark.parametrize("operation", ["save", "load"])
def test_the_interpreter_ends_at_any_call(run: Path, operation: str, every: int) -> None:
    """With exit code 0 and without a word; saves that waited are committed."""
    calls = Calls(run)
    with CheckpointManager(run) as manager:
        manager.save(1, tree(1)).result()
        with calls.watched():
            if operation == "save":
                manager.save(2, tree(2)).result()
            else:
                manager.restore()
    first = random.Random(operation).randrange(every) + 1
    for at in range(first, calls.count + 1, every):
        with CheckpointManager(run) as manager:
            for step in manager.all_steps()[1:]:
                manager.delete(step)
        script(ENDING, run, operation, at)
        with CheckpointManager(run) as manager:
            steps = [1, 2, 3] if operation == "save" else [1]
            assert manager.all_steps() == steps
            assert all(same(manager.restore(step), step) for step in steps)
    print(f"{operation}: each {every}. of {calls.count} calls")
