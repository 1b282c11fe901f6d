"""Any sequence of what a trainer does leaves what the model says. The long one is `make soak`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.soak.machine import Machine

STEPS = st.integers(0, 120)
SCORES = st.sampled_from([0.0, 1.0, 2.0, -1.0, float("nan")])
PLACES = st.integers(0, 1 << 16)


class Trainer(RuleBasedStateMachine):
    """The operations, on steps that are there and on any."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ckptmgr-machine-"))
        self.machine = Machine(self.directory / "run")

    def teardown(self) -> None:
        """Close, and leave nothing."""
        self.machine.close()
        shutil.rmtree(self.directory)

    def there(self, place: int) -> int:
        """One of the steps that are there."""
        names = self.machine.model.names
        return names[place % len(names)]

    def has_steps(self) -> bool:
        """Whether there are any."""
        return bool(self.machine.model.steps)

    @rule(step=STEPS, score=SCORES | st.none())
    def save(self, step: int, score: float | None) -> None:
        """With a metric or without."""
        self.machine.save(step, {} if score is None else {"score": score})

    @rule(step=STEPS)
    def overwrite(self, step: int) -> None:
        """Of a step that is there, or is not."""
        self.machine.overwrite(step)

    @rule(step=STEPS)
    def fail(self, step: int) -> None:
        """In the background."""
        self.machine.fail(step)

    @rule(step=STEPS)
    def refuse(self, step: int) -> None:
        """In the trainer's thread."""
        self.machine.refuse(step)

    @rule(first=STEPS, second=STEPS)
    def cancel(self, first: int, second: int) -> None:
        """While another is written."""
        self.machine.cancel(first, second)

    @rule(step=STEPS)
    def several(self, step: int) -> None:
        """At once."""
        self.machine.several(step)

    @precondition(has_steps)
    @rule(place=PLACES, score=SCORES)
    def annotate(self, place: int, score: float) -> None:
        """An evaluator's."""
        self.machine.annotate(self.there(place), score)

    @precondition(has_steps)
    @rule(place=PLACES)
    def pin(self, place: int) -> None:
        """For good."""
        self.machine.pin(self.there(place))

    @precondition(has_steps)
    @rule(place=PLACES)
    def unpin(self, place: int) -> None:
        """Whether it was pinned or not."""
        self.machine.unpin(self.there(place))

    @precondition(has_steps)
    @rule(place=PLACES)
    def hold(self, place: int) -> None:
        """For a while."""
        self.machine.hold(self.there(place))

    @rule()
    def release(self) -> None:
        """All holds."""
        self.machine.release()

    @precondition(has_steps)
    @rule(place=PLACES)
    def delete(self, place: int) -> None:
        """By hand."""
        self.machine.delete(self.there(place))

    @precondition(has_steps)
    @rule(place=PLACES)
    def rollback(self, place: int) -> None:
        """To any."""
        self.machine.rollback(self.there(place))

    @precondition(has_steps)
    @rule(place=PLACES)
    def restore(self, place: int) -> None:
        """Any."""
        self.machine.restore(self.there(place))

    @precondition(has_steps)
    @rule(place=PLACES)
    def verify(self, place: int) -> None:
        """Any."""
        self.machine.verify(self.there(place))

    @rule()
    def resume(self) -> None:
        """The newest."""
        self.machine.resume()

    @rule()
    def reopen(self) -> None:
        """A new process would find the same."""
        self.machine.reopen()

    @invariant()
    def agrees(self) -> None:
        """After each of them."""
        self.machine.check()


TestTrainer = Trainer.TestCase
TestTrainer.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
