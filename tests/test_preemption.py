"""SIGTERM asks for one save; the loop that ends on it has saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import logging

import ckptmgr
from ckptmgr import CheckpointManager, Every, MemoryStorage, OnPreemption


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Whatever a test does to the signal."""
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


def terminate() -> None:
    """The signal arrives before this returns."""
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_makes_the_next_step_due_once() -> None:
    """D5: the loop that ignores `.preempted` goes on as before."""
    rule = Every(steps=4) | OnPreemption()
    with CheckpointManager("m", storage=MemoryStorage(), when=rule) as manager:
        for step in range(10):
            if step == 2:
                terminate()
                assert not manager.preempted
            manager.maybe_save(step, {"n": step})
            assert manager.preempted == (step >= 2)
        manager.wait()
        assert manager.all_steps() == [0, 2, 4, 8]


@pytest.mark.parametrize("at", ["before the step", "after the step", "while it saves"])
def test_the_loop_that_ends_on_it_has_saved(at: str) -> None:
    """Wherever in the loop the signal arrives."""
    with CheckpointManager("m", storage=MemoryStorage(), when=OnPreemption()) as manager:
        step = 0
        while step < 100 and not manager.preempted:
            if step == 5 and at == "before the step":
                terminate()
            step += 1
            if step == 5 and at == "after the step":
                terminate()
            if step == 5 and at == "while it saves":
                manager.save(step, {"n": step})
                terminate()
            manager.maybe_save(step, {"n": step})
        manager.wait()
        assert manager.latest_step() == step
        assert step == (5 if at == "after the step" else 6)


def test_a_second_signal_asks_again() -> None:
    """Once each."""
    with CheckpointManager("m", storage=MemoryStorage(), when=OnPreemption()) as manager:
        for step in range(6):
            if step in (1, 4):
                terminate()
            manager.maybe_save(step, {"n": step})
        manager.wait()
        assert manager.all_steps() == [1, 4]


def test_a_save_that_was_skipped_or_failed_is_no_answer(run: Path) -> None:
    """The next step offered is due instead."""
    with CheckpointManager(run, when=OnPreemption(), on_busy="skip", max_pending=0) as manager:
        terminate()
        with pytest.raises(ckptmgr.UnsupportedLeaf):
            manager.maybe_save(1, {"n": print})
        assert not manager.preempted
        manager.maybe_save(2, {"n": 2})
        assert manager.preempted


def test_the_signal_is_chained_and_given_back() -> None:
    """A former handler hears it too, and alone once the manager is closed."""
    heard: list[int] = []

    def former(number: int, _: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, former)
    with CheckpointManager("m", storage=MemoryStorage(), when=OnPreemption()) as manager:
        with CheckpointManager("n", storage=MemoryStorage(), when=OnPreemption()) as other:
            terminate()
            assert [m.should_save(1) for m in (manager, other)] == [True, True]
        assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is former
    terminate()
    assert len(heard) == 2


def test_a_manager_without_the_rule_leaves_the_signal_alone() -> None:
    """And is never preempted."""
    former = signal.getsignal(signal.SIGTERM)
    with CheckpointManager("m", storage=MemoryStorage(), when=Every(steps=1)) as manager:
        assert signal.getsignal(signal.SIGTERM) is former
        assert not manager.preempted


def test_another_thread_cannot_listen_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Python allows signals in the main thread alone."""
    logging.get_absl_logger().addHandler(caplog.handler)
    thread = threading.Thread(
        target=lambda: CheckpointManager("m", storage=MemoryStorage(), when=OnPreemption()).close()
    )
    thread.start()
    thread.join()
    logging.get_absl_logger().removeHandler(caplog.handler)
    assert "main thread" in caplog.text


TRAINER = """
import os, signal, sys, time
import jax
if os.environ.get("JAX_PORT"):
    jax.distributed.initialize(
        "127.0.0.1:" + os.environ["JAX_PORT"], num_processes=1, process_id=0,
        initialization_timeout=30, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=15)
import ckptmgr
with ckptmgr.CheckpointManager(sys.argv[1], when=ckptmgr.OnPreemption()) as manager:
    step = 0
    print("ready", flush=True)
    while step < 3000 and not manager.preempted:
        time.sleep(0.01)
        step += 1
        manager.maybe_save(step, {"n": step})
print("ended at", step, flush=True)
"""


@pytest.mark.parametrize("distributed", [False, True])
def test_a_real_signal_to_a_real_trainer(run: Path, *, distributed: bool) -> None:
    """By its own handler, and by jax's sync point where jax listens."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    if distributed:
        environment["JAX_PORT"] = str(20_000 + os.getpid() % 20_000)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TRAINER), str(run)],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    step = int(output.split()[-1])
    assert 0 < step < 3000
    with CheckpointManager(run, read_only=True) as manager:
        assert manager.all_steps() == [step]
    assert ckptmgr.load(run) == {"n": step}


def test_a_manager_that_is_closed_in_another_thread_passes_the_signal_on() -> None:
    """As only the main thread may give it back."""
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    manager = CheckpointManager("m", storage=MemoryStorage(), when=OnPreemption())
    thread = threading.Thread(target=manager.close)
    thread.start()
    thread.join()
    terminate()
    assert heard == [signal.SIGTERM]
    assert not manager._preemption.asked


def test_a_forgotten_manager_does_not_keep_its_process_from_ending(run: Path) -> None:
    """The default action is not swallowed for ever."""
    script = """
    import gc, os, signal, sys
    import ckptmgr
    manager = ckptmgr.CheckpointManager(sys.argv[1], when=ckptmgr.OnPreemption())
    del manager
    gc.collect()
    os.kill(os.getpid(), signal.SIGTERM)
    print("still there")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(run)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout) == (-signal.SIGTERM, "")
