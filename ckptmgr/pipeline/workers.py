"""A few equal tasks side by side, failing with the first error itself rather than a group of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def run_workers(count: int, worker: Callable[[], Awaitable[None]]) -> None:
    """Run `count` tasks of `worker` to their end; the first that fails ends the others.

    Raises:
      BaseException: what the first one failed with.
    """
    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(worker)
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
