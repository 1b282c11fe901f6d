"""Threads side by side."""

from __future__ import annotations

import threading

import anyio
import pytest

from ckptmgr.pipeline.workers import left_in_thread, run_threads
from ckptmgr.storage.memory import MemoryStorage


def test_the_first_failure_stops_the_others_and_is_raised_itself() -> None:
    """Not a group of errors; and only after all have returned."""
    stopped = threading.Event()
    turns = iter(["fails", "waits", "waits"])
    returned = []

    def worker() -> None:
        if next(turns) == "fails":
            raise ZeroDivisionError
        stopped.wait()
        returned.append(1)

    with pytest.raises(ZeroDivisionError):
        anyio.run(run_threads, 3, worker, stopped.set)
    assert len(returned) == 2


def test_cancellation_stops_the_threads_and_waits_for_them() -> None:
    """What has begun is finished."""
    stopped, returned = threading.Event(), []

    def worker() -> None:
        stopped.wait()
        returned.append(1)

    async def main() -> None:
        with anyio.move_on_after(0.01) as scope:
            await run_threads(2, worker, stopped.set)
        assert scope.cancelled_caught
        assert len(returned) == 2

    anyio.run(main)


def test_a_context_is_left_even_under_cancellation() -> None:
    """In a thread, as its exit may block."""
    storage = MemoryStorage()
    lock = storage.lock()

    async def main() -> None:
        with anyio.move_on_after(0.01):
            async with left_in_thread(lock):
                await anyio.sleep_forever()
        with storage.lock():
            pass

    anyio.run(main)
