"""Rounds: all return or raise the same, whoever fails, is late, or does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from ckptmgr import (
    CheckpointError,
    Coordinator,
    InvalidOption,
    NoSpace,
    ProcessesDiffer,
    ProcessSilent,
)
from ckptmgr.distributed.ahead import Ahead
from ckptmgr.distributed.memory import MemoryClient, MemoryStore
from ckptmgr.distributed.message import Message, decode, encode, fault


class Job:
    """Coordinators of a few processes, each of which runs in a thread."""

    def __init__(self, count: int = 3, timeout: float = 20) -> None:
        self.store = MemoryStore()
        clients = [MemoryClient(self.store, index, count) for index in range(count)]
        self.coordinators = [Coordinator(timeout, client) for client in clients]

    def start(self, index: int, call: Callable[[Coordinator], Any]) -> Future[Any]:
        """What a process returns, once it has."""
        found: Future[Any] = Future()

        def run() -> None:
            try:
                found.set_result(call(self.coordinators[index]))
            except BaseException as error:  # noqa: BLE001  # it is looked at
                found.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return found

    def all(self, call: Callable[[Coordinator], Any]) -> list[Any]:
        """What each returns or raises."""
        started = [self.start(index, call) for index in range(len(self.coordinators))]
        return [future.exception(30) or future.result() for future in started]


def joined(said: Sequence[bytes]) -> bytes:
    """A decision that shows all reports."""
    return b",".join(said)


def me(coordinator: Coordinator) -> bytes:
    """A report."""
    return str(coordinator.index).encode()


def test_all_get_what_process_0_decides() -> None:
    """Of the reports in the order of the processes."""
    job = Job()
    assert job.all(lambda c: c.agree("t", me(c), joined)) == [b"0,1,2"] * 3


def test_one_process_decides_alone() -> None:
    """Without a message."""
    assert Coordinator().agree("t", b"x", joined) == b"x"
    with pytest.raises(NoSpace):
        Coordinator().agree("t", NoSpace("full"), joined)


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("name", [None, "once"])
def test_the_error_of_one_is_raised_by_all(who: int, name: str | None) -> None:
    """With its class and what it is about; the others are told which process it was."""
    job = Job()

    def call(c: Coordinator) -> bytes:
        report = NoSpace("full", step=3, leaf="a", file="f") if c.index == who else me(c)
        return c.agree("t", report, joined, name=name)

    errors = job.all(call)
    assert [type(error) for error in errors] == [NoSpace] * 3
    assert [(e.step, e.leaf, e.file) for e in errors] == [(3, "a", "f")] * 3
    assert [error.process for error in errors] == [None if i == who else who for i in range(3)]


def test_of_two_errors_all_raise_the_same() -> None:
    """That of the lower process, for which the other gives up its own."""
    job = Job()
    errors = job.all(lambda c: c.agree("t", NoSpace(str(c.index)) if c.index else b"", joined))
    assert [error.message for error in errors] == ["1", "1", "1"]
    assert errors[2].__cause__.message == "2"


def test_what_process_0_cannot_decide_is_raised_by_all() -> None:
    """An error of ours, or a bug."""

    def refuse(_: Sequence[bytes]) -> bytes:
        raise NoSpace("at the commit")

    def stumble(_: Sequence[bytes]) -> bytes:
        raise ZeroDivisionError

    job = Job()
    assert [type(e) for e in job.all(lambda c: c.agree("t", b"", refuse))] == [NoSpace] * 3
    errors = job.all(lambda c: c.agree("t", b"", stumble))
    assert [type(error) for error in errors] == [CheckpointError] * 3
    assert isinstance(errors[0].__cause__, ZeroDivisionError)


def test_a_process_that_does_not_come_is_named_by_all() -> None:
    """Within the timeout."""
    job = Job(timeout=0.3)
    started = [job.start(i, lambda c: c.agree("t", b"", joined, step=5)) for i in (0, 1)]
    errors = [future.exception(30) for future in started]
    assert [type(error) for error in errors] == [ProcessSilent] * 2
    assert [getattr(error, "process", None) for error in errors] == [2, 2]
    assert "process 2" in str(errors[1])


def test_process_0_that_does_not_come_is_named() -> None:
    """And what was reported is taken back: the next round is not misled."""
    job = Job(timeout=0.3)
    error = job.start(1, lambda c: c.agree("t", b"stale", joined)).exception(30)
    assert isinstance(error, ProcessSilent)
    assert error.process == 0
    assert job.store.values == {}
    assert job.all(lambda c: c.agree("t", me(c), joined)) == [b"0,1,2"] * 3


def test_who_is_at_another_step_hears_of_it_and_catches_up() -> None:
    """The one behind at once; who is ahead waits for the others to come."""
    job = Job(count=2)

    def steps(c: Coordinator) -> list[object]:
        found: list[object] = []
        for step in (1, 2) if c.index else (2,):
            try:
                found.append(c.agree("t", b"", joined, step=step))
            except ProcessesDiffer as error:
                found.append((error.step, str(error)[:40]))
        return found

    assert job.all(steps) == [[b","], [(2, "process 0 is at step 2, process 1 at ste"), b","]]


def test_process_0_behind_fails_and_leaves_the_others_their_reports() -> None:
    """At its next step they meet."""
    job = Job(count=2)

    def steps(c: Coordinator) -> list[object]:
        found: list[object] = []
        for step in (2,) if c.index else (1, 2):
            try:
                found.append(c.agree("t", b"", joined, step=step))
            except ProcessesDiffer:
                found.append("differ")
        return found

    assert job.all(steps) == [["differ", b","], [b","]]


def test_who_comes_late_to_a_round_that_failed_finds_the_answer() -> None:
    """Where it is held once; process 0 did not wait for it."""
    job = Job(count=2)
    failed = job.start(0, lambda c: c.agree("t", NoSpace("full"), joined, name="n"))
    assert isinstance(failed.exception(30), NoSpace)
    late = job.start(1, lambda c: c.agree("t", b"", joined, name="n")).exception(30)
    assert isinstance(late, NoSpace)
    assert late.process == 0


@pytest.mark.parametrize("who", [0, 1])
def test_who_wants_no_more_tells_the_others(who: int) -> None:
    """They need not wait for the timeout."""
    job = Job(count=2)

    def call(c: Coordinator) -> bytes:
        why = CheckpointError("it was cancelled") if c.index == who else None
        return c.agree("t", b"", joined, stopped=lambda: why)

    if who == 0:
        other = job.start(1, call)
        while "ckptmgr/t/1" not in job.store.values:
            pass
        errors = [job.start(0, call).exception(30), other.exception(30)]
    else:
        errors = job.all(call)
    assert ["cancelled" in str(error) for error in errors] == [True, True]


def test_nothing_is_left_in_the_store() -> None:
    """However many rounds there were."""
    job = Job()
    for step in range(5):
        job.all(partial(Coordinator.agree, topic="t", report=b"", decide=joined, step=step))
        once = partial(Coordinator.agree, topic=f"o/{step}", report=b"", decide=joined, name="n")
        job.all(once)
        job.all(lambda c: c.follow("f", lambda: b"word"))
    assert job.store.values == {}


def test_the_others_follow_process_0() -> None:
    """It does not wait for them."""
    job = Job()
    said = job.start(0, lambda c: c.follow("f", lambda: b"go")).result(30)
    assert said == b"go"
    others = [job.start(i, lambda c: c.follow("f", lambda: b"never asked")) for i in (1, 2)]
    assert [other.result(30) for other in others] == [b"go", b"go"]


def test_who_waits_in_vain_for_process_0_is_told() -> None:
    """Within the timeout."""
    error = Job(timeout=0.1).start(1, lambda c: c.follow("f", lambda: b"")).exception(30)
    assert isinstance(error, ProcessSilent)
    assert error.process == 0


def test_announcements_are_the_same_for_all_and_for_every_step() -> None:
    """Process 0's, made one offer before; a step that was offered before keeps its answer."""
    job = Job()
    pattern = [b"a", b"b", b"b", b"c", b"", b"d"]

    def loop(c: Coordinator) -> list[bytes]:
        ahead, found = Ahead(c, "t", first=b"first"), []
        for step, following in enumerate(pattern):
            found += [ahead.at(step), ahead.at(step)]
            ahead.announce(step, following if c.index == 0 else b"mine")
            ahead.announce(step, b"late")
            found.append(ahead.at(step))
        return found

    answers = job.all(loop)
    assert answers[0] == [here for here in [b"first", *pattern[:-1]] for _ in range(3)]
    assert answers[1] == answers[2] == answers[0]


def test_announcing_ahead_tells_who_asks_that_process_0_is_gone() -> None:
    """At the next step."""
    ahead = Ahead(Job(timeout=0.1).coordinators[1], "t", first=b"first")
    assert ahead.at(1) == b"first"
    ahead.announce(1, b"mine")
    with pytest.raises(ProcessSilent):
        ahead.at(2)


def test_errors_cross_with_what_they_are_about() -> None:
    """One that is not of ours comes as the base class."""
    error = NoSpace("full", step=1, leaf="a", file="b", process=None)
    sent = decode(encode(Message("n", step=4, fault=fault(error, 2)))).fault
    assert sent is not None
    back = sent.error()
    assert (type(back), back.message, back.step, back.leaf, back.file, back.process) == (
        *(NoSpace, "full", 1, "a", "b", 2),
    )

    class Theirs(CheckpointError):
        pass

    assert type(fault(Theirs("x"), 0).error()) is CheckpointError


@pytest.mark.parametrize("timeout", [0, -1, "a", True, None, float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    """Above 0."""
    with pytest.raises(InvalidOption, match="timeout"):
        Coordinator(timeout)
