"""A directory that is removed, moved or made anew under a live manager; and a clock that jumps."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ckptmgr import CheckpointError, CheckpointManager, KeepLast, StorageError
from ckptmgr.errors import DirectoryLocked
from tests.crash.faults import Calls
from tests.trees import entries

TREE = {"w": np.arange(5000.0), "n": 1}


@pytest.mark.parametrize("how", ["removed", "moved", "made anew", "another's"])
def test_a_directory_that_is_gone_is_told_and_nobody_elses_is_touched(run: Path, how: str) -> None:
    """Each save says so, also when the name leads to a run of somebody else."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(1, TREE).result()
        if how == "moved":
            run.rename(run.with_name("elsewhere"))
        else:
            shutil.rmtree(run)
        if how == "made anew":
            run.mkdir()
        other = CheckpointManager(run) if how == "another's" else None
        if other:
            other.save(1, TREE).result()
        before = sorted(os.listdir(run)) if run.exists() else None
        for step in (2, 3):
            with pytest.raises(StorageError, match="removed, moved or replaced"):
                manager.save(step, TREE).result()
        with pytest.raises(CheckpointError):
            manager.delete(1)
        assert (sorted(os.listdir(run)) if run.exists() else None) == before
        if other:
            other.save(2, TREE).result()
            assert other.all_steps() == [1, 2]
            other.close()
    with CheckpointManager(run) as manager:
        assert manager.latest_step() == (2 if how == "another's" else None)
        manager.save(4, TREE).result()


def removed(run: Path) -> None:
    """Remove a directory, though somebody may be writing the status into it."""
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)


def test_a_directory_removed_at_any_call_of_a_save_fails_that_save(run: Path) -> None:
    """With an error of ours, while somebody makes it anew too; and the manager can be closed."""
    at, reached = 0, True
    while reached:
        at += 1
        with CheckpointManager(run) as manager:
            calls = Calls(run, at, partial(removed, run))
            with calls.watched():
                failed = manager.save(1, TREE).exception()
                reached = calls.count >= at
            assert failed is None or isinstance(failed, CheckpointError)
            # Who is told of a commit had it: the step had got its name before it went.
            assert failed is not None or not reached or "renameat2" in calls.names[: at - 1]
        shutil.rmtree(run, ignore_errors=True)
    assert at > 20


def test_a_lock_file_that_was_removed_is_made_anew(run: Path) -> None:
    """As by who tidies up old files; unless another manager came first."""
    with CheckpointManager(run) as manager:
        manager.save(1, TREE).result()
        (run / ".lock").unlink()
        manager.save(2, TREE).result()
        with pytest.raises(DirectoryLocked):
            CheckpointManager(run)
        (run / ".lock").unlink()
        with CheckpointManager(run) as other:
            with pytest.raises(DirectoryLocked):
                manager.save(3, TREE).result()
            other.save(3, TREE).result()
        manager.save(4, TREE).result()
        assert entries(run) == [f"step-{step:08d}" for step in (1, 2, 3, 4)]


def test_a_clock_that_jumps_back_changes_no_order(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later word on a step counts, and no commit is before the one before it."""
    with CheckpointManager(run) as manager:
        manager.save(1, TREE).result()
        manager.annotate(1, metrics={"score": 1.0})
        back = time.time() - 1e6
        monkeypatch.setattr(time, "time", lambda: back)
        monkeypatch.setattr(time, "time_ns", lambda: int(back * 1e9))
        for score in (2.0, 3.0, 4.0):
            manager.annotate(1, metrics={"score": score})
        manager.save(2, TREE).result()
        assert manager.info(2).time >= manager.info(1).time
        manager.wait(timeout=60)
    with CheckpointManager(run) as manager:
        assert manager.info(1).metrics == {"score": 4.0}
        manager.save(3, TREE).result()
        assert manager.info(3).time >= manager.info(2).time


def test_a_note_from_the_end_of_time_is_told(run: Path) -> None:
    """None can be later, so none is added that would not count."""
    with CheckpointManager(run) as manager:
        manager.save(1, TREE).result()
        notes = run / "step-00000001" / "notes"
        manager.annotate(1, metrics={"score": 1.0})
        (note,) = notes.iterdir()
        note.rename(notes / f"{'9' * 20}-{'0' * 16}.json")
        with pytest.raises(CheckpointError, match="no note can be later") as caught:
            manager.annotate(1, metrics={"score": 2.0})
        assert caught.value.file == f"{'9' * 20}-{'0' * 16}.json"
