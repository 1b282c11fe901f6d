"""When to save."""

from __future__ import annotations

import pytest

from ckptmgr import At, Every, InvalidOption, NotAStep, WhenIdle
from ckptmgr.cadence import Cadence, Offer, Pace


def due(rule: Cadence, steps: range, *, idle: bool = True) -> list[int]:
    """The steps that a rule asks for."""
    return [step for step in steps if rule.due(Offer(step, Pace(idle=idle)))]


def test_every_so_many_steps() -> None:
    """Step 0 included."""
    assert due(Every(steps=2), range(6)) == [0, 2, 4]


def test_at_given_steps() -> None:
    """And no others."""
    assert due(At({1, 3, 5}), range(6)) == [1, 3, 5]


def test_when_idle() -> None:
    """Only while nothing is in flight."""
    assert due(WhenIdle(), range(2)) == [0, 1]
    assert due(WhenIdle(), range(2), idle=False) == []


def test_a_union_is_due_when_one_of_its_rules_is() -> None:
    """However many."""
    assert due(Every(steps=4) | At([5]) | At({7}), range(8)) == [0, 4, 5, 7]


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "2", None])
def test_a_rule_that_makes_no_sense_is_refused(steps: object) -> None:
    """At once, not when it is asked."""
    with pytest.raises(InvalidOption, match="positive integer"):
        Every(steps)  # type: ignore[arg-type]  # wrong on purpose


def test_steps_are_checked_and_rules_compare_as_values() -> None:
    """They are values."""
    with pytest.raises(NotAStep):
        At(["a"])  # type: ignore[list-item]  # wrong on purpose
    assert Every(2) | WhenIdle() == Every(2) | WhenIdle()
    with pytest.raises(TypeError):
        Every(2) | 3  # type: ignore[operator]  # wrong on purpose
