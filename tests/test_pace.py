"""What saves cost, and how often they are due by that: on a clock of its own, then for real."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import numpy as np
import pytest

from ckptmgr import CheckpointManager, InvalidOption, OverheadBelow
from ckptmgr.cadence import Offer, Pace
from ckptmgr.pace import Overhead, offered, saved


def trained(
    share: float,
    steps: int,
    *,
    stall: float,
    slow: float,
    beside: int,
    seed: int = 0,
    skip: int = 1,
) -> tuple[float, int]:
    """Train by the rule, where a save slows the next `beside` steps; what it cost, and how often.

    A step takes 0.1 s, give or take a tenth; each `skip`-th is offered.
    """
    chance, rule, state = random.Random(seed), OverheadBelow(share), Overhead()
    now = pure = 0.0
    flying = saves = 0
    for step in range(1, steps):
        took = 0.1 * chance.uniform(0.9, 1.1)
        pure += took
        now += took + (slow if flying else 0.0)
        flying = max(0, flying - 1)
        if step % skip:
            continue
        state = offered(state, step, now, busy=flying > 0)
        pace = Pace(idle=not flying, overhead=state.share(now))
        if rule.due(Offer(step, pace)):
            state = saved(state, now, now + stall)
            now, flying, saves = now + stall, beside, saves + 1
    return now / pure - 1, saves


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("skip", [1, 5])
@pytest.mark.parametrize(
    ("stall", "slow", "beside"), [(0.05, 0.0, 2), (0.01, 0.05, 20), (0.0, 0.1, 3)]
)
def test_saves_cost_the_share_that_was_asked_for(
    share: float, skip: int, stall: float, slow: float, beside: int
) -> None:
    """Whether it is the stall or the slowdown; over many saves, with steps that vary."""
    cost, saves = trained(share, 60_000, stall=stall, slow=slow, beside=beside, skip=skip)
    assert saves > 20
    assert 0.5 * share < cost < 1.5 * share


def test_a_save_that_costs_more_than_it_may_is_not_due_again_soon() -> None:
    """It is paid for first."""
    state = Overhead()
    for step in range(10):
        state = offered(state, step, float(step), busy=False)
    assert state.share(9.0) == 0.0
    state = saved(state, 9.0, 11.0)
    assert state.share(11.0) == 1.0
    state = offered(state, 10, 15.0, busy=True)  # 4 s where one is usual
    assert state.cost == pytest.approx(5.0)
    state = offered(state, 11, 16.0, busy=False)  # its second half was beside the save
    assert state.share(509.0) == pytest.approx(0.01)
    assert OverheadBelow(0.02).due(Offer(11, Pace(idle=True, overhead=state.share(509.0))))
    assert not OverheadBelow(0.02).due(Offer(11, Pace(idle=False, overhead=state.share(509.0))))
    assert not OverheadBelow(0.009).due(Offer(11, Pace(idle=True, overhead=state.share(509.0))))


def test_what_is_not_known_yet_is_not_due() -> None:
    """How long a step takes must be seen first, and an odd one tells nothing."""
    state = offered(Overhead(), 0, 0.0, busy=False)
    for step in range(1, 6):
        assert state.share(step) == math.inf
        state = offered(state, step, float(step), busy=False)
    assert state.share(5.0) == 0.0
    state = offered(state, 6, 100.0, busy=False)  # it evaluated
    assert offered(state, 6, 200.0, busy=False) == state  # offered again
    state = saved(state, 100.0, 100.0)
    assert offered(state, 7, 101.0, busy=False).cost == pytest.approx(0.0)


def test_a_manager_saves_by_its_overhead(run: Path) -> None:
    """Saves of a real loop are due again and again, never while one is in flight."""
    with CheckpointManager(run, when=OverheadBelow(0.5)) as manager:
        tree, step = {"a": np.ones(1000)}, 0
        while len(manager.all_steps()) < 3:
            step += 1
            began = time.perf_counter()
            while time.perf_counter() - began < 1e-3:
                np.ones(10_000).sum()
            pending = manager.pending()
            future = manager.maybe_save(step, tree)
            assert future is None or not pending
    assert step > 5


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1, True, "1%", math.nan])
def test_a_share_that_makes_no_sense_is_refused(share: object) -> None:
    """At once."""
    with pytest.raises(InvalidOption, match="above 0 and below 1"):
        OverheadBelow(share)  # type: ignore[arg-type]  # wrong on purpose
