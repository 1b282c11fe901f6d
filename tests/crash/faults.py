"""Failing or killing at the n-th call to the system, and the operations that are put to it."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ckptmgr
from ckptmgr import CheckpointManager, KeepLast
from ckptmgr.storage import rename

CALLS = ("open", "mkdir", "writev", "fdatasync", "fsync", "rename", "link", "unlink", "rmdir")


class Calls:
    """Counts the calls to the system that change what is under a directory, and fails at one.

    Args:
      root: the directory.
      at: the number of the call to fail at; 0 for none.
      how: raises, or kills.
    """

    def __init__(self, root: Path, at: int = 0, how: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self.names: list[str] = []
        self._root = str(root)
        self._at = at
        self._how = how
        self._mutex = threading.Lock()

    def _is_ours(self, argument: object) -> bool:
        if threading.current_thread().name == "ckptmgr reporter":
            return False  # it writes the status beside the saves, which promises nothing
        if isinstance(argument, int):
            try:
                argument = os.readlink(f"/proc/self/fd/{argument}")
            except OSError:
                return False
        return isinstance(argument, str | os.PathLike) and str(argument).startswith(self._root)

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            relative = options.get("dir_fd")  # how shutil.rmtree goes about it
            if self._is_ours(args[0] if relative is None else relative):
                with self._mutex:
                    self.count += 1
                    self.names.append(name)
                    hit = self.count == self._at
                if hit:
                    self._how()
            return real(*args, **options)

        return call

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count, and fail, while the context lasts."""
        real = {name: getattr(os, name) for name in CALLS}
        exchange = rename.renameat2
        for name, function in real.items():
            setattr(os, name, self._wrapped(name, function))
        rename.renameat2 = self._wrapped("renameat2", exchange)
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)
            rename.renameat2 = exchange


def failing(code: int) -> Callable[[], None]:
    """An error of the system."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def killing() -> None:
    """The end, at once."""
    os.kill(os.getpid(), signal.SIGKILL)


ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EACCES": errno.EACCES}


def tree(number: int) -> dict[str, Any]:
    """What step `number` holds: an array of its own, a pack, plain values."""
    return {
        "w": np.full(150_000, number, np.float64),
        "s": np.full(5, number),
        "n": number,
        "frozen": np.ones(150_000),
    }


def same(found: Any, number: int) -> bool:
    """Whether that is the tree of a step."""
    return (
        found["n"] == number
        and bool((found["w"] == number).all())
        and found["w"].shape == (150_000,)
        and found["s"].tolist() == [number] * 5
        and bool((found["frozen"] == 1).all())
    )


def prepared(run: Path) -> None:
    """A run with steps 1 and 2, and a checkpoint beside it to merge into."""
    with CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, tree(step)).result()
    ckptmgr.save(run.with_name("merged"), {"a": np.full(150_000, 7.0), "b": 7})


def save(run: Path) -> None:
    """A step more."""
    with CheckpointManager(run) as manager:
        manager.save(3, tree(3)).result()


def incremental(run: Path) -> None:
    """A step more, a part of which is linked."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(3, tree(3)).result()


def overwrite(run: Path) -> None:
    """Step 2 anew, as the tree of step 4."""
    with CheckpointManager(run) as manager:
        manager.save(2, tree(4), overwrite=True).result()


def retain(run: Path) -> None:
    """A step more, whereupon the others go."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(3, tree(3)).result()


def annotate(run: Path) -> None:
    """A word more of step 1, and a pin."""
    with CheckpointManager(run) as manager:
        manager.annotate(1, metrics={"score": 1.0})
        manager.pin(1)


def merge(run: Path) -> None:
    """A leaf more in the checkpoint beside the run."""
    ckptmgr.save(run.with_name("merged"), {"c": np.full(150_000, 8.0)}, merge=True)


OPERATIONS: dict[str, Callable[[Path], None]] = {
    operation.__name__: operation
    for operation in (save, incremental, overwrite, retain, annotate, merge)
}


def check(run: Path, *, acknowledged: bool, operation: str) -> None:
    """What must hold after an operation that was, or was not, acknowledged; ends on a good save.

    Every step there is is whole; what was acknowledged is there; the next opening sweeps what
    was left and the next save works.
    """
    with CheckpointManager(run) as manager:
        steps = manager.all_steps()
        assert manager._catalog.damaged == {}
        for step in steps:
            found = manager.restore(step)
            assert same(found, step) or (operation == "overwrite" and step == 2 and same(found, 4))
            assert manager.verify(step).ok
        if operation == "overwrite":
            assert 2 in steps
            assert not acknowledged or same(manager.restore(2), 4)
        if operation in ("save", "incremental", "retain"):
            assert not acknowledged or 3 in steps
        assert operation == "retain" or {1, 2} <= set(steps)
        assert max(steps) >= 2  # what is newest is never lost
        if operation == "annotate" and acknowledged:
            info = manager.info(1)
            assert (info.metrics, info.pinned) == ({"score": 1.0}, True)
        manager.save(9, tree(9)).result()
        assert same(manager.restore(), 9)
    left = [name for name in os.listdir(run) if name.startswith((".tmp", ".trash"))]
    assert left == [], left
    merged = ckptmgr.load(run.with_name("merged"))
    assert (merged["b"], merged["a"].tolist()[:2]) == (7, [7.0, 7.0])
    if operation == "merge" and acknowledged:
        assert merged["c"].tolist()[:2] == [8.0, 8.0]


def victim(run: str, operation: str, at: int) -> None:
    """An operation in a process of its own that is killed at its n-th call."""
    calls = Calls(Path(run).parent, at, killing)
    with calls.watched():
        OPERATIONS[operation](Path(run))
    os._exit(0)  # jax hangs at the exit of a forked child


def endless(run: str, log: str) -> None:
    """Save step after step, telling of each that is acknowledged, until killed."""
    with CheckpointManager(run, keep=KeepLast(2)) as manager:
        step = manager.latest_step() or 0
        with open(log, "a", buffering=1) as told:
            while True:
                step += 1
                manager.save(step, tree(step)).result()
                told.write(f"{step}\n")
