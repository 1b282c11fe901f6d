"""A manager and its model, put through the same: after each operation both must agree."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

import ckptmgr
from ckptmgr import CheckpointManager, KeepBest, KeepEvery, KeepLast, NoSpace
from ckptmgr.storage.attempt import LocalAttempt
from ckptmgr.storage.base import Bytes
from ckptmgr.storage.local import LocalStorage
from tests.soak.model import BEST, EVERY, LAST, Model
from tests.trees import entries

ITEMS: Final = 2000


class Odd(LocalStorage):
    """A disk that can be full, and that can be told to wait."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.full = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waits = threading.Event()

    @contextmanager
    def attempt(self, name: str) -> Iterator[LocalAttempt]:
        """One whose files do not always come to be."""
        with super().attempt(name) as attempt:
            put = attempt.put

            def odd_put(path: str, parts: list[Bytes]) -> None:
                self.waits.set()
                self.goes_on.wait()
                if self.full and path.endswith("tree.json"):
                    raise NoSpace("the disk is full", file=path)
                put(path, parts)

            attempt.put = odd_put  # type: ignore[method-assign,assignment]  # this one alone
            yield attempt


def tree(value: int) -> dict[str, Any]:
    """Arrays of every place, all of which hold one number."""
    return {
        "jax": jnp.full(ITEMS, value, jnp.float32),
        "own": np.full(20_000, value, np.int64),
        "frozen": np.full(20_000, value // 20, np.int64),
        "small": [np.full(3, value, np.int32)] * 4,
        "python": value,
    }


class Machine:
    """Everything that a trainer does to its run, on a manager and on the model."""

    def __init__(self, directory: Path) -> None:
        self.run = directory
        self.model = Model()
        self.saves = 0
        self.storage = Odd(str(directory))
        self._holds = ExitStack()
        self.manager = self._opened()

    def _opened(self) -> CheckpointManager:
        keep = KeepLast(LAST) | KeepEvery(steps=EVERY) | KeepBest(BEST, mode="max")
        return CheckpointManager(
            self.run,
            keep=keep,
            storage=self.storage,
            max_pending=4,
            pack_below="100KiB",
            incremental=True,
        )

    def check(self) -> None:
        """Both agree, and nothing lies there that should not."""
        self.manager.wait()  # retention looks after the future has been resolved
        assert self.manager.all_steps() == self.model.names
        names = {f"step-{step:08d}" for step in self.model.steps}
        assert set(entries(self.run)) == names
        assert self.manager.statistics().used_bytes == 0

    def save(self, step: int, metrics: dict[str, float]) -> None:
        """A save that ends well, or is refused where the number is taken."""
        self.saves += 1
        if step in self.model.steps:
            with pytest.raises(ckptmgr.StepExists):
                self.manager.save(step, tree(self.saves))
            return
        self.manager.save(step, tree(self.saves), metrics=metrics).result()
        self.model.commit(step, self.saves, metrics)

    def overwrite(self, step: int) -> None:
        """Whatever was there is replaced, unless it is held."""
        self.saves += 1
        if step in self.model.held:
            with pytest.raises(ckptmgr.StepHeld):
                self.manager.save(step, tree(self.saves), overwrite=True).result()
            return
        self.manager.save(step, tree(self.saves), overwrite=True).result()
        self.model.commit(step, self.saves, {})

    def fail(self, step: int) -> None:
        """The disk is full for one save: what was there stays."""
        self.saves += 1
        self.storage.full = True
        try:
            future = self.manager.save(step, tree(self.saves), overwrite=True)
            assert isinstance(future.exception(), NoSpace)
        finally:
            self.storage.full = False

    def refuse(self, step: int) -> None:
        """A tree that cannot be saved costs nothing."""
        with pytest.raises(ckptmgr.UnsupportedLeaf):
            self.manager.save(step, {"a": np.ones(5), "b": object()}, overwrite=True)

    def cancel(self, first: int, second: int) -> None:
        """A save is written while another waits, which is taken back."""
        if {first, second} & (self.model.steps.keys() | self.model.held) or first == second:
            return
        self.saves += 2
        self.storage.waits.clear()
        self.storage.goes_on.clear()
        try:
            writing = self.manager.save(first, tree(self.saves))
            self.storage.waits.wait()
            waiting = self.manager.save(second, tree(0))
            assert waiting.cancel()
        finally:
            self.storage.goes_on.set()
        writing.result()
        with pytest.raises(CancelledError):
            waiting.result()
        self.model.commit(first, self.saves, {})

    def several(self, step: int) -> None:
        """Saves that queue up."""
        new = [number for number in range(step, step + 3) if number not in self.model.steps]
        futures = [(number, self.manager.save(number, tree(number))) for number in new]
        for number, future in futures:
            future.result()
            self.saves += 1
            self.model.commit(number, number, {})

    def annotate(self, step: int, score: float) -> None:
        """Retention hears of the score."""
        self.manager.annotate(step, metrics={BEST: score})
        self.model.steps[step].metrics[BEST] = score
        self.model.retain()

    def pin(self, step: int) -> None:
        """Kept from now on."""
        self.manager.pin(step)
        self.model.steps[step].pinned = True
        self.model.retain()

    def unpin(self, step: int) -> None:
        """Kept no longer."""
        self.manager.unpin(step)
        self.model.steps[step].pinned = False
        self.model.retain()

    def hold(self, step: int) -> None:
        """Kept until all are released."""
        self._holds.enter_context(self.manager.hold(step))
        self.model.held.add(step)

    def release(self) -> None:
        """The next pass of retention may have them."""
        self._holds.close()
        self.model.held.clear()

    def delete(self, step: int) -> None:
        """Unless it is pinned or held."""
        if self.model.steps[step].pinned or step in self.model.held:
            with pytest.raises(ckptmgr.StepHeld):
                self.manager.delete(step)
            return
        self.manager.delete(step)
        del self.model.steps[step]

    def rollback(self, step: int) -> None:
        """What is newer is moved aside; a person removes it."""
        if any(held > step for held in self.model.held):
            return
        moved = self.manager.rollback(step)
        assert moved == [number for number in self.model.names if number > step]
        self.model.steps = {n: s for n, s in self.model.steps.items() if n <= step}
        for path in self.run.glob(".abandoned-*"):
            shutil.rmtree(path)

    def restore(self, step: int) -> None:
        """Every item is what it was."""
        value = self.model.steps[step].value
        found = self.manager.restore(step)
        assert (found["python"], found["jax"].shape) == (value, (ITEMS,))
        assert bool((found["jax"] == value).all())
        assert bool((found["own"] == value).all())
        assert bool((found["frozen"] == value // 20).all())
        assert all((small == value).all() for small in found["small"])
        assert dict(self.manager.info(step).metrics) == pytest.approx(
            self.model.steps[step].metrics, nan_ok=True
        )

    def resume(self) -> None:
        """From the newest."""
        like = {"python": -1}
        step, found = self.manager.resume(like, select="python", default_step=7)
        newest = max(self.model.steps, default=None)
        assert step == (7 if newest is None else newest)
        assert found["python"] == (-1 if newest is None else self.model.steps[newest].value)

    def verify(self, step: int) -> None:
        """Nothing is wrong with it."""
        assert self.manager.verify(step).ok

    def reopen(self) -> None:
        """Closed, and opened again: nothing is deleted by that."""
        self.release()
        self.manager.close()
        self.manager = self._opened()

    def close(self) -> None:
        """The end."""
        self._holds.close()
        self.manager.close()


def quiet() -> None:
    """Failures and deletions are what this is about: nobody reads of them here."""
    logging.set_verbosity(logging.FATAL)
