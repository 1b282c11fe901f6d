"""When to save: rules over what is offered, as values that compose with `|`.

A rule is asked by `maybe_save` and `should_save` once per step offered and answers
from that offer alone. That a step at or below the newest good, committed or queued one
is never due holds for every rule and is the manager's to see to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ckptmgr.errors import InvalidOption
from ckptmgr.format.step import parse_step


class Pace(NamedTuple):
    """How saving goes.

    Attributes:
      idle: no save is queued or being written.
      overhead: what the last save has cost the trainer by now, its stall and what steps took
        longer, as a part of the time since it began; 0 before the first, infinite as long as
        it is not known how long steps take without.
    """

    idle: bool
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rule may look at.

    Attributes:
      step: the step on offer.
      pace: how saving goes.
      preempted: the process was told to end, and no step has been saved for that yet.
    """

    step: int
    pace: Pace
    preempted: bool = False


class Cadence(ABC):
    """A rule that says when to save; `a | b` saves when either does."""

    @abstractmethod
    def due(self, offer: Offer) -> bool:
        """Whether the step on offer is to be saved."""

    def includes(self, kind: type[Cadence]) -> bool:
        """Whether this is, or is made of, a rule of that kind."""
        return isinstance(self, kind)

    def __or__(self, other: Cadence) -> Cadence:
        """Due when one of the two is."""
        if not isinstance(other, Cadence):
            return NotImplemented
        return AnyOf((self, other))


@dataclass(frozen=True, slots=True)
class AnyOf(Cadence):
    """Due when one of `rules` is; what `|` makes."""

    rules: tuple[Cadence, ...]

    def due(self, offer: Offer) -> bool:
        """Whether one rule says so."""
        return any(rule.due(offer) for rule in self.rules)

    def includes(self, kind: type[Cadence]) -> bool:
        """Whether one of the rules does."""
        return any(rule.includes(kind) for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Every(Cadence):
    """Each step that is a multiple of `steps`, step 0 included.

    Raises:
      InvalidOption: `steps` is no positive integer.
    """

    steps: int

    def __post_init__(self) -> None:
        """Refuse what would never, or always, be due."""
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise InvalidOption(f"Every(steps=...) takes a positive integer, not {self.steps!r}")

    def due(self, offer: Offer) -> bool:
        """Whether the step is a multiple."""
        return offer.step % self.steps == 0


@dataclass(frozen=True, slots=True)
class At(Cadence):
    """Exactly these steps: `At({100, 1000})`."""

    steps: frozenset[int]

    def __init__(self, steps: Iterable[int]) -> None:
        object.__setattr__(self, "steps", frozenset(parse_step(step) for step in steps))

    def due(self, offer: Offer) -> bool:
        """Whether the step is one of them."""
        return offer.step in self.steps


@dataclass(frozen=True, slots=True)
class WhenIdle(Cadence):
    """Whenever no save is queued or being written: as often as the disk allows."""

    def due(self, offer: Offer) -> bool:
        """Whether nothing is in flight."""
        return offer.pace.idle


@dataclass(frozen=True, slots=True)
class OverheadBelow(Cadence):
    """As often as saves cost less than `share` of the time: `OverheadBelow(0.01)`.

    The next save is due once the last, its stall and what the steps beside it took longer than
    others, makes less than that share of the time since it began. How long steps take is
    measured between the steps offered: offer each, or as regularly as can be.

    Raises:
      InvalidOption: `share` is no number between 0 and 1.
    """

    share: float

    def __post_init__(self) -> None:
        """Refuse what would never, or always, be due."""
        if not isinstance(self.share, float) or not 0 < self.share < 1:
            raise InvalidOption(
                f"OverheadBelow takes a part of the time, above 0 and below 1, not {self.share!r}"
            )

    def due(self, offer: Offer) -> bool:
        """Whether the last save is paid for, and none is in flight."""
        return offer.pace.idle and offer.pace.overhead < self.share


@dataclass(frozen=True, slots=True)
class OnPreemption(Cadence):
    """The next step offered after SIGTERM, or that of jax's preemption sync point; once.

    A manager with this rule listens to SIGTERM while it is open, and `.preempted` turns true
    when that save has been queued.
    """

    def due(self, offer: Offer) -> bool:
        """Whether the process was told to end."""
        return offer.preempted
