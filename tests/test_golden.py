"""The golden checkpoints of format 1 load, whatever becomes of the code."""

from __future__ import annotations

from pathlib import Path

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


def test_keys_registered_classes_and_codecs_load() -> None:
    """And what was merged."""
    assert_same(ckptmgr.load(GOLDEN / "format-1-leaves"), leaves())
