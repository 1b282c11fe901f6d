"""A few equal threads side by side, stopped by cancellation and by the first that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


async def run_threads(count: int, worker: Callable[[], None], stop: Callable[[], object]) -> None:
    """Run `worker` in `count` threads until each has returned.

    `stop` is called, from any thread, when one of them fails or this task is cancelled:
    it must make the workers return soon. What a worker has begun it finishes; nothing
    goes on once this returns.

    Raises:
      BaseException: what the first one failed with.
    """
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            worker()
        except BaseException as error:  # noqa: BLE001  # it is raised below
            failures.append(error)
            stop()

    async def stop_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stop()

    async with anyio.create_task_group() as watch:
        watch.start_soon(stop_when_cancelled)
        async with anyio.create_task_group() as threads:
            room = anyio.CapacityLimiter(count)  # of its own: loads must not starve saves
            for _ in range(count):
                threads.start_soon(partial(anyio.to_thread.run_sync, guarded, limiter=room))
        watch.cancel_scope.cancel()
    if failures:
        raise failures[0]


@asynccontextmanager
async def left_in_thread(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context that blocks at both ends: there it runs in a thread, even under cancellation."""
    value = await anyio.to_thread.run_sync(context.__enter__)
    error: BaseException | None = None
    try:
        yield value
    except BaseException as raised:
        error = raised
        raise
    finally:
        with anyio.CancelScope(shield=True):
            kind = None if error is None else type(error)
            await anyio.to_thread.run_sync(context.__exit__, kind, error, None)
