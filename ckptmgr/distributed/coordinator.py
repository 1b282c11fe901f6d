"""Rounds: every process reports, process 0 decides, and all return or raise the same.

A report goes into the process's own mailbox under the topic of the round, its answer
under the report's nonce. So nothing is counted: a process that came alone, or gave up,
takes its report back, and the next round finds all mailboxes as they should be.
Errors are reports too, and answers: who fails is heard by all, who is silent is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from ckptmgr.distributed import message
from ckptmgr.distributed.client import Client, JaxClient
from ckptmgr.distributed.memory import MemoryClient, MemoryStore
from ckptmgr.distributed.message import Message
from ckptmgr.errors import CheckpointError, InvalidOption, ProcessesDiffer, ProcessSilent
from ckptmgr.format.step import nonce

SECONDS = 600.0
_SLICE_SECONDS = 0.2  # how long a wait goes without looking whether it is still wanted
_GRACE_SECONDS = 2.0
_PAUSE_SECONDS = 0.002
_MARGIN = 1.1  # process 0 gives up first, so that the others hear from it why


class Coordinator:
    """How the processes of a job agree on what they do together. One process agrees at once.

    Args:
      timeout: seconds that a process waits for the others, before it fails on all.
      client: the store they share; None: that of jax.distributed where there are several.

    Raises:
      InvalidOption: the timeout is not positive, or jax.distributed is not initialised.
    """

    def __init__(self, timeout: float = SECONDS, client: Client | None = None) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidOption(f"timeout is a number of seconds above 0, not {timeout!r}")
        alone = client is None and jax.process_count() == 1
        self._client = MemoryClient(MemoryStore(), 0, 1) if alone else client or JaxClient()
        self._timeout = timeout
        self._answered: dict[str, str] = {}  # by mailbox, the nonce of the report last answered
        self.index = self._client.index
        self.count = self._client.count

    def agree(
        self,
        topic: str,
        report: bytes | CheckpointError,
        decide: Callable[[Sequence[bytes]], bytes],
        *,
        step: int = 0,
        name: str | None = None,
        stopped: Callable[[], CheckpointError | None] = lambda: None,
    ) -> bytes:
        """Report, and return what process 0 decides of all reports. Blocks until then.

        Args:
          topic: what it is about; equal on all processes. One round at a time has it.
          report: what this process has to say, or why it cannot go on.
          decide: called in process 0 alone, with one report for each process. What it
            raises, all raise.
          step: the round is about. Who is behind is told so at once; who is ahead waits.
          name: of a round that is held once: its answer is there for who comes late, so
            process 0 need not wait for all where one has failed.
          stopped: why this process no longer wants to take part, once it does not.

        Raises:
          CheckpointError: a process reported it, or `decide` raised it; `process` says which.
          ProcessesDiffer: they are not at the same step.
          ProcessSilent: not all have reported within the timeout.
        """
        fault = message.fault(report, self.index) if isinstance(report, CheckpointError) else None
        body = report if isinstance(report, bytes) else b""
        mine = Message(name or nonce(), body, step, fault)
        once = name is not None
        round_ = _Round(self._client, f"ckptmgr/{topic}", mine, once, stopped, self._answered)
        if self.index:
            answer = round_.follow(time.monotonic() + self._timeout * _MARGIN)
        else:
            answer = round_.lead(time.monotonic() + self._timeout, decide)
        if answer.fault is None:
            return answer.body
        mine_alone = round_.error is not None or answer.fault.process == self.index
        if isinstance(report, CheckpointError) and mine_alone:
            raise report
        error = round_.error or answer.fault.error()
        error.process = None if error.process == self.index else error.process
        if isinstance(report, CheckpointError):
            raise error from report  # all raise the same, though this one has one of its own
        raise error

    def follow(self, topic: str, say: Callable[[], bytes]) -> bytes:
        """What process 0 says; it does not wait for the others. Blocks them until it has.

        A topic is for one such word at a time.

        Raises:
          ProcessSilent: it has not within the timeout.
        """
        if not self.index:
            said = say()
            for process in range(1, self.count):
                self._client.put(f"ckptmgr/{topic}/{process}", said)
            return said
        key = f"ckptmgr/{topic}/{self.index}"
        found = _wait(self._client, key, time.monotonic() + self._timeout, lambda: None)
        if found is None:
            raise ProcessSilent(
                f"process 0 has not said what to do within {self._timeout} s; every process "
                "makes the same calls in the same order",
                process=0,
            )
        self._client.delete(key)
        return found


def _wait(
    client: Client, key: str, deadline: float, stopped: Callable[[], CheckpointError | None]
) -> bytes | None:
    """A value; None where it is not there by the deadline or no longer wanted."""
    while True:
        left = 0.0 if stopped() else max(deadline - time.monotonic(), 0.0)
        found = client.get(key, min(left, _SLICE_SECONDS))
        if found is not None or not left:
            return found


@dataclass(slots=True)
class _Round:
    """One round, as one process sees it."""

    client: Client
    topic: str
    mine: Message
    once: bool
    stopped: Callable[[], CheckpointError | None]
    answered: dict[str, str]
    error: CheckpointError | None = None  # of this process itself: it heard of nobody else's

    def _answer_key(self, process: int, name: str) -> str:
        return f"{self.topic}/{process}/{name}"

    # Of all but process 0

    def follow(self, deadline: float) -> Message:
        """Report, and wait for the answer. The mailbox is this process's: it empties it itself."""
        here = self.client.index
        mailbox, answer = f"{self.topic}/{here}", self._answer_key(here, self.mine.nonce)
        try:
            self.client.put(mailbox, message.encode(self.mine))
            found = _wait(self.client, answer, deadline, self.stopped)
            why = self.stopped()
            if found is None and why is not None:
                # The others need not wait for it. But where process 0 has decided already it
                # counts on this process, which must know.
                self.client.put(mailbox, message.encode(self._failed(why)))
                found = self.client.get(answer, _GRACE_SECONDS)
            if found is None:
                self.error = why or _silent(0, self.mine.step)
                return self._failed(self.error)
            return message.decode(found)
        finally:
            self.client.delete(mailbox)
            self.client.delete(answer)

    def _failed(self, error: CheckpointError) -> Message:
        fault = message.fault(error, self.client.index or None)
        return Message(self.mine.nonce, step=self.mine.step, fault=fault)

    # Of process 0

    def lead(self, deadline: float, decide: Callable[[Sequence[bytes]], bytes]) -> Message:
        """Gather the reports, decide, and answer every one of them."""
        reports = {0: self.mine}
        missing: dict[int, CheckpointError] = {}
        for process in range(1, self.client.count):
            if self.once and any(report.fault for report in reports.values()):
                break  # the rest will find the answer when they come
            found = self._report(process, deadline)
            if isinstance(found, Message):
                reports[process] = found
            else:
                missing[process] = found
        self._look_again(reports, missing)
        answer = self._decide(reports, missing, decide)
        told = range(1, self.client.count) if self.once else [p for p in reports if p]
        for process in told:
            self._tell(process, self.mine.nonce if self.once else reports[process].nonce, answer)
        return answer

    def _look_again(self, reports: dict[int, Message], missing: dict[int, CheckpointError]) -> None:
        """A report may have been taken back while others were waited for."""
        for process in [process for process in reports if process]:
            data = self.client.get(f"{self.topic}/{process}", 0)
            if data is None:
                del reports[process]
                missing[process] = _silent(process, self.mine.step)
            else:
                reports[process] = message.decode(data)

    def _tell(self, process: int, name: str, answer: Message) -> None:
        self.answered[f"{self.topic}/{process}"] = name
        self.client.put(self._answer_key(process, name), message.encode(answer))

    def _decide(
        self,
        reports: dict[int, Message],
        missing: dict[int, CheckpointError],
        decide: Callable[[Sequence[bytes]], bytes],
    ) -> Message:
        faults = [report.fault for _, report in sorted(reports.items()) if report.fault]
        if faults:
            return Message(self.mine.nonce, fault=faults[0])
        self.error = self.stopped() or (missing[min(missing)] if missing else None)
        if self.error is not None:
            return Message(self.mine.nonce, fault=message.fault(self.error, 0))
        try:
            return Message(self.mine.nonce, decide([reports[p].body for p in sorted(reports)]))
        except CheckpointError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001  # the others must hear of it
            self.error = CheckpointError(f"process 0 failed: {error!r}")
            self.error.__cause__ = error
        return Message(self.mine.nonce, fault=message.fault(self.error, 0))

    def _report(self, process: int, deadline: float) -> Message | CheckpointError:
        """The report of a process for this step, or why there is none."""
        mailbox = f"{self.topic}/{process}"
        behind: int | None = None
        while (data := _wait(self.client, mailbox, deadline, self.stopped)) is not None:
            found = message.decode(data)
            if found.nonce == self.answered.get(mailbox) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)  # its owner has not emptied it yet
                continue
            if found.step > self.mine.step:
                return _differ(process, self.mine.step, found.step)
            if found.step == self.mine.step:
                return found
            behind = found.step
            late = self._failed(_differ(process, self.mine.step, behind))
            self._tell(process, found.nonce, late)
        if behind is not None:
            return _differ(process, self.mine.step, behind)
        return _silent(process, self.mine.step)


def _silent(process: int, step: int) -> ProcessSilent:
    return ProcessSilent(
        f"process {process} has not come along in time: it does something else, or is gone",
        step=step,
        process=process,
    )


def _differ(process: int, ours: int, theirs: int) -> ProcessesDiffer:
    return ProcessesDiffer(
        f"process 0 is at step {ours}, process {process} at step {theirs}; every process makes "
        "the same calls in the same order",
        step=ours,
        process=process,
    )
