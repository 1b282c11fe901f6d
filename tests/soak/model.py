"""What must be there: the model of a run, which no file and no thread can confuse."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LAST, EVERY, BEST = 3, 50, "score"


@dataclass
class Step:
    """A committed step: the number that all of its leaves hold, and what was said of it."""

    value: int
    metrics: dict[str, float] = field(default_factory=dict)
    pinned: bool = False


@dataclass
class Model:
    """The steps of a run under KeepLast(3) | KeepEvery(steps=50) | KeepBest("score")."""

    steps: dict[int, Step] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)

    @property
    def names(self) -> list[int]:
        """What all_steps() must say."""
        return sorted(self.steps)

    def commit(self, step: int, value: int, metrics: dict[str, float]) -> None:
        """A save, or an overwrite, has ended well: notes and pin of a former one are gone."""
        self.steps[step] = Step(value, dict(metrics))
        self.retain()

    def retain(self) -> None:
        """What no rule keeps is deleted."""
        scored = [
            (step.metrics[BEST], number)
            for number, step in self.steps.items()
            if not math.isnan(step.metrics.get(BEST, math.nan))
        ]
        keep = {
            *self.names[-LAST:],
            *(number for number in self.steps if number % EVERY == 0),
            *([max(scored)[1]] if scored else []),
            *(number for number, step in self.steps.items() if step.pinned),
            *self.held,
        }
        self.steps = {number: step for number, step in self.steps.items() if number in keep}
