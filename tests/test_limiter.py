"""The in-flight limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import anyio
import pytest

from ckptmgr import ByteLimiter, InvalidOption
from ckptmgr.limiter import parse_bytes


def waiting(limiter: ByteLimiter, count: int) -> None:
    """Return once `count` requests wait: nothing else tells that a thread is blocked."""
    while limiter.statistics().waiting < count:
        threading.Event().wait(0.001)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Run a function beside the test."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), ("5B", 5), ("2KiB", 2048), ("3GiB", 3 << 30)]
)
def test_sizes_may_be_texts(value: object, expected: int) -> None:
    """With binary units."""
    assert parse_bytes(value, "x") == expected


@pytest.mark.parametrize("value", ["2 GB", "2GB", 0, -1, "0B", True, 1.5, "", None, "MiB"])
def test_what_is_no_size_is_refused_with_the_option_named(value: object) -> None:
    """And with an example of what it could be."""
    with pytest.raises(InvalidOption, match=r"in_flight_bytes is .*'256MiB'"):
        parse_bytes(value, "in_flight_bytes")


def test_what_fits_exactly_is_granted_at_once() -> None:
    """Up to the last byte."""
    limiter = ByteLimiter(10)
    with limiter.acquire(4), limiter.acquire(6):
        assert limiter.statistics().used_bytes == 10
    assert limiter.statistics().used_bytes == 0
    assert limiter.statistics().peak_bytes == 10


def test_a_request_above_the_limit_runs_alone_and_moves_nothing() -> None:
    """It waits for the others, the others for it."""
    limiter = ByteLimiter(10)
    small = limiter.acquire(1)
    granted: list[object] = []
    thread = in_thread(lambda: granted.append(limiter.acquire(100)))
    waiting(limiter, 1)
    small.release()
    thread.join()
    late = in_thread(lambda: limiter.acquire(1).release())
    waiting(limiter, 1)
    granted[0].release()  # type: ignore[attr-defined]  # a lease
    late.join()
    assert limiter.statistics().limit_bytes == 10
    assert limiter.statistics().used_bytes == 0


def test_first_come_first_served() -> None:
    """A small request that would fit does not pass a large one that waits."""
    limiter = ByteLimiter(10)
    first = limiter.acquire(6)
    order: list[str] = []

    def take(nbytes: int, name: str) -> None:
        with limiter.acquire(nbytes):
            order.append(name)

    large = in_thread(lambda: take(10, "large"))
    waiting(limiter, 1)
    small = in_thread(lambda: take(1, "small"))
    waiting(limiter, 2)
    first.release()
    large.join()
    small.join()
    assert order == ["large", "small"]
    assert limiter.statistics().used_bytes == 0


def test_a_lease_with_several_holders_is_free_after_the_last() -> None:
    """And not before; a release too many changes nothing."""
    limiter = ByteLimiter(10)
    lease = limiter.acquire(10).share(2)
    lease.release()
    assert limiter.statistics().used_bytes == 10
    lease.release()
    lease.release()
    assert limiter.statistics().used_bytes == 0


def test_borrowed_bytes_are_counted_apart_and_never_wait() -> None:
    """They are the trainer's."""
    limiter = ByteLimiter(10)
    lease = limiter.borrow(1000)
    assert (limiter.statistics().borrowed_bytes, limiter.statistics().used_bytes) == (1000, 0)
    lease.release()
    assert limiter.statistics().borrowed_bytes == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_that_is_cancelled_while_it_waits_takes_nothing(backend: str) -> None:
    """And who stood behind it goes on."""

    async def main() -> None:
        limiter = ByteLimiter(10)
        first = await limiter.acquire_async(10)
        with anyio.move_on_after(0.01) as scope:
            await limiter.acquire_async(5)
        assert scope.cancelled_caught
        first.release()
        (await limiter.acquire_async(10)).release()
        assert limiter.statistics().used_bytes == 0

    anyio.run(main, backend=backend)


def test_a_request_given_up_after_it_was_granted_is_free_again() -> None:
    """Either way nothing is lost."""
    limiter = ByteLimiter(10)
    limiter.give_up(limiter.request(10))
    first = limiter.acquire(10)
    limiter.give_up(limiter.request(10))
    first.release()
    assert limiter.statistics().used_bytes == 0


def test_many_threads_never_exceed_the_limit() -> None:
    """However they mix."""
    limiter = ByteLimiter(100)

    def work(size: int) -> None:
        for _ in range(200):
            with limiter.acquire(size):
                assert limiter.statistics().used_bytes <= 100

    threads = [in_thread(partial(work, size)) for size in (1, 30, 50, 99)]
    for thread in threads:
        thread.join()
    assert limiter.statistics().peak_bytes <= 100
    assert limiter.statistics().used_bytes == 0
