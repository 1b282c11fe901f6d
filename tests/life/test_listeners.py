"""Whoever listens may fail, hang or be collected: no save, step or lock is lost by it."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from ckptmgr import CheckpointManager, KeepLast, StorageError
from ckptmgr.status import read_status
from ckptmgr.storage.local import LocalStorage
from tests.trees import entries

TREE = {"a": np.ones(3)}


class Failing(logging.Handler):
    """Cannot write, as on a full disk."""

    def emit(self, record: logging.LogRecord) -> None:
        """Fail."""
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_costs_no_save(run: Path) -> None:
    """Not even the line of a commit, after which nothing may fail any more."""
    logger, handler = logging.getLogger("absl"), Failing()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with CheckpointManager(run) as manager:
            for step in (1, 2):
                assert manager.save(step, TREE).result() is not None
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert entries(run) == ["step-00000001", "step-00000002"]


def test_a_thread_that_cannot_be_started_costs_no_save(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be told is told when there is one."""
    told: list[object] = []
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name in ("ckptmgr events", "ckptmgr reporter"):
            raise RuntimeError("can't start new thread")
        start(self)

    with CheckpointManager(run, on_event=lambda event: told.append(event.step)) as manager:
        monkeypatch.setattr(threading.Thread, "start", refused)
        assert manager.save(1, TREE).result() is not None
        monkeypatch.undo()
        assert manager.save(2, TREE).result() is not None
    assert told == [1, 1, 2, 2, None]


def test_a_manager_that_is_collected_in_its_own_thread_finishes_its_saves(run: Path) -> None:
    """Where the garbage collector runs is nobody's choice: here, as durations are measured."""
    done = threading.Event()

    def collect(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith("/ckptmgr/save") and not done.is_set():
            done.set()
            gc.collect()

    manager = CheckpointManager(run, on_event=lambda _: None)
    manager.itself = manager  # type: ignore[attr-defined]  # a cycle, which only the collector finds
    jax.monitoring.register_event_duration_secs_listener(collect)
    gc.disable()
    try:
        future = manager.save(1, TREE)
        del manager
        assert future.result(60) is not None
    finally:
        gc.enable()
        jax.monitoring.unregister_event_duration_listener(collect)
    assert done.is_set()
    assert entries(run) == ["step-00000001"]


def test_a_listener_hears_the_end_of_a_script_that_closes_nothing(run: Path) -> None:
    """The save that waited, and that the manager has ended."""
    script = textwrap.dedent("""
        import sys
        import numpy as np
        import ckptmgr
        manager = ckptmgr.CheckpointManager(
            sys.argv[1], on_event=lambda event: print(type(event).__name__, flush=True)
        )
        manager.save(1, {"a": np.ones(2_000_000)})
    """)
    told = subprocess.run(
        [sys.executable, "-c", script, str(run)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["SaveStarted", "SaveCommitted", "Closed"]


def test_a_status_that_hangs_keeps_no_lock(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it told of a run that another manager has by then."""
    begun, go = threading.Event(), threading.Event()
    tell = LocalStorage.tell_status

    def hang(self: LocalStorage, data: bytes) -> None:
        begun.set()
        assert go.wait(60)
        tell(self, data)

    monkeypatch.setattr(LocalStorage, "tell_status", hang)
    manager = CheckpointManager(run)
    manager.save(1, TREE).result()
    assert begun.wait(60)
    manager.close()
    monkeypatch.undo()
    with CheckpointManager(run) as other:
        other.save(2, TREE).result()
        go.set()
    status = read_status(LocalStorage(str(run)))
    assert status is not None
    assert status.saved is not None
    assert status.saved.step == 2


def test_a_status_follows_no_link(run: Path, tmp_path: Path) -> None:
    """Soft or hard, nor does it wait for a pipe."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run.mkdir()
    storage = LocalStorage(str(run))
    spare = run / ".status.json.new"
    with storage.lock():
        for make in (spare.symlink_to, spare.hardlink_to, lambda _: os.mkfifo(spare)):
            make(precious)
            with pytest.raises(StorageError):
                storage.tell_status(b"{}")
            spare.unlink()
    assert precious.read_text() == "mine"


def test_what_was_said_of_a_run_is_not_forgotten(run: Path) -> None:
    """By a manager that has nothing to say of it."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        for step in (1, 2):
            manager.save(step, TREE).result()
    with CheckpointManager(run) as manager:
        manager.save(3, TREE).result()
    status = read_status(LocalStorage(str(run)))
    assert status is not None
    assert status.deleted == {1: "not kept by KeepLast(n=1)"}
    assert status.saved is not None
    assert status.saved.step == 3
