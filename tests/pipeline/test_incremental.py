"""Incremental saves: what has not changed is linked, and every step stays whole by itself."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager, KeepLast, LeafOptions, MemoryStorage
from ckptmgr.storage.attempt import MOST_LINKS
from tests.multiprocess.launch import launch


def tree(**changed: Any) -> dict[str, Any]:
    """Large arrays and small ones, as they were but for what is given."""
    large = {f"large{i}": np.full((300, 1000), float(i)) for i in range(9)}
    small = {f"small{i}": np.full(100, i) for i in range(5)}
    return {**large, **small, "n": 1, **changed}


def files(run: Path, step: int) -> dict[str, os.stat_result]:
    """The data files of a step, by their paths in it."""
    top = run / f"step-{step:08d}"
    found = [*top.glob("arrays/*/c*"), *top.glob("packs/*/c*")]
    return {str(file.relative_to(top)): file.stat() for file in found}


def written(run: Path, step: int) -> list[str]:
    """Those that no other step has."""
    return sorted(path for path, state in files(run, step).items() if state.st_nlink == 1)


def same(found: Any, wanted: Any) -> bool:
    """Whether two trees are equal."""
    return all(np.array_equal(found[name], value) for name, value in wanted.items())


def test_only_what_changed_is_written(run: Path) -> None:
    """A tenth of the bytes, of ten arrays; a pack counts as one."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(1, tree()).result()
        manager.save(2, tree(large3=np.zeros((300, 1000)))).result()
        assert written(run, 2) == ["arrays/large3/c.0.0"]
        sizes = {path: state.st_size for path, state in files(run, 2).items()}
        assert sizes["arrays/large3/c.0.0"] < 0.12 * sum(sizes.values())
        manager.save(3, tree(large3=np.zeros((300, 1000)), small2=np.ones(100))).result()
        assert written(run, 3) == ["packs/0/c.0"]
        manager.save(4, tree(large3=np.zeros((300, 1000)), small2=np.ones(100), n=2)).result()
        assert written(run, 4) == []
        assert all(manager.verify(step).ok for step in (1, 2, 3, 4))
        assert same(
            manager.restore(4), tree(large3=np.zeros((300, 1000)), small2=np.ones(100), n=2)
        )
    with CheckpointManager(run) as manager:  # without it all is written
        manager.save(5, tree(n=2)).result()
        assert written(run, 5) == sorted(files(run, 5))
    with CheckpointManager(run, incremental=True) as manager:  # and it goes on from any step
        manager.save(6, tree(n=3)).result()
        assert written(run, 6) == []


@pytest.mark.parametrize("gone", [[1], [2], [1, 2], [3], [1, 3]])
def test_the_deletion_of_other_steps_harms_none(run: Path, gone: list[int]) -> None:
    """Whichever they are."""
    with CheckpointManager(run, incremental=True) as manager:
        for step in (1, 2, 3):
            manager.save(step, tree(n=step)).result()
        for step in gone:
            manager.delete(step)
        for step in {1, 2, 3} - set(gone):
            assert manager.verify(step).ok
            assert same(manager.restore(step), tree(n=step))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (np.zeros((400, 500)), np.zeros((500, 400))),
        (np.zeros(200_000), np.zeros(200_000, np.int64)),
        (np.zeros(200_000), np.zeros(200_001)),
        (np.zeros(200_000), np.zeros(10)),
        (np.zeros(10), np.zeros(200_000)),
        (np.zeros(10), np.zeros(11)),
        (np.zeros(10), np.zeros(10, np.int64)),
    ],
)
def test_what_lies_otherwise_is_written(run: Path, before: np.ndarray, now: np.ndarray) -> None:
    """Though all of its bytes are equal."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(1, {"a": before, "b": np.ones(10)}).result()
        manager.save(2, {"a": now, "b": np.ones(10)}).result()
        assert manager.verify(2).ok
        found = manager.restore(2)["a"]
        assert (found.dtype, found.shape) == (now.dtype, now.shape)
        assert same(manager.restore(1), {"a": before, "b": np.ones(10)})


@pytest.mark.parametrize("options", [{"compression": "zstd:3"}, {"write_chunk": (100, 1000)}])
def test_chunks_and_codecs_of_ones_own_are_linked_too(run: Path, options: dict[str, Any]) -> None:
    """By what they hold before it is compressed; stored otherwise they are written."""
    rules = [("large*", LeafOptions(**options))]
    with CheckpointManager(run, incremental=True, leaf_options=rules) as manager:
        manager.save(1, tree()).result()
        changed = tree()
        changed["large3"][150] = 7
        manager.save(2, changed).result()
        chunk = "c.1.0" if "write_chunk" in options else "c.0.0"
        assert written(run, 2) == [f"arrays/large3/{chunk}"]
        assert same(manager.restore(2), changed)
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(3, changed).result()
        assert written(run, 3) == [path for path in sorted(files(run, 3)) if "large" in path]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_where_nothing_can_be_linked_all_is_written(
    run: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so once."""

    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr("absl.logging._absl_logger.propagate", True)
    with CheckpointManager(run, incremental=True) as manager:
        for step in (1, 2, 3):
            manager.save(step, tree()).result()
        assert written(run, 3) == sorted(files(run, 3))
        assert manager.verify(3).ok
    assert caplog.text.count("none can be linked") == 1


