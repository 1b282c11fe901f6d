"""Ctrl-C at any line of ours that the trainer's thread runs: nothing hangs, nothing is lost."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ckptmgr
from ckptmgr import CheckpointManager
from tests.crash.faults import same, tree

OURS = str(Path(ckptmgr.__file__).parent)


MOMENT = 2e-5  # seconds


class Interrupter:
    """Counts the lines of ours that this thread runs, and interrupts it soon after one of them.

    By a signal, as Ctrl-C does: to raise in the trace function would come between what the
    interpreter keeps together.
    """

    def __init__(self, at: int = 0) -> None:
        self.count = 0
        self.where = ""
        self._at = at

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.count += 1
            if self.count == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.setitimer(signal.ITIMER_REAL, MOMENT)
                return None
        return self._trace

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the context lasts."""
        former = signal.signal(signal.SIGALRM, signal.default_int_handler)
        sys.settrace(self._trace)
        try:
            yield
            if self.where:
                time.sleep(1)  # the operation was quicker
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGALRM, former)


def save(manager: CheckpointManager) -> None:
    """Two saves, of which the second may have to wait."""
    manager.save(1, tree(1))
    manager.save(2, tree(2)).result()


def overwrite(manager: CheckpointManager) -> None:
    """A step anew."""
    manager.save(0, tree(0), overwrite=True).result()


def wait(manager: CheckpointManager) -> None:
    """For everything."""
    manager.save(1, tree(1))
    manager.wait()


def restore(manager: CheckpointManager) -> None:
    """By the manager, and with a part."""
    manager.restore(0)
    manager.resume({"n": 5}, select="n")


def note(manager: CheckpointManager) -> None:
    """What annotates, pins, holds, deletes, goes back."""
    manager.annotate(0, metrics={"a": 1.0})
    manager.pin(0)
    manager.unpin(0)
    with manager.hold(0):
        manager.verify(0)
    manager.rollback(0)


def close(manager: CheckpointManager) -> None:
    """With a save that is still being written."""
    manager.save(1, tree(1))
    manager.close()


def again(manager: CheckpointManager) -> None:
    """The run once more, by a reader, and a checkpoint without a run."""
    run = manager._storage.root
    with CheckpointManager(run, read_only=True) as reader:
        reader.restore()
    ckptmgr.save(f"{run}-beside", tree(1), overwrite=True)
    ckptmgr.load(f"{run}-beside")


def opened(manager: CheckpointManager) -> None:
    """By the next one."""
    manager.close()
    with CheckpointManager(manager._storage.root) as following:
        following.save(1, tree(1))


OPERATIONS = (save, overwrite, wait, restore, note, close, again, opened)


def interrupted(run: Path, operation: Callable[[CheckpointManager], None], at: int) -> Interrupter:
    """Run an operation that Ctrl-C ends at its n-th line, and see that all is well then."""
    interrupter = Interrupter(at)
    with CheckpointManager(run) as manager:
        manager.save(0, tree(0)).result()
    manager = CheckpointManager(run)
    try:
        with interrupter.watching():
            operation(manager)
    except KeyboardInterrupt:
        pass
    else:
        assert not at
    manager.close(timeout=8)
    gc.collect()  # Ctrl-C at the first line of __exit__: only its end as garbage closes it
    for thread in threading.enumerate():
        if thread.name == "ckptmgr" and thread.is_alive():
            thread.join(8)  # of a manager that the operation opened, and was to close
            assert not thread.is_alive(), interrupter.where
    goes_on(run, interrupter.where)
    return interrupter


def goes_on(run: Path, where: str) -> None:
    """Every step there is is whole, and a new manager works."""
    with CheckpointManager(run) as manager:
        assert manager.latest_step() is not None, where
        for step in manager.all_steps():
            assert same(manager.restore(step), step), where
        manager.save(9, tree(9)).result()
        assert manager.statistics().used_bytes == 0, where


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.__name__))
def test_ctrl_c_at_any_line_leaves_whole_steps_and_a_free_directory(
    tmp_path: Path, operation: Callable[[CheckpointManager], None], every: int
) -> None:
    """The manager closes within its time, and the next one opens."""
    if every != 1:
        pytest.skip(
            "part of `make test-faults`: it takes minutes, and signals land where they will"
        )
    before = set(threading.enumerate())
    total = interrupted(tmp_path / "whole", operation, 0).count
    assert total > 50
    for at in range(1, total, 1 + total // 60):
        found = interrupted(tmp_path / str(at), operation, at)
        assert found.where
    print(f"{operation.__name__}: {total} lines")
    for thread in set(threading.enumerate()) - before:
        thread.join(8)
        assert not thread.is_alive(), thread
