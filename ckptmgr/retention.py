"""What to keep: rules over the committed steps, as values that compose with `|`.

A rule says which steps it keeps and why; what no rule keeps is deleted. Rules see the
steps in step order, never in the order of their saves, and no clock but the commit
times. The newest step is kept whatever the rules say.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ckptmgr.errors import InvalidOption
from ckptmgr.format.step import StepInfo, parse_step

Steps: TypeAlias = Mapping[int, StepInfo]  # in step order


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided: for each step why it is kept, or why it is deleted."""

    kept: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    deleted: Mapping[int, str] = field(default_factory=dict)


class Retention(ABC):
    """A rule that says which committed steps to keep; `a | b` keeps what either does."""

    @abstractmethod
    def keeps(self, steps: Steps) -> Iterable[int]:
        """The steps that this rule keeps, out of those given in step order."""

    def reasons(self, steps: Steps) -> Iterable[tuple[int, str]]:
        """Each step that is kept, with why."""
        return ((step, repr(self)) for step in self.keeps(steps))

    def doubts(self, steps: Steps) -> Iterable[str]:
        """What of this rule may be a mistake, by the steps there are."""
        return ()

    def __or__(self, other: Retention) -> Retention:
        """Keep what one of the two keeps."""
        if not isinstance(other, Retention):
            return NotImplemented
        return AnyOf((self, other))


@dataclass(frozen=True, slots=True)
class AnyOf(Retention):
    """Keeps what one of `rules` keeps; what `|` makes."""

    rules: tuple[Retention, ...]

    def keeps(self, steps: Steps) -> Iterable[int]:
        """The union."""
        return {step for step, _ in self.reasons(steps)}

    def reasons(self, steps: Steps) -> Iterable[tuple[int, str]]:
        """The reasons of every rule."""
        return [reason for rule in self.rules for reason in rule.reasons(steps)]

    def doubts(self, steps: Steps) -> Iterable[str]:
        """Those of every rule."""
        return [doubt for rule in self.rules for doubt in rule.doubts(steps)]

    def __repr__(self) -> str:
        """As it was written: `KeepLast(n=3) | KeepEvery(steps=1000)`."""
        return " | ".join(map(repr, self.rules))


@dataclass(frozen=True, slots=True)
class KeepAll(Retention):
    """Every step."""

    def keeps(self, steps: Steps) -> Iterable[int]:
        """All of them."""
        return steps


@dataclass(frozen=True, slots=True)
class KeepLast(Retention):
    """The `n` highest steps.

    Raises:
      InvalidOption: `n` is no positive integer.
    """

    n: int

    def __post_init__(self) -> None:
        """Refuse a count that keeps nothing."""
        _require(self.n, int, "KeepLast(n)")

    def keeps(self, steps: Steps) -> Iterable[int]:
        """The last n."""
        return list(steps)[-self.n :]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepEvery(Retention):
    """Each multiple of `steps`; or one in `hours`, by commit time.

    By hours: the first step, then each that was committed at least that long after the
    last one that this rule kept.

    Raises:
      InvalidOption: not exactly one of the two is given, or it is not positive.
    """

    steps: int | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        """Refuse neither, both, and what is not positive."""
        if (self.steps is None) == (self.hours is None):
            raise InvalidOption("KeepEvery takes either steps= or hours=")
        if self.steps is not None:
            _require(self.steps, int, "KeepEvery(steps=...)")
        else:
            _require(self.hours, float, "KeepEvery(hours=...)")

    def keeps(self, steps: Steps) -> Iterable[int]:
        """The multiples, or those far enough apart in time."""
        if self.steps is not None:
            return [step for step in steps if step % self.steps == 0]
        kept: list[int] = []
        for step, info in steps.items():
            if not kept or info.time >= steps[kept[-1]].time + 3600 * (self.hours or 0):
                kept.append(step)
        return kept

    def __repr__(self) -> str:
        """With the one argument that was given."""
        return f"KeepEvery(steps={self.steps})" if self.steps else f"KeepEvery(hours={self.hours})"