def test_a_file_that_is_not_as_long_as_it_must_be_is_not_linked(run: Path) -> None:
    """The new step is whole, whatever became of the former."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(1, tree()).result()
        chunk = run / "step-00000001" / "arrays" / "large0" / "c.0.0"
        os.truncate(chunk, 100)
        manager.save(2, tree()).result()
        assert written(run, 2) == ["arrays/large0/c.0.0"]
        assert manager.verify(2).ok
        assert not manager.verify(1).ok


def test_a_directory_that_became_a_link_is_not_linked_through(run: Path, tmp_path: Path) -> None:
    """It costs a file's writing, not the save."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(1, tree()).result()
        array = run / "step-00000001" / "arrays" / "large0"
        array.rename(tmp_path / "outside")
        array.symlink_to(tmp_path / "outside")
        manager.save(2, tree()).result()
        assert written(run, 2) == ["arrays/large0/c.0.0"]
        assert manager.verify(2).ok


def test_a_step_whose_manifest_is_damaged_lends_nothing(run: Path) -> None:
    """Neither does one that is gone."""
    with CheckpointManager(run, incremental=True) as manager:
        manager.save(1, tree()).result()
        manifest = run / "step-00000001" / "tree.json"
        manifest.write_bytes(manifest.read_bytes().replace(b"large0", b"large9"))
        manager.save(2, tree()).result()
        assert written(run, 2) == sorted(files(run, 2))
        (run / "step-00000002").rename(run / "elsewhere")
        manager.save(3, tree()).result()
        assert written(run, 3) == sorted(files(run, 3))


def test_a_file_that_many_steps_share_is_written_anew(run: Path) -> None:
    """So that one bad sector does not damage them all."""
    with CheckpointManager(run, incremental=True) as manager:
        for step in range(MOST_LINKS + 5):
            manager.save(step, {"a": np.ones(10)}).result()
        links = [files(run, step)["packs/0/c.0"].st_nlink for step in manager.all_steps()]
    assert links == [MOST_LINKS] * MOST_LINKS + [5] * 5


def test_the_newest_may_be_overwritten_and_the_only_one_kept(run: Path) -> None:
    """The step that lends is free again before the new one takes its place."""
    with CheckpointManager(run, incremental=True, keep=KeepLast(1)) as manager:
        manager.save(1, tree()).result()
        before = files(run, 1)
        manager.save(1, tree(n=2), overwrite=True).result()
        assert {p: s.st_ino for p, s in files(run, 1).items()} == {
            p: s.st_ino for p, s in before.items()
        }
        for step in (2, 3):
            manager.save(step, tree(n=step)).result()
        manager.wait()
        assert manager.all_steps() == [3]
        assert written(run, 3) == sorted(before)  # it alone has them by now
        assert same(manager.restore(), tree(n=3))


def test_trees_that_change_at_random_come_back(run: Path) -> None:
    """Sharded, replicated and plain; in a store of memory too."""
    chance = random.Random(0)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    specs = [PartitionSpec(*spec) for spec in [("x",), ("y", "x"), (), (("x", "y"),)]]
    for storage in (None, MemoryStorage()):
        state: dict[str, Any] = {}
        with CheckpointManager(
            run, incremental=True, storage=storage, pack_below="64KiB", keep=KeepLast(3)
        ) as manager:
            for step in range(25):
                for name in chance.sample("abcdefgh", 2):
                    place = NamedSharding(mesh, chance.choice(specs))
                    value = jnp.full((8 * chance.choice([1, 2, 100]), 80), float(step))
                    state[name] = jax.device_put(value, place)
                manager.save(step, state).result()
                if step % 5 == 4:
                    found = manager.restore()
                    assert found.keys() == state.keys()
                    for name, array in state.items():
                        assert np.array_equal(found[name], array)
                        assert found[name].sharding.is_equivalent_to(array.sharding, 2)
                    assert manager.verify().ok


def test_several_processes_link_each_its_own(tmp_path: Path) -> None:
    """What each would have written."""
    said = launch("incremental", 2, tmp_path / "run")
    assert said == [{"equal": True}] * 2
    assert written(tmp_path / "run", 2) == ["arrays/changed/c.0.0", "arrays/changed/c.1.0"]
    assert len(files(tmp_path / "run", 2)) > 6
