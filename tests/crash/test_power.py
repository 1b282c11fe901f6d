"""Power cuts at random moments of a loop that saves: what was acknowledged is there, and whole.

On a file system of its own in a file, which is shut down without flushing its log. Needs
root and loop mounts; without them it is skipped, and `make test-faults` fails instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptmgr import CheckpointManager
from tests.crash.conftest import THOROUGH
from tests.crash.faults import endless, same

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.crash.faults"])
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = struct.pack("I", 2)
SIZES = {"ext4": "256M", "xfs": "320M"}


def run_command(*command: str) -> bool:
    """Whether a command of the system works."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(params=SIZES)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A file system in a file, and where to mount it."""
    kind = request.param
    image, point = tmp_path / "image", tmp_path / "disk"
    point.mkdir()
    made = (
        os.geteuid() == 0
        and shutil.which(f"mkfs.{kind}") is not None
        and run_command("truncate", "-s", SIZES[kind], str(image))
        and run_command(f"mkfs.{kind}", "-q", str(image))
        and run_command("mount", "-o", "loop", str(image), str(point))
        and run_command("umount", str(point))
    )
    if not made:
        reason = f"needs root, mkfs.{kind} and loop mounts"
        if THOROUGH:
            pytest.fail(reason)
        pytest.skip(reason)
    return image, point


@contextlib.contextmanager
def mounted(image: Path, point: Path) -> Iterator[None]:
    """The file system, as it is found after the cut."""
    assert run_command("mount", "-o", "loop", str(image), str(point))
    try:
        yield
    finally:
        for _ in range(200):
            if run_command("umount", str(point)):
                break
            time.sleep(0.05)


def cut(point: Path) -> None:
    """No byte reaches the disk any more."""
    descriptor = os.open(point, os.O_RDONLY)
    fcntl.ioctl(descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
    os.close(descriptor)


def test_a_power_cut_takes_nothing_that_was_acknowledged(
    disk: tuple[Path, Path], tmp_path: Path, cuts: int
) -> None:
    """At any moment of saving and retaining."""
    image, point = disk
    run, log = point / "run", tmp_path / "log"
    log.touch()
    clock = random.Random(2)
    for _ in range(cuts):
        with mounted(image, point):
            process = FORKS.Process(target=endless, args=(str(run), str(log)))
            process.start()
            known, deadline = log.stat().st_size, time.monotonic() + 60
            while log.stat().st_size == known and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(clock.random() * 0.06)
            cut(point)
            process.kill()
            process.join(60)
        told = [int(line) for line in log.read_text().splitlines()]
        with mounted(image, point), CheckpointManager(run) as manager:
            steps = manager.all_steps()
            assert max(steps) in (told[-1], told[-1] + 1), (steps, told[-3:])
            assert manager._catalog.damaged == {}
            for step in steps:
                assert same(manager.restore(step), step)
                assert manager.verify(step).ok
            assert not [name for name in os.listdir(run) if name.startswith((".tmp", ".trash"))]
    print(f"{cuts} power cuts, {told[-1]} steps acknowledged")
