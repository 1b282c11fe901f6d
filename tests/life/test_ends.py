"""The ends of a process: exits without close, Ctrl-C, kills. Real processes throughout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

import ckptmgr
from tests.trees import entries

SLOW = """
import os, sys, threading, time
import jax.numpy as jnp, numpy as np
import ckptmgr
from ckptmgr.storage import local
real = os.fdatasync
def slow(fd):
    print("writing", flush=True)
    time.sleep(float(os.environ.get("DELAY", "0.2")))
    real(fd)
local.os.fdatasync = slow
tree = {"w": jnp.arange(500_000.0), "n": 7}
"""


def start(script: str, run: Path, **environment: str) -> subprocess.Popen[str]:
    """A trainer of its own process, whose disk takes its time."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW + textwrap.dedent(script), str(run)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps(run: Path) -> list[int]:
    """What is committed, as a reader sees it."""
    with ckptmgr.CheckpointManager(run, read_only=True) as manager:
        return manager.all_steps()


@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(0)", "del manager"],
)
def test_a_script_that_ends_without_close_has_saved_and_exits_with_0(
    run: Path, ending: str
) -> None:
    """Saves that wait are finished too."""
    script = f"""
    manager = ckptmgr.CheckpointManager(sys.argv[1])
    manager.save(1, tree)
    manager.save(2, tree)
    {ending}
    """
    process = start(script, run)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert steps(run) == [1, 2]


def test_an_exception_without_close_saves_too_and_keeps_its_exit_code(run: Path) -> None:
    """The traceback is the script's own."""
    process = start(
        """
        manager = ckptmgr.CheckpointManager(sys.argv[1])
        manager.save(1, tree)
        raise ZeroDivisionError
        """,
        run,
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.strip().endswith("ZeroDivisionError")
    assert steps(run) == [1]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, GeneratorExit])
@pytest.mark.parametrize("kind", ["with", "asyncio", "trio"])
def test_an_exception_in_the_block_is_its_own_and_what_was_queued_is_saved(
    run: Path, error: type[BaseException], kind: str
) -> None:
    """In all three kinds of block; the directory is free at once."""

    def work(manager: ckptmgr.CheckpointManager) -> None:
        for step in range(3):
            manager.save(step, {"n": step})
        raise error

    async def block() -> None:
        async with ckptmgr.CheckpointManager(run) as manager:
            work(manager)

    with pytest.raises(error):
        if kind == "with":
            with ckptmgr.CheckpointManager(run) as manager:
                work(manager)
        else:
            anyio.run(block, backend=kind)
    with ckptmgr.CheckpointManager(run) as manager:
        assert manager.all_steps() == [0, 1, 2]


def test_ctrl_c_ends_a_wait_at_once_and_close_stays_within_its_bound(run: Path) -> None:
    """The save that was being written is finished."""
    process = start(
        """
        with ckptmgr.CheckpointManager(sys.argv[1]) as manager:
            manager.save(1, tree)
            manager.wait()
            print("not interrupted", flush=True)
        """,
        run,
        DELAY="1",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert "not interrupted" not in output
    assert errors.strip().endswith("KeyboardInterrupt")
    assert steps(run) == [1]


@pytest.mark.parametrize("nth", range(1, 6))
def test_killed_at_any_sync_of_a_save_the_step_before_is_there(run: Path, nth: int) -> None:
    """What was acknowledged restores; what was not is no step; leftovers are swept."""
    process = start(
        """
        import signal
        with ckptmgr.CheckpointManager(sys.argv[1]) as manager:
            manager.save(1, tree).result()
            print("acknowledged", flush=True)
            left = int(os.environ["NTH"])
            def dies(fd):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(fd)
            local.os.fdatasync = dies
            manager.save(2, tree).result()
        """,
        run,
        DELAY="0",
        NTH=str(nth),
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert "acknowledged" in output
    assert steps(run) == [1]
    with ckptmgr.CheckpointManager(run) as manager:
        assert entries(run) == ["step-00000001"]
        assert manager.restore()["n"] == 7
        manager.save(2, {"n": 8}).result()
        assert manager.all_steps() == [1, 2]


def test_a_forked_child_cannot_use_the_manager(run: Path) -> None:
    """And its end does not end the parent's."""
    process = start(
        """
        manager = ckptmgr.CheckpointManager(sys.argv[1])
        pid = os.fork()
        if pid == 0:
            try:
                manager.save(1, tree)
            except ckptmgr.ManagerClosed as error:
                print(error, flush=True)
            os._exit(0)  # jax itself hangs at the exit of a forked child
        assert os.waitpid(pid, 0)[1] == 0
        manager.save(2, tree).result()
        manager.close()
        """,
        run,
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "belongs to the parent process" in output
    assert steps(run) == [2]
