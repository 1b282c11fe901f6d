"""Costs as counts: files, syncs and reads, which do not swing with the disk."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest

from ckptmgr import CheckpointManager
from ckptmgr.storage import rename

NAMES = ("fsync", "fdatasync", "preadv", "writev")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store calls the system."""
    counted: Counter[str] = Counter()

    def counting(where: ModuleType, name: str, kind: str) -> None:
        real = getattr(where, name)

        def call(*arguments: object) -> object:
            # The status is written once a second at the most, by a thread beside the saves.
            counted[kind] += not str(arguments[0]).endswith(".status.json.new")
            return real(*arguments)

        monkeypatch.setattr(where, name, call)

    for name in NAMES:
        counting(os, name, name)
    counting(os, "pread", "preadv")
    counting(rename, "renameat2", "rename")
    return counted


@pytest.mark.parametrize("leaves", [10, 5000])
def test_small_leaves_cost_no_files_syncs_or_reads_of_their_own(
    run: Path, calls: Counter[str], leaves: int
) -> None:
    """A pack, its metadata, the manifest and the record, however many leaves."""
    with CheckpointManager(run) as manager:
        calls.clear()
        manager.save(0, [np.full(16, i, np.float32) for i in range(leaves)]).result()
        assert calls == {"writev": 4, "fdatasync": 4, "fsync": 4, "rename": 1}
        calls.clear()
        manager.restore(0)
        assert calls == {"preadv": 4}  # record, manifest, pack and its metadata


def test_a_large_array_costs_a_file_a_chunk_and_one_directory(
    run: Path, calls: Counter[str]
) -> None:
    """40 MiB: three chunks, its metadata, the group's, the manifest and the record."""
    with CheckpointManager(run) as manager:
        calls.clear()
        manager.save(0, {"w": jnp.ones((10, 1024, 1024))}).result()
        assert calls["fdatasync"] == 3 + 4
        assert calls["fsync"] == 4  # its directory, arrays, the step, the run
        calls.clear()
        manager.restore(0)
        assert calls == {"preadv": 2 + 40 + 2}  # record, manifest, MiB by MiB, metadata


def test_a_save_writes_each_byte_once(run: Path) -> None:
    """Nothing but zeros up to a chunk's edge, checksums and metadata beside it."""
    tree = {"w": jnp.ones((10, 1024, 1024)), "small": [jnp.ones(16)] * 100}
    with CheckpointManager(run) as manager:
        info = manager.save(0, tree).result()
        assert info is not None
        written = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        assert info.nbytes == 40 * 1024**2 + 6400
        # 10 rows in three slabs of four: two rows of zeros.
        assert written < info.nbytes + 2 * 4 * 1024**2 + 64 * 1024
