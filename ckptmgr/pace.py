"""The pace: what saves cost the trainer, measured as it is offered step after step.

A save costs its stall, and what the steps take longer while it is in flight than they
take otherwise. What the last save has cost, as a share of the time since it began, is
what `OverheadBelow` looks at: the next is due once the last is paid for. The state is a
frozen value, changed by pure functions of the clock's readings. With several processes
process 0's pace is everybody's, announced one step ahead.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median

import msgspec

from ckptmgr.cadence import Cadence, OverheadBelow, Pace, WhenIdle
from ckptmgr.distributed.ahead import Ahead
from ckptmgr.distributed.coordinator import Coordinator

_LEAST, _USUAL = 5, 64  # how many steps without a save tell how long one takes
_ODD = 3.0  # one that takes so many times the median tells nothing: it was another work's


@dataclass(frozen=True, slots=True)
class Overhead:
    """What is known of the cost of saves; times in seconds, on any clock.

    Attributes:
      step, at: what was offered last, and when.
      usual: what each of the last steps took that no save was in flight beside.
      busy: whether one is, since the last offer.
      stalled: the stalls since the last offer.
      began: when the last save did; None before the first.
      cost: what that one has cost by now.
    """

    step: int | None = None
    at: float = 0.0
    usual: tuple[float, ...] = ()
    busy: bool = False
    stalled: float = 0.0
    began: float | None = None
    cost: float = 0.0

    def share(self, now: float) -> float:
        """The part of the time since the last save began that it has cost; 0 before the first.

        Infinite as long as it is not known how long a step takes.
        """
        if len(self.usual) < _LEAST:
            return math.inf
        if self.began is None:
            return 0.0
        return max(self.cost, 0.0) / max(now - self.began, 1e-9)


def offered(state: Overhead, step: int, now: float, *, busy: bool) -> Overhead:
    """A step is offered, and saves are in flight or not. Pure."""
    if state.step is None:
        return replace(state, step=step, at=now, busy=busy)
    if step <= state.step:
        return state
    steps, spent = step - state.step, now - state.at - state.stalled
    after = replace(state, step=step, at=now, busy=busy, stalled=0.0)
    if not (state.busy or busy):
        return replace(after, usual=(*state.usual, spent / steps)[-_USUAL:])
    if not state.usual:
        return after
    odd = _ODD * median(state.usual)
    usual = fmean(one for one in state.usual if one <= odd)
    return replace(after, cost=state.cost + spent - steps * usual)


def saved(state: Overhead, began: float, now: float) -> Overhead:
    """A save was begun, and stalled the trainer until now. Pure."""
    stall = now - began
    return replace(state, busy=True, stalled=state.stalled + stall, began=began, cost=stall)


class Pacer:
    """Measures the pace of one manager's trainer, and makes it the same in all processes.

    Args:
      when: the rule that asks; what it does not look at is not agreed on.
      coordinator: how the processes agree.
      topic: what the run is called between them.
    """

    def __init__(self, when: Cadence | None, coordinator: Coordinator, topic: str) -> None:
        asks = when is not None and (when.includes(WhenIdle) or when.includes(OverheadBelow))
        self._state = Overhead()
        self._mutex = threading.Lock()
        self._ahead: Ahead | None = None
        if asks and coordinator.count > 1:
            first = msgspec.msgpack.encode(Pace(idle=True, overhead=math.inf))
            self._ahead = Ahead(coordinator, topic, first=first)

    def at(self, step: int, *, busy: bool) -> Pace:
        """The pace where a step is offered, and saves are in flight in this process or not."""
        with self._mutex:
            self._state = offered(self._state, step, time.monotonic(), busy=busy)
        if self._ahead:
            return msgspec.msgpack.decode(self._ahead.at(step), type=Pace)
        return self._measured(busy=busy)

    def decided(self, step: int, *, busy: bool) -> None:
        """Whether saves will be in flight when the next step is offered, as far as is known."""
        if self._ahead:
            self._ahead.announce(step, msgspec.msgpack.encode(self._measured(busy=busy)))

    def _measured(self, *, busy: bool) -> Pace:
        return Pace(idle=not busy, overhead=self._state.share(time.monotonic()))

    @contextlib.contextmanager
    def stall(self) -> Iterator[None]:
        """What a save does in the trainer's thread."""
        began = time.monotonic()
        yield
        with self._mutex:
            self._state = saved(self._state, began, time.monotonic())
