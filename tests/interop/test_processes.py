"""What several processes of Orbax have written together."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import ckptmgr
from tests.multiprocess.launch import launch
from tests.multiprocess.programs import values


def test_each_process_has_written_into_a_directory_of_its_own(tmp_path: Path) -> None:
    """Read by as many processes, and by one."""
    said = launch("orbax", 2, tmp_path / "run", devices=2)
    for one in said:
        assert all(one["equal"].values()), one["equal"]
        assert one["resumed"] == [3, True]
        assert one["directories"][-2:] == ["ocdbt.process_0", "ocdbt.process_1"]
    found = ckptmgr.load(tmp_path / "run")
    for name, array in values().items():
        if array.size:
            assert np.asarray(found[name]).tobytes() == array.tobytes(), name
            assert isinstance(found[name], jnp.ndarray)