@dataclass(frozen=True, slots=True)
class KeepBest(Retention):
    """The `n` steps whose `metric` is lowest (mode "min") or highest ("max").

    NaN and missing values never count; of equal ones the newer stays.

    Raises:
      InvalidOption: `metric` is no text, `n` no positive integer, `mode` neither word.
    """

    metric: str
    n: int = 1
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        """Refuse what names no metric or no order."""
        if not isinstance(self.metric, str):
            raise InvalidOption(f"KeepBest takes the name of a metric, not {self.metric!r}")
        _require(self.n, int, "KeepBest(n=...)")
        if self.mode not in ("min", "max"):
            raise InvalidOption(f"KeepBest(mode=...) is 'min' or 'max', not {self.mode!r}")

    def keeps(self, steps: Steps) -> Iterable[int]:
        """The n best."""
        return ranked(steps, self.metric, self.mode)[: self.n]

    def doubts(self, steps: Steps) -> Iterable[str]:
        """That no step has the metric, though they have others."""
        names = {name for info in steps.values() for name in info.metrics}
        if names and self.metric not in names:
            yield f"no step has the metric {self.metric!r}; there are {', '.join(sorted(names))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWithin(Retention):
    """The steps committed within `hours` before the newest commit.

    Raises:
      InvalidOption: `hours` is not positive.
    """

    hours: float

    def __post_init__(self) -> None:
        """Refuse a span that keeps nothing."""
        _require(self.hours, float, "KeepWithin(hours=...)")

    def keeps(self, steps: Steps) -> Iterable[int]:
        """Those of the last hours."""
        newest = max((info.time for info in steps.values()), default=0.0)
        return [s for s, info in steps.items() if info.time >= newest - 3600 * self.hours]


@dataclass(frozen=True, slots=True)
class KeepSteps(Retention):
    """Exactly these steps: `KeepSteps({1000, 5000})`."""

    steps: frozenset[int]

    def __init__(self, steps: Iterable[int]) -> None:
        object.__setattr__(self, "steps", frozenset(parse_step(step) for step in steps))

    def keeps(self, steps: Steps) -> Iterable[int]:
        """Those of them that there are."""
        return self.steps & steps.keys()

    def __repr__(self) -> str:
        """With the steps in order."""
        return f"KeepSteps({{{', '.join(map(str, sorted(self.steps)))}}})"


def ranked(steps: Steps, metric: str, mode: Literal["min", "max"]) -> list[int]:
    """The steps that have the metric, best first; of equal ones the newer first."""
    sign = 1 if mode == "min" else -1
    values = {s: info.metrics.get(metric, math.nan) for s, info in steps.items()}
    have = [s for s, value in values.items() if not math.isnan(value)]
    return sorted(have, key=lambda s: (sign * values[s], -s))


def decide(rule: Retention, steps: Steps, protected: Mapping[int, str]) -> Verdict:
    """Which steps to keep, with every reason, and which to delete.

    `protected` maps steps that no rule may delete (being read, pinned, held) to why.
    """
    ordered = dict(sorted(steps.items()))
    reasons: dict[int, list[str]] = {}
    for step, why in [*rule.reasons(ordered), *protected.items()]:
        if step in ordered:
            reasons.setdefault(step, []).append(why)
    if ordered:
        reasons.setdefault(max(ordered), []).append("newest")
    return Verdict(
        kept={step: tuple(reasons[step]) for step in ordered if step in reasons},
        deleted={step: f"not kept by {rule!r}" for step in ordered if step not in reasons},
    )


def _require(value: object, kind: type, what: str) -> None:
    wanted = (int,) if kind is int else (int, float)
    if not isinstance(value, wanted) or isinstance(value, bool) or not value > 0:
        noun = "integer" if kind is int else "number"
        raise InvalidOption(f"{what} takes a positive {noun}, not {value!r}")
    if kind is float and isinstance(value, int) and value > sys.float_info.max:
        raise InvalidOption(f"{what} takes a number, and no float is as large as this one")
