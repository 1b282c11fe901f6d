"""`bench`: what a disk does, and the cadence that it recommends, beside a real loop."""

from __future__ import annotations

import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from ckptmgr import CheckpointManager, KeepLast, OverheadBelow
from ckptmgr.cli.measuring import SHARE, Measured, lines, measured, steps, worker
from tests.cli.conftest import Shell

FOUND = Measured(10**9, 100, stall=0.001, durable=0.5, restore=0.25, cost=0.2)


def test_what_was_measured_is_told_with_what_it_means() -> None:
    """A save of 0.2 s is 1 % of 20 s."""
    assert FOUND.interval == pytest.approx(20)
    assert list(lines(FOUND)) == [
        "tree      1.0 GB in 100 arrays",
        "save()    1.0 ms",
        "durable   500 ms, 2.0 GB/s",
        "restore   250 ms, 4.0 GB/s, cached",
        "cost      200 ms of a loop that takes every core",
        "cadence   a save every 20 s costs 1 %:",
        "          Every(steps=200) where a step takes 100 ms",
        "          Every(steps=20) where a step takes 1.0 s",
        "          Every(steps=2) where a step takes 10 s",
        "          OverheadBelow(0.01) finds it out by itself",
    ]


@pytest.mark.parametrize(("seconds", "number"), [(0.3, 67), (20.0, 1), (100.0, 1)])
def test_steps_are_enough_for_the_interval(seconds: float, number: int) -> None:
    """Rounded up, and at least one."""
    assert steps(FOUND, seconds) == number


def test_a_disk_is_measured_and_left_as_it_was(shell: Shell, tmp_path: Path) -> None:
    """With a tree of the size and the leaves that were asked for."""
    found = shell("bench", tmp_path, "--size", "4MiB", "--leaves", 5, "--json").json
    assert (found["nbytes"], found["leaves"]) == (4_194_300, 5)
    assert 0 < found["stall"] <= found["cost"]
    assert found["interval"] == pytest.approx(100 * found["cost"])
    assert found["durable"] > found["stall"]
    assert not list(tmp_path.iterdir())
    assert "OverheadBelow(0.01)" in shell("bench", tmp_path, "--size", "1MiB").out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("absent",), 1, "nothing can be written"),
        ((".", "--size", "3X"), 2, "--size is a number of bytes"),
        ((".", "--size", "1B"), 2, "at least 4 bytes for each leaf"),
        ((".", "--leaves", "0"), 2, "--leaves"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """In one line."""
    monkeypatch.chdir(tmp_path)
    told = shell("bench", *arguments)
    assert told.code == code
    assert words in told.err


def test_a_real_loop_saves_as_often_as_was_recommended(tmp_path: Path) -> None:
    """Where it measures by itself what saves cost, within a factor that a shared machine needs."""
    nbytes, work = 32 << 20, worker()
    tree = {"w": jnp.ones(nbytes // 4, jnp.float32)}
    rule = OverheadBelow(SHARE)
    ratios = []
    for attempt in range(3):
        found = measured(str(tmp_path), nbytes, 1)
        with CheckpointManager(tmp_path / str(attempt), when=rule, keep=KeepLast(1)) as manager:
            began, step, begun = time.monotonic(), 0, list[float]()
            while len(begun) < 4 and time.monotonic() < began + 30 * found.interval:
                if manager.maybe_save(step, tree):
                    begun.append(time.monotonic())
                work()
                step += 1
        assert len(begun) > 1
        ratios.append((begun[-1] - begun[0]) / (len(begun) - 1) / found.interval)
        if 1 / 4 < ratios[-1] < 4:
            return
    pytest.fail(f"the loop saved {ratios} times as rarely as bench recommends")
