"""What happens to steps is told, in order, in a thread that may call the manager."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import ckptmgr
from ckptmgr import CheckpointManager, Event, InvalidOption, KeepLast, events
from tests.test_manager import Gate, gate

__all__ = ["gate"]  # a fixture

TREE = {"w": np.arange(400_000, dtype=np.float64)}


def test_each_step_is_told_of_in_order(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved, failed, deleted, restored, damaged, set aside, abandoned."""
    told: list[Event] = []
    with CheckpointManager(run, keep=KeepLast(2), on_event=told.append) as manager:
        for step in (1, 2, 3):
            manager.save(step, TREE).result()
        manager.wait()
        monkeypatch.setattr(type(manager._storage), "free_bytes", lambda _: 0)
        with pytest.raises(ckptmgr.NoSpace):
            manager.save(4, TREE).result()
        monkeypatch.undo()
        next((run / "step-00000003" / "arrays").rglob("c.*")).write_bytes(b"")
        assert manager.resume(TREE)[0] == 2
        manager.save(3, TREE).result()
        manager.wait()
        manager.rollback(2)
    kinds = [(type(event).__name__, event.step) for event in told]
    assert kinds == [
        ("SaveStarted", 1),
        ("SaveCommitted", 1),
        ("SaveStarted", 2),
        ("SaveCommitted", 2),
        ("SaveStarted", 3),
        ("SaveCommitted", 3),
        ("StepDeleted", 1),
        ("SaveFailed", 4),
        ("RestoreStarted", 3),
        ("RestoreFailed", 3),
        ("StepDamaged", 3),
        ("RestoreStarted", 2),
        ("RestoreFinished", 2),
        ("FellBack", 2),
        ("StepMoved", 3),
        ("SaveStarted", 3),
        ("SaveCommitted", 3),
        ("StepMoved", 3),
        ("Closed", None),
    ]
    damaged, fell_back, moved = told[10], told[13], told[14]
    assert isinstance(damaged, events.StepDamaged)
    assert "bytes long" in str(damaged.error)
    assert isinstance(fell_back, events.FellBack)
    assert fell_back.passed == [3]
    assert isinstance(moved, events.StepMoved)
    assert (moved.why, moved.path[:23]) == ("damaged", ".damaged-step-00000003-")


def test_events_tell_durations_and_bytes(run: Path) -> None:
    """A save kept the trainer for less than it took, which the bytes were counted in."""
    told: list[Event] = []
    with CheckpointManager(run, keep=KeepLast(1), on_event=told.append) as manager:
        manager.save(1, TREE).result()
        manager.save(2, TREE).result()
        manager.wait()
        manager.restore(2)
    started, committed, *_ = told
    assert isinstance(started, events.SaveStarted)
    assert (started.nbytes, started.leaves) == (TREE["w"].nbytes, 1)
    assert isinstance(committed, events.SaveCommitted)
    assert (committed.nbytes, committed.leaves) == (TREE["w"].nbytes, 1)
    assert 0 < committed.stall < committed.seconds
    (deleted,) = (event for event in told if isinstance(event, events.StepDeleted))
    assert (deleted.step, deleted.why) == (1, "not kept by KeepLast(n=1)")
    assert deleted.seconds > 0
    (restored,) = (event for event in told if isinstance(event, events.RestoreFinished))
    assert (restored.step, restored.nbytes, restored.leaves) == (2, TREE["w"].nbytes, 1)
    assert restored.seconds > 0


def test_saves_that_are_not_made_are_told_of(run: Path, gate: Gate) -> None:
    """Skipped as the manager is busy, and cancelled."""
    told: list[Event] = []
    with CheckpointManager(
        run, on_busy="skip", max_pending=1, storage=gate, on_event=told.append
    ) as manager:
        first = manager.save(1, TREE)
        second = manager.save(2, TREE)
        assert manager.save(3, TREE).result() is None
        assert second.cancel()
        gate.open.set()
        first.result()
    dropped = [(e.step, e.why) for e in told if isinstance(e, events.SaveDropped)]
    assert dropped == [(3, "skipped"), (2, "cancelled")]


def test_durations_are_monitored(run: Path) -> None:
    """By jax's own means, under /ckptmgr."""
    heard: dict[str, float] = {}

    def hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
        heard[event] = duration_secs

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        with CheckpointManager(run, keep=KeepLast(1)) as manager:
            for step in (1, 2):
                manager.save(step, TREE).result()
            manager.wait()
            manager.restore()
        ckptmgr.save(run / "alone", TREE)
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    assert {name for name in heard if name.startswith("/ckptmgr/")} == {
        "/ckptmgr/save/stall_secs",
        "/ckptmgr/save/durable_secs",
        "/ckptmgr/restore/secs",
        "/ckptmgr/delete/secs",
    }


def test_an_observer_that_fails_harms_nothing(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Functions that the trainer has given to jax.monitoring are called in our threads."""

    def hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
        raise ZeroDivisionError

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        with CheckpointManager(run) as manager:
            assert manager.save(1, TREE).result() is not None
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    assert "an observer failed" in caplog.text


def test_a_save_is_one_line_of_the_log(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO; at WARNING a run in which all goes well says nothing."""
    with caplog.at_level(logging.INFO, "absl"), CheckpointManager(run) as manager:
        manager.save(1, TREE).result()
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    assert re.fullmatch(
        r"step 1: committed 3\.2 MB in 1 leaf after [\d.]+ m?s, [\d.]+ ms of them in save\(\)",
        line,
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "absl"), CheckpointManager(run) as manager:
        manager.save(2, TREE).result()
    assert not caplog.records


def test_a_listener_may_call_the_manager_and_fail(run: Path) -> None:
    """Nothing waits for it, and what it raises is logged."""
    seen: list[object] = []
    heard = threading.Event()

    def listen(event: Event) -> None:
        if not isinstance(event, events.SaveCommitted):
            return
        seen.append(manager.latest_step())
        heard.set()
        raise ZeroDivisionError

    with CheckpointManager(run, on_event=listen) as manager:
        manager.save(1, TREE).result()
        heard.wait(60)
        manager.save(2, TREE).result()
    assert seen == [1, 2]
    with pytest.raises(InvalidOption, match="on_event"):
        CheckpointManager(run, on_event=3)  # type: ignore[arg-type]  # that is the point
