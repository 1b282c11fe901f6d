"""The service outlives whatever fails in it, and nobody waits for one that has died."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import ckptmgr
from ckptmgr import CheckpointError, CheckpointManager, KeepLast, MemoryStorage


class Exits:
    """A leaf whose decoder wants to end the process."""


ckptmgr.register_leaf(
    Exits, name="tests.exits", encode=lambda _: None, decode=lambda _: sys.exit("no")
)


def test_a_decoder_that_exits_ends_neither_its_load_nor_the_service(run: Path) -> None:
    """It is an error like others."""
    with CheckpointManager(run) as manager:
        manager.save(0, [Exits()]).result()
        with pytest.raises(CheckpointError, match="SystemExit"):
            manager.restore()
        manager.save(1, {"a": 1}).result()
        assert manager.restore() == {"a": 1}


def test_a_service_that_dies_leaves_nobody_waiting(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits fails, what comes is refused."""

    async def dies(*_: object) -> None:
        sys.exit("dead")

    manager = CheckpointManager(run)
    monkeypatch.setattr(manager._service, "_save", dies)
    for step in range(2):
        with pytest.raises(CheckpointError, match=r"service ended|was closed"):
            manager.save(step, {"a": 1}).result(timeout=30)
    manager.close()


def test_a_store_that_raises_anything_fails_the_save(run: Path) -> None:
    """An IndexError is no sign that all is done."""

    class Storage(MemoryStorage):
        def attempt(self, name: str) -> contextlib.AbstractContextManager[Any]:
            attempt = super().attempt(name).__enter__()
            put = attempt.put

            def fails(path: str, parts: Any) -> None:
                if path.endswith("zarr.json"):
                    raise IndexError
                put(path, parts)

            attempt.put = fails  # type: ignore[method-assign]  # to break it
            return contextlib.nullcontext(attempt)

    with CheckpointManager(run, storage=Storage(), tolerated_failures=9) as manager:
        with pytest.raises(CheckpointError, match="IndexError"):
            manager.save(0, {"a": jnp.ones(3)}).result()
        assert manager.all_steps() == []


def test_a_step_that_cannot_be_deleted_stays_one(run: Path) -> None:
    """As it will be one when the directory is opened again."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(1, {"a": 1}).result()
        (run / "step-00000001" / "notes.txt").write_text("mine")
        manager.save(2, {"a": 2}).result()
        manager.wait()
        manager.save(3, {"a": 3}).result()
    with CheckpointManager(run, read_only=True) as manager:
        assert manager.all_steps() == [1, 3]
    assert (run / "step-00000001" / "notes.txt").read_text() == "mine"
