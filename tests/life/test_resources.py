"""Disks, inodes, descriptors and memory that run out, and are there again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckptmgr import ByteLimiter, CheckpointManager, LeafOptions, NoSpace
from tests.life.scripts import script
from tests.trees import entries

OWN = [("**", LeafOptions(own_array=True))]


@contextmanager
def small_disk(point: Path, options: str) -> Iterator[Path]:
    """A tmpfs of this size."""
    point.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", options, "none", str(point)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(made, check=False).returncode:
        pytest.skip("needs root, and mounts")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("options", ["size=4m", "size=4m,nr_inodes=90"])
def test_a_disk_that_fills_up_and_gets_space_again(tmp_path: Path, options: str) -> None:
    """Bytes or inodes: the save that does not fit fails whole, the next that fits succeeds."""
    tree = {f"leaf{i}": np.full(1000, i) for i in range(10)}
    with small_disk(tmp_path / "disk", options) as disk:
        with CheckpointManager(disk / "run", leaf_options=OWN) as manager:
            manager.save(1, tree).result()
            inodes = "nr_inodes" in options
            if inodes:
                others = [disk / f"other{i}" for i in range(30)]
                for other in others:
                    other.touch()
            else:
                others = [disk / "other"]
                state = os.statvfs(disk)
                # By its bytes it would fit; but each file takes a page, and its metadata one.
                others[0].write_bytes(bytes(state.f_bavail * state.f_frsize - (88 << 10)))
            for _ in range(3):
                with pytest.raises(NoSpace, match="free some"):
                    manager.save(2, tree).result()
            assert manager.latest_step() == 1
            assert entries(disk / "run") == ["step-00000001"]
            for other in others:
                other.unlink()
            manager.save(2, tree).result()
        with CheckpointManager(disk / "run") as manager:
            assert manager.all_steps() == [1, 2]
            assert all(manager.verify(step).ok for step in (1, 2))


def test_descriptors_that_run_out_cost_a_save_and_no_step(run: Path) -> None:
    """However few there are; what can be opened again is what it was, and nothing is left open."""
    told = script(
        """
        import os, resource, sys
        import numpy as np
        from absl import logging
        import ckptmgr
        logging.set_verbosity(logging.FATAL)
        tree = {f"leaf{i}": np.full(1000, i) for i in range(4)}
        own = [("**", ckptmgr.LeafOptions(own_array=True))]
        def name(fd):
            try:
                return os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                return ".status"  # written beside, now and then
        def files():
            return len([fd for fd in os.listdir("/proc/self/fd") if ".status" not in name(fd)])
        done = set()
        with ckptmgr.CheckpointManager(
            sys.argv[1], leaf_options=own, keep=ckptmgr.KeepLast(2), tolerated_failures=1000
        ) as manager:
            for step in range(3):
                manager.save(step, tree).result()
                manager.annotate(step, metrics={"score": step})
            manager.restore()
            manager.verify()
            before, limits = files(), resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1
            for room in range(-1, 12):
                for what in ("save", "restore", "verify", "annotate"):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, limits[1]))
                    try:
                        if what == "save":
                            step += 1
                            manager.save(step, tree).result()
                        elif what == "restore":
                            manager.restore()
                        elif what == "verify":
                            assert manager.verify().ok
                        else:
                            manager.annotate(manager.latest_step(), metrics={"score": 0})
                        done.add(what)
                    except ckptmgr.TooManyOpenFiles:
                        done.add("no " + what)
                    finally:
                        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    assert manager._catalog.damaged == {}, (room, what)
                    assert len(manager.all_steps()) >= 2, (room, what)
            step += 1
            manager.save(step, tree).result()
            manager.wait()
            assert files() <= before, (before, files())
            assert manager.all_steps()[-1] == step
            assert all(manager.verify(step).ok for step in manager.all_steps())
            left = [name for name in os.listdir(sys.argv[1]) if not name.startswith('.')]
            assert len(left) == 2, left
        print(sorted(done))
        """,
        run,
    )
    every = ["annotate", "restore", "save", "verify"]
    assert told.strip() == str(sorted([*every, *(f"no {what}" for what in every)]))


def test_two_managers_share_one_limit(tmp_path: Path) -> None:
    """Together they stay under it, and neither waits for the other for ever."""
    limit = ByteLimiter(8 << 20)
    tree = {f"leaf{i}": np.full((1 << 20) // 8, float(i)) for i in range(6)}
    with (
        CheckpointManager(tmp_path / "a", in_flight_bytes=limit, borrow=False) as a,
        CheckpointManager(tmp_path / "b", in_flight_bytes=limit, borrow=False) as b,
    ):
        for step in range(5):
            saved = [manager.save(step, tree) for manager in (a, b)]
            loads = [manager.restore_async(step - 1) for manager in (a, b) if step]
            for future in [*saved, *loads]:
                future.result()
        a.close()
        found = b.restore()
        assert a.statistics() == b.statistics()
    assert 6 << 20 < limit.statistics().peak_bytes <= 8 << 20
    assert limit.statistics().used_bytes == 0
    assert all((found[name] == value).all() for name, value in tree.items())
