"""Saving and loading one tree at a path."""

from __future__ import annotations

from pathlib import Path

import anyio
import jax.numpy as jnp
import numpy as np
import pytest

import ckptmgr
from ckptmgr import CheckpointError, DamagedStep, NoSuchStep, StepExists
from ckptmgr.storage.local import LocalStorage
from tests.trees import assert_same, common


def test_a_tree_is_saved_at_a_path_and_loaded_from_it(tmp_path: Path) -> None:
    """By itself and through like."""
    info = ckptmgr.save(tmp_path / "tree", common(), metadata={"who": "me"})
    assert (info.step, info.metadata) == (None, {"who": "me"})
    assert_same(ckptmgr.load(tmp_path / "tree"), common())
    assert_same(ckptmgr.load(tmp_path / "tree", like=common()), common())


def test_a_run_loads_as_its_newest_step_and_a_step_by_its_path(run: Path) -> None:
    """A step directory is a whole checkpoint by itself."""
    with ckptmgr.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"n": step}).result()
    assert ckptmgr.load(run) == {"n": 2}
    assert ckptmgr.load(run / "step-00000001") == {"n": 1}


def test_an_existing_path_is_replaced_only_when_told_and_only_a_checkpoint(tmp_path: Path) -> None:
    """Nothing that somebody else wrote is touched."""
    ckptmgr.save(tmp_path / "tree", {"n": 1})
    with pytest.raises(StepExists, match="overwrite=True"):
        ckptmgr.save(tmp_path / "tree", {"n": 2})
    ckptmgr.save(tmp_path / "tree", {"n": 2}, overwrite=True)
    assert ckptmgr.load(tmp_path / "tree") == {"n": 2}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"cat")
    with pytest.raises(StepExists, match="no checkpoint"):
        ckptmgr.save(tmp_path / "photos", {"n": 2}, overwrite=True)
    assert (tmp_path / "photos" / "cat.png").read_bytes() == b"cat"


def test_a_failed_overwrite_keeps_what_was_there(tmp_path: Path) -> None:
    """And leaves nothing beside it."""
    ckptmgr.save(tmp_path / "tree", {"n": 1})
    with pytest.raises(CheckpointError):
        ckptmgr.save(tmp_path / "tree", {"n": len}, overwrite=True)
    assert ckptmgr.load(tmp_path / "tree") == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_async_forms_are_awaited_in_any_loop(tmp_path: Path, backend: str) -> None:
    """From inside a running one, as in a notebook."""
    tree = {"w": np.arange(10), "v": jnp.ones(3)}

    async def main() -> None:
        await ckptmgr.save_async(tmp_path / "tree", tree)
        assert_same(await ckptmgr.load_async(tmp_path / "tree"), tree)
        assert_same(ckptmgr.load(tmp_path / "tree"), tree)

    anyio.run(main, backend=backend)


def test_what_is_no_checkpoint_is_no_step(tmp_path: Path) -> None:
    """Missing, empty, or a file that was cut."""
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(NoSuchStep):
            ckptmgr.load(path)
    ckptmgr.save(tmp_path / "tree", {"n": 1})
    (tmp_path / "tree" / "checkpoint.json").write_bytes(b"{")
    with pytest.raises(DamagedStep):
        ckptmgr.load(tmp_path / "tree")


def test_a_checkpoint_that_is_replaced_while_it_is_looked_at_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is shown."""
    ckptmgr.save(tmp_path / "tree", {"n": 1})
    real, left = LocalStorage.read, ["once"]

    def read(storage: LocalStorage, key: str, limit: int) -> bytes:
        data = real(storage, key, limit)
        if key.endswith("checkpoint.json") and left:
            left.clear()
            ckptmgr.save(tmp_path / "tree", {"n": 1, "m": "x"}, overwrite=True)
        return data

    monkeypatch.setattr(LocalStorage, "read", read)
    assert ckptmgr.load_structure(tmp_path / "tree") == {"n": int, "m": str}
