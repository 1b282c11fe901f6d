"""What happens to steps is told, in order, in a thread that may call the manager."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import ckptmgr
from ckptmgr import CheckpointManager, Event, InvalidOption, KeepLast

TREE = {"w": np.arange(400_000, dtype=np.float64)}


def test_each_step_is_told_of_in_order(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed, failed, deleted, damaged, set aside, abandoned."""
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
    kinds = [(event.kind, event.step) for event in told]
    assert kinds == [
        ("committed", 1),
        ("committed", 2),
        ("committed", 3),
        ("deleted", 1),
        ("failed", 4),
        ("damaged", 3),
        ("set aside", 3),
        ("committed", 3),
        ("abandoned", 3),
    ]
    assert "bytes long" in told[5].message
    assert told[6].message.startswith(".damaged-step-00000003-")


def test_a_listener_may_call_the_manager_and_fail(run: Path) -> None:
    """Nothing waits for it, and what it raises is logged."""
    seen: list[object] = []
    heard = threading.Event()

    def listen(event: Event) -> None:
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
