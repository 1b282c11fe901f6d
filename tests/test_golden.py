"""The golden checkpoints of format 1 load, whatever becomes of the code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ckptmgr
from tests.golden.make import golden, leaves
from tests.trees import assert_same

GOLDEN = Path(__file__).parent / "golden"


def test_format_1_loads() -> None:
    """Every leaf, the metrics and the metadata."""
    with ckptmgr.CheckpointManager(GOLDEN / "format-1", read_only=True) as manager:
        assert_same(manager.restore(7), golden())
        info = manager.info(7)
        assert (info.metrics, info.metadata, info.leaves) == ({"loss": 0.5}, {"golden": 1}, 25)


def test_what_two_processes_saved_loads() -> None:
    """Parts of arrays from the packs of both; what was each one's own is shown, and left out."""
    path = GOLDEN / "format-1-processes"
    found = ckptmgr.load(path, select=["parts", "chunks", "copies", "host"])
    assert found["parts"].tolist() == np.arange(32).reshape(8, 4).tolist()
    assert found["chunks"].tolist() == np.arange(64).reshape(8, 8).tolist()
    assert (found["copies"].tolist(), found["host"].tolist()) == ([1] * 5, [0, 1, 2])
    own = ckptmgr.load_structure(path)["own"].value
    assert [(one[0], one[1].shape) for one in own] == [(int, (2,)), (int, (3,))]


def test_keys_registered_classes_and_codecs_load() -> None:
    """And what was merged."""
    assert_same(ckptmgr.load(GOLDEN / "format-1-leaves"), leaves())
