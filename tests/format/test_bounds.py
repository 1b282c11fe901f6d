"""What is written is held to the bounds of what is read: a committed step can be read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptmgr import CheckpointManager, UnsupportedLeaf
from ckptmgr.format import bounds


def test_more_leaves_have_room_where_their_data_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest above the room of any is read again where it was written."""
    with CheckpointManager(run) as manager:
        tree = [np.full(1024, n % 200, np.uint8) for n in range(500)]
        size = manager.save(1, tree).result()
        assert size is not None
        manifest = (run / "step-00000001" / "tree.json").stat().st_size
        monkeypatch.setattr(bounds, "_ROOM", 5 * manifest)  # less than it costs, more than it is
        assert bounds.cost((run / "step-00000001" / "tree.json").read_bytes()) > bounds.room()
        assert len(manager.restore(1)) == 500
        manager.save(2, tree).result()
        assert len(manager.restore(2)) == 500


def test_leaves_without_data_are_refused_before_they_are_committed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader would refuse them."""
    monkeypatch.setattr(bounds, "_ROOM", 50_000)
    with CheckpointManager(run) as manager:
        with pytest.raises(UnsupportedLeaf, match="stack them"):
            manager.save(1, list(range(1000))).result()
        assert manager.all_steps() == []
