"""What to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr import (
    InvalidOption,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepSteps,
    KeepWithin,
    Retention,
    StepInfo,
)
from ckptmgr.retention import decide

HOUR = 3600.0


def steps(
    numbers: range | list[int], hours: Mapping[int, float] | None = None, **metrics: list[float]
) -> dict[int, StepInfo]:
    """Committed steps; by default one an hour."""
    return {
        step: StepInfo(
            step=step,
            time=HOUR * (hours[step] if hours else place),
            nbytes=0,
            leaves=0,
            path="",
            metrics={name: values[place] for name, values in metrics.items()},
        )
        for place, step in enumerate(numbers)
    }


def kept(rule: Retention, there: dict[int, StepInfo]) -> list[int]:
    """What a rule, and the newest's protection, leave."""
    return list(decide(rule, there, {}).kept)


def test_the_last_ones() -> None:
    """The two highest."""
    assert kept(KeepLast(2), steps(range(5))) == [3, 4]


def test_a_union_keeps_what_one_of_its_rules_keeps() -> None:
    """The last two and each fourth."""
    assert kept(KeepLast(2) | KeepEvery(steps=4), steps(range(0, 11, 2))) == [0, 4, 8, 10]


def test_step_order_counts_not_the_order_of_saves() -> None:
    """10, 20, 5 leave 10 and 20."""
    assert kept(KeepLast(2), steps([10, 20, 5])) == [10, 20]


def test_nan_is_never_the_best_and_the_newest_stays_anyhow() -> None:
    """Whatever its loss."""
    losses = [3, math.nan, 2, math.nan, 1, 5]
    assert kept(KeepBest("loss", n=2, mode="min"), steps(range(6), loss=losses)) == [2, 4, 5]


def test_of_equal_metrics_the_newer_stays() -> None:
    """Ties, by mode "max" too."""
    there = steps(range(4), score=[1, 1, 1, 0])
    assert kept(KeepBest("score", mode="max"), there) == [2, 3]


def test_a_missing_metric_never_counts() -> None:
    """Only the newest is left."""
    assert kept(KeepBest("other"), steps(range(3))) == [2]


def test_one_in_so_many_hours_by_commit_time() -> None:
    """Each at least that long after the last one that this rule kept."""
    there = steps([1, 2, 3, 4, 5], hours={1: 0, 2: 1, 3: 2.5, 4: 3, 5: 4.6})
    assert kept(KeepEvery(hours=2), there) == [1, 3, 5]


def test_the_last_hours_before_the_newest_commit() -> None:
    """No clock is asked."""
    assert kept(KeepWithin(hours=2), steps(range(6))) == [3, 4, 5]


def test_given_steps_and_all() -> None:
    """Steps that are not there are no harm."""
    assert kept(KeepSteps({1, 9}), steps(range(4))) == [1, 3]
    assert kept(KeepAll(), steps(range(3))) == [0, 1, 2]


def test_each_verdict_says_why() -> None:
    """Every reason of what stays; the rule that did not keep what goes."""
    verdict = decide(KeepLast(1) | KeepEvery(steps=2), steps(range(3)), {1: "being read"})
    assert verdict.kept == {
        0: ("KeepEvery(steps=2)",),
        1: ("being read",),
        2: ("KeepLast(n=1)", "KeepEvery(steps=2)", "newest"),
    }
    gone = decide(KeepLast(1), steps(range(2)), {})
    assert gone.deleted == {0: "not kept by KeepLast(n=1)"}


rules = st.recursive(
    st.one_of(
        st.builds(KeepLast, st.integers(1, 4)),
        st.builds(lambda k: KeepEvery(steps=k), st.integers(1, 5)),
        st.builds(lambda h: KeepEvery(hours=h), st.floats(0.1, 5)),
        st.builds(lambda h: KeepWithin(hours=h), st.floats(0.1, 5)),
        st.builds(KeepBest, st.just("loss"), st.integers(1, 3), st.sampled_from(["min", "max"])),
        st.builds(KeepSteps, st.sets(st.integers(0, 9))),
    ),
    lambda inner: st.builds(lambda a, b: a | b, inner, inner),
    max_leaves=3,
)


@given(rules, rules, st.sets(st.integers(0, 30), max_size=10), st.data())
def test_any_rule_keeps_the_newest_splits_the_steps_and_composes(
    one: Retention, other: Retention, numbers: set[int], data: st.DataObject
) -> None:
    """A union is the union; deciding again deletes nothing of a union's own making."""
    losses = data.draw(st.lists(st.floats(), min_size=len(numbers), max_size=len(numbers)))
    there = steps(sorted(numbers), loss=losses)
    verdict = decide(one, there, {})
    assert not numbers or max(numbers) in verdict.kept
    assert verdict.kept.keys() | verdict.deleted.keys() == numbers
    assert not verdict.kept.keys() & verdict.deleted.keys()
    assert set(kept(one | other, there)) == set(kept(one, there)) | set(kept(other, there))


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeepLast(0),
        lambda: KeepLast(True),
        KeepEvery,
        lambda: KeepEvery(steps=2, hours=1),
        lambda: KeepEvery(steps=0),
        lambda: KeepEvery(hours=-1),
        lambda: KeepBest(3),  # type: ignore[arg-type]  # wrong on purpose
        lambda: KeepBest("loss", n=0),
        lambda: KeepBest("loss", mode="lowest"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: KeepWithin(hours=math.nan),
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused(make: object) -> None:
    """When it is made."""
    with pytest.raises(InvalidOption):
        make()  # type: ignore[operator]  # a function
