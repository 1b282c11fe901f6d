"""The command in this process, and runs to use it on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from ckptmgr import CheckpointManager, KeepBest, KeepLast
from ckptmgr.cli.app import run as command


class Told(NamedTuple):
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote for scripts."""
        return json.loads(self.out)


class Shell:
    """Calls commands."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Told:
        """Call one; it must not leave a traceback whatever it is given."""
        self._capture.readouterr()
        code = command([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        return Told(code, out, err)


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A shell; how much is logged is as before afterwards."""
    verbosity, level = logging.get_verbosity(), logging.get_absl_logger().level
    yield Shell(capfd)
    logging.set_verbosity(verbosity)
    logging.get_absl_logger().setLevel(level)


def tree(step: int) -> dict[str, object]:
    """A state with one of most kinds of leaves."""
    return {
        "params": {
            name: {"kernel": jnp.full((300, 300), step, jnp.float32), "bias": jnp.zeros(300)}
            for name in ("one", "two")
        },
        "opt": [jnp.ones(5) * step, None],
        "key": jax.random.key(0),
        "host": np.arange(4, dtype=np.int16),
        "step": step,
        "name": "gpt",
    }


@pytest.fixture
def trained(run: Path) -> Path:
    """A run that has saved steps 0 to 500 and keeps the last three, the best and a pinned one."""
    rules = KeepLast(3) | KeepBest("loss", mode="min")
    with CheckpointManager(run, keep=rules) as manager:
        for step in range(0, 600, 100):
            metrics = {"loss": abs(step - 200) / 100}
            manager.save(step, tree(step), metrics=metrics, metadata={"by": "me"}).result()
            if step == 0:
                manager.pin(0)
    return run
