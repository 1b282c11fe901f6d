"""The golden checkpoint of format 1 loads, whatever becomes of the code."""

from __future__ import annotations

from pathlib import Path

import ckptmgr
from tests.golden.make import golden
from tests.trees import assert_same

FORMAT_1 = Path(__file__).parent / "golden" / "format-1"


def test_format_1_loads() -> None:
    """Every leaf, the metrics and the metadata."""
    with ckptmgr.CheckpointManager(FORMAT_1, read_only=True) as manager:
        assert_same(manager.restore(7), golden())
        info = manager.info(7)
        assert (info.metrics, info.metadata, info.leaves) == ({"loss": 0.5}, {"golden": 1}, 25)
