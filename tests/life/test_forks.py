"""A trainer that forks, as data loaders do: before, at any stage of, and after a save."""

from __future__ import annotations

from pathlib import Path

from ckptmgr import CheckpointManager
from tests.life.scripts import script

FORKING = """
import contextlib, os, signal, sys, threading
import numpy as np
import ckptmgr
from ckptmgr import CheckpointManager, ManagerClosed
from tests.crash.faults import Calls

tree = {"w": np.arange(5000.0), "n": 7}

def refused(what):
    try:
        what()
    except ManagerClosed as error:
        assert "belongs to the parent process" in str(error)
        return True
    return False

def fork(manager, future):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs ends by this
        calls = [lambda: manager.save(99, tree), manager.wait, manager.restore, manager.pending,
                 manager.latest_step, lambda: manager.restore_async(0), manager.verify,
                 lambda: manager.maybe_save(99, tree), lambda: manager.annotate(0, metrics={})]
        if future is not None:
            calls += [future.result, future.exception, future.cancel]
        told = [refused(call) for call in calls]
        manager.close()
        os._exit(0 if all(told) else 3)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_fork_at_any_call_of_a_save_changes_nothing(run: Path) -> None:
    """In the child everything says whose manager it is; the parent's save is committed."""
    told = script(
        FORKING
        + """
with CheckpointManager(sys.argv[1], keep=ckptmgr.KeepLast(2)) as manager:
    manager.save(0, tree).result()
    fork(manager, None)
    at, reached = 0, True
    while reached:
        at += 1
        there, go = threading.Event(), threading.Event()
        calls = Calls(sys.argv[1], at, lambda: (there.set(), go.wait()))
        with calls.watched():
            future = manager.save(at, tree)
            future.add_wakeup(lambda _: there.set())
            there.wait()
            reached = calls.count >= at
            fork(manager, None if future.done() else future)
            go.set()
            future.result()
            manager.wait()
    fork(manager, None)
    assert manager.all_steps() == [at - 1, at]
    assert all(manager.verify(step).ok for step in manager.all_steps())
print(at)
""",
        run,
    )
    assert int(told) > 20
    with CheckpointManager(run) as manager:
        assert manager.restore()["n"] == 7


def test_a_future_that_has_ended_is_read_in_a_child_too(run: Path) -> None:
    """And a child that lives on holds no lock of its parent's."""
    script(
        FORKING
        + """
manager = CheckpointManager(sys.argv[1])
future = manager.save(1, tree)
future.result()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    ok = future.result().step == 1 and future.exception() is None and future.done()
    os.close(write)
    os.read(read, 1)  # until the parent has opened the directory anew
    os._exit(0 if ok else 3)
manager.close()
with CheckpointManager(sys.argv[1]) as manager:
    manager.save(2, tree).result()
os.close(write)
assert os.waitpid(pid, 0)[1] == 0
""",
        run,
    )
