"""The write stage."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import numpy as np
import pytest

from ckptmgr import CheckpointManager, MemoryStorage
from ckptmgr.storage.base import BLOCK, Bytes
from ckptmgr.storage.memory import MemoryAttempt


def niceness() -> int:
    """That of this thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_threads_that_write_give_way_to_those_that_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's own stays what it was."""
    seen: dict[str, int] = {}
    real = MemoryAttempt.put

    def put(self: MemoryAttempt, path: str, parts: Iterable[Bytes]) -> None:
        seen[path] = niceness()
        real(self, path, parts)

    monkeypatch.setattr(MemoryAttempt, "put", put)
    before = niceness()
    with CheckpointManager("run", storage=MemoryStorage()) as manager:
        manager.save(0, {"large": np.ones(300_000), "small": np.ones(3)}).result()
    assert seen["arrays/large/c.0"] == seen["packs/0/c.0"] == max(before, 10)
    assert niceness() == before


@pytest.mark.parametrize("items", [BLOCK // 8 + 1, 3 * BLOCK // 8, 3 * BLOCK // 8 + 5])
@pytest.mark.parametrize("again", [False, True])
def test_a_chunk_may_be_gone_through_again(
    items: int, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """A store that has to begin anew gets the same bytes, and they the same digest."""
    real = MemoryAttempt.put

    def put(self: MemoryAttempt, path: str, parts: Iterable[Bytes]) -> None:
        if again:
            next(iter(parts))
        real(self, path, parts)

    monkeypatch.setattr(MemoryAttempt, "put", put)
    array = np.arange(float(items))
    with CheckpointManager("run", storage=MemoryStorage()) as manager:
        manager.save(0, {"large": array}).result()
        assert manager.verify(0).ok
        assert np.array_equal(manager.restore(0)["large"], array)
