"""An error, or death, at every call of every operation loses nothing that was acknowledged."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from ckptmgr import CheckpointError, CheckpointManager
from tests.crash.faults import (
    ERRORS,
    OPERATIONS,
    Calls,
    check,
    endless,
    failing,
    prepared,
    same,
    victim,
)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.crash.faults"])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to begin from."""
    run = tmp_path_factory.mktemp("template") / "run"
    prepared(run)
    return run


def fresh(template: Path, folder: Path) -> Path:
    """A copy of it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template.parent, folder)
    return folder / "run"


def positions(template: Path, tmp_path: Path, operation: str) -> int:
    """How many calls an operation makes."""
    calls = Calls(tmp_path)
    run = fresh(template, tmp_path / "count")
    with calls.watched():
        OPERATIONS[operation](run)
    check(run, acknowledged=True, operation=operation)
    return calls.count


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_any_call(
    template: Path, tmp_path: Path, operation: str, error: str, every: int
) -> None:
    """It is one of ours or does no harm; what was there is there, the next save works."""
    count = positions(template, tmp_path, operation)
    first = random.Random(operation + error).randrange(every) + 1
    reached = 0
    for at in range(first, count + 1, every):
        run = fresh(template, tmp_path / "run")
        calls = Calls(tmp_path, at, failing(ERRORS[error]))
        acknowledged = True
        with calls.watched():
            try:
                OPERATIONS[operation](run)
            except CheckpointError:
                acknowledged = False
        reached += calls.count >= at
        check(run, acknowledged=acknowledged, operation=operation)
    print(f"{operation}, {error}: {reached} of {count} positions reached")
    assert reached


@pytest.mark.parametrize("operation", OPERATIONS)
def test_death_at_any_call(template: Path, tmp_path: Path, operation: str, every: int) -> None:
    """SIGKILL, in a process of its own."""
    count = positions(template, tmp_path, operation)
    step = every * 3 if every > 1 else 1  # a process each
    first = random.Random(operation).randrange(step) + 1
    reached = 0
    for at in range(first, count + 1, step):
        run = fresh(template, tmp_path / "run")
        process = FORKS.Process(target=victim, args=(str(run), operation, at))
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
        reached += process.exitcode != 0
        check(run, acknowledged=process.exitcode == 0, operation=operation)
    print(f"{operation}, SIGKILL: {reached} of {count} positions reached")


def test_death_at_any_time(tmp_path: Path, cycles: int) -> None:
    """One directory, again and again; beside it what was acknowledged."""
    run, log = tmp_path / "run", tmp_path / "log"
    log.touch()
    clock = random.Random(1)
    for _ in range(cycles):
        process = FORKS.Process(target=endless, args=(str(run), str(log)))
        process.start()
        known = log.stat().st_size
        deadline = time.monotonic() + 30
        while log.stat().st_size == known and time.monotonic() < deadline:
            time.sleep(0.001)  # until it saves at all
        time.sleep(clock.random() * 0.05)
        process.kill()
        process.join(30)
        told = [int(line) for line in log.read_text().splitlines()]
        with CheckpointManager(run, read_only=True) as reader:
            steps = reader.all_steps()
            assert max(steps) in (told[-1], told[-1] + 1)
            assert same(reader.restore(), max(steps))
            for step in steps[:-1]:
                assert reader.verify(step).ok
    with CheckpointManager(run) as manager:
        assert manager.verify().ok
