"""Futures of saves and loads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.errors import StorageError
from ckptmgr.format.step import StepInfo
from ckptmgr.future import TRANSITIONS, Progress, SaveFuture, State

INFO = StepInfo(step=3, time=1.0, nbytes=4, leaves=1, path="/run/step-00000003")


def in_thread(work: Callable[[], None]) -> None:
    """What the service does with callbacks."""
    threading.Thread(target=work).start()


def new() -> SaveFuture:
    """A save that is queued."""
    return SaveFuture(3, in_thread)


def finish(future: SaveFuture) -> None:
    """Take it through its life."""
    assert future.advance(State.WRITING)
    assert future.advance(State.COMMITTING)
    future.resolve(State.COMMITTED, INFO)


def test_it_tells_its_life() -> None:
    """State, progress, result, and a text for people."""
    future = new()
    assert (str(future), future.state, future.done()) == (
        "<SaveFuture step 3 QUEUED>",
        "QUEUED",
        False,
    )
    future.advance(State.WRITING)
    future.progress = Progress(45, 100, 1, 2)
    assert (str(future), future.running()) == ("<SaveFuture step 3 WRITING 45%>", True)
    future.advance(State.COMMITTING)
    future.resolve(State.COMMITTED, INFO)
    assert future.result() is INFO
    assert future.exception() is None
    assert isinstance(future, concurrent.futures.Future)


@given(st.lists(st.sampled_from(State), max_size=6))
def test_no_state_is_reached_but_through_the_table(states: list[State]) -> None:
    """Whatever is tried."""
    future = new()
    for state in states:
        here = future.state
        if state in TRANSITIONS[here]:
            assert future.advance(state)
            assert future.state is state
        elif here is State.CANCELLED:
            assert not future.advance(state)
        else:
            with pytest.raises(AssertionError):
                future.advance(state)


@pytest.mark.parametrize("state", [State.QUEUED, State.WRITING])
def test_cancelled_before_the_commit_it_never_commits(state: State) -> None:
    """The service is told at its next step."""
    future = new()
    if state is not State.QUEUED:
        future.advance(state)
    assert future.cancel()
    assert future.cancel()
    assert not future.advance(State.COMMITTING)
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    assert concurrent.futures.wait([future]).done == {future}


def test_once_the_commit_has_begun_it_cannot_be_cancelled() -> None:
    """So True means that nothing is committed, False that something may be."""
    future = new()
    future.advance(State.WRITING)
    future.advance(State.COMMITTING)
    assert not future.cancel()
    future.resolve(State.COMMITTED, INFO)
    assert not future.cancel()
    assert future.result() is INFO


def test_callbacks_run_in_order_in_another_thread_and_one_that_fails_stops_none() -> None:
    """They may block and call the manager."""
    future, seen, ended = new(), [], threading.Event()
    future.add_done_callback(lambda f: seen.append((f, threading.current_thread())))
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: ended.set())
    finish(future)
    assert ended.wait(10)
    assert seen[0][0] is future
    assert seen[0][1] is not threading.current_thread()
    future.add_done_callback(lambda f: seen.append((f, threading.current_thread())))
    assert seen[1] == (future, threading.current_thread())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_can_be_awaited_under_any_loop(backend: str) -> None:
    """Done before, done meanwhile, failed."""

    async def main() -> None:
        done, later, failed = new(), new(), new()
        finish(done)
        failed.resolve(State.FAILED, StorageError("disk"))
        threading.Timer(0.01, finish, [later]).start()
        assert await done is INFO
        assert await later is INFO
        with pytest.raises(StorageError, match="disk"):
            await failed

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelling_the_task_that_awaits_does_not_cancel_the_save(backend: str) -> None:
    """Only `cancel()` does."""
    future = new()

    async def main() -> None:
        with anyio.move_on_after(0.01) as scope:
            await future
        assert scope.cancelled_caught

    anyio.run(main, backend=backend)
    finish(future)
    assert future.result() is INFO


def test_asyncio_may_wrap_it() -> None:
    """As it may any concurrent future."""

    async def main() -> None:
        future = new()
        threading.Timer(0.01, finish, [future]).start()
        assert await asyncio.wrap_future(future) is INFO

    asyncio.run(main())


def test_a_failure_counts_as_unheard_until_somebody_looks() -> None:
    """By result, exception or await; then no more."""
    future = new()
    assert future.failure_unheard() is None
    future.resolve(State.FAILED, StorageError("disk"))
    assert isinstance(future.failure_unheard(), StorageError)
    assert future.failure_unheard() is None
    heard = new()
    heard.resolve(State.FAILED, StorageError("disk"))
    heard.exception()
    assert heard.failure_unheard() is None


def test_progress_is_a_fraction() -> None:
    """A tree without bytes counts as done."""
    assert Progress(1, 4).fraction == 0.25
    assert Progress().fraction == 1.0
