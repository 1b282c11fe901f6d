"""The manager: what it promises a trainer."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ckptmgr import (
    At,
    ByteLimiter,
    CheckpointError,
    CheckpointManager,
    DamagedStep,
    DirectoryLocked,
    EarlierSaveFailed,
    Every,
    InvalidOption,
    KeepBest,
    KeepEvery,
    KeepLast,
    ManagerClosed,
    MemoryStorage,
    MissingFile,
    NoSpace,
    NoSuchStep,
    State,
    StepExists,
    StepHeld,
    StorageError,
    TreeMismatch,
    UnsupportedLeaf,
    WaitTimeout,
    WhenIdle,
)
from ckptmgr.retention import Retention, Steps
from ckptmgr.storage.memory import MemoryAttempt
from tests.trees import Pair, assert_same, common, entries

SMALL = {"w": jnp.arange(4.0)}


class Gate(MemoryStorage):
    """A store whose data waits until the test lets it through, or fails it."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.entered = threading.Event()
        self.fails: Exception | None = None

    def attempt(self, name: str) -> AbstractContextManager[MemoryAttempt]:
        """Wait, then begin, or fail."""
        self.entered.set()
        assert self.open.wait(30)
        if self.fails:
            raise self.fails
        return super().attempt(name)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate, opened at the end so that nothing hangs."""
    gate = Gate()
    yield gate
    gate.open.set()


# What comes back


@pytest.mark.parametrize("pack_below", [0, "1MiB"])
def test_a_tree_of_everything_comes_back_exactly(run: Path, pack_below: int | str) -> None:
    """By itself and through like, from packs and from arrays of their own."""
    with CheckpointManager(run, pack_below=pack_below) as manager:
        info = manager.save(3, common(), metrics={"loss": jnp.float32(2)}).result()
        assert info is not None
        assert (info.step, info.metrics) == (3, {"loss": 2.0})
        assert_same(manager.restore(3), common())
        assert_same(manager.restore(like=common()), common())


@pytest.mark.parametrize("tree", [{}, [], (), None, 3, jnp.ones(2), [None], Pair(1, None), "s"])
def test_small_and_empty_trees_come_back(run: Path, tree: object) -> None:
    """A bare array and a tree without arrays too."""
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        assert_same(manager.restore(), tree)


def test_a_sharded_array_comes_back_with_its_sharding(run: Path) -> None:
    """Large and small, partly replicated and not."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    tree = {
        f"{n} {spec}": jax.device_put(
            jnp.arange(n * 64.0).reshape(n, 64), NamedSharding(mesh, PartitionSpec(*spec))
        )
        for n in (16, 8192)
        for spec in [("x", "y"), ("x",), (None, "y"), (("x", "y"),), ()]
    }
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        for back in (manager.restore(), manager.restore(like=tree)):
            assert_same(back, tree)
            shardings = jax.tree.map(lambda leaf: leaf.sharding, back)
            assert shardings == jax.tree.map(lambda leaf: leaf.sharding, tree)


def test_each_leaf_takes_the_type_dtype_and_sharding_of_like(run: Path) -> None:
    """Cast by the rule that was given."""
    there = SingleDeviceSharding(jax.devices()[3])
    with CheckpointManager(run) as manager:
        manager.save(0, {"a": jnp.ones(4), "b": 4, "c": np.int32(5), "d": jnp.ones(2)}).result()
        back = manager.restore(
            like={
                "a": jax.ShapeDtypeStruct((4,), jnp.bfloat16, sharding=there),
                "b": jnp.float32(0),
                "c": 0.0,
                "d": np.zeros(2, np.float64),
            }
        )
        assert back["a"].dtype == jnp.bfloat16
        assert back["a"].sharding == there
        assert_same(
            {k: v for k, v in back.items() if k != "a"},
            {"b": jnp.float32(4), "c": 5.0, "d": np.ones(2, np.float64)},
        )


def test_on_the_host_it_comes_back_as_numpy_and_may_be_written(run: Path) -> None:
    """Each array for itself."""
    with CheckpointManager(run) as manager:
        manager.save(0, [jnp.ones(4), jnp.zeros((600, 600))]).result()
        small, large = manager.restore(shardings="numpy")
        small[0], large[0, 0] = 5, 7
        assert (type(small), small[1], large[0, 1]) == (np.ndarray, 1, 0)


def test_one_sharding_or_a_prefix_tree_overrides_the_saved_ones(run: Path) -> None:
    """None in the prefix leaves a leaf as it was saved."""
    there = SingleDeviceSharding(jax.devices()[5])
    with CheckpointManager(run) as manager:
        manager.save(0, {"a": {"x": jnp.ones(2), "y": jnp.ones(3)}, "b": jnp.ones(4)}).result()
        back = manager.restore(shardings={"a": there, "b": None})
        assert [leaf.sharding == there for leaf in jax.tree.leaves(back)] == [True, True, False]
        assert all(
            leaf.sharding == there for leaf in jax.tree.leaves(manager.restore(shardings=there))
        )


def test_what_jax_would_narrow_silently_is_an_error(run: Path) -> None:
    """With the ways out."""
    with CheckpointManager(run) as manager:
        with jax.enable_x64(True):
            manager.save(0, {"w": jnp.ones(4, jnp.float64)}).result()
            assert manager.restore()["w"].dtype == jnp.float64
        with pytest.raises(TreeMismatch, match="jax_enable_x64"):
            manager.restore()
        assert manager.restore(shardings="numpy")["w"].dtype == np.float64
        assert manager.restore(like={"w": jnp.ones(4)})["w"].dtype == jnp.float32


def test_every_difference_to_like_is_told_at_once(run: Path) -> None:
    """Both sides of each."""
    saved = {"shape": jnp.ones(4), "kind": jnp.ones(2), "gone": 1, "text": "a"}
    like = {"shape": jnp.ones(5), "kind": jnp.ones(2, jnp.int32), "new": jnp.ones(1), "text": 3}
    with CheckpointManager(run) as manager:
        manager.save(0, saved).result()
        with pytest.raises(TreeMismatch) as caught:
            manager.restore(like=like)
    for part in (
        "'shape': saved float32[4], asked for float32[5]",
        "'kind': saved float32[2], asked for int32[2]",
        "'gone': saved int, not asked for",
        "'new': asked for float32[1], not saved",
        "'text': saved str, asked for int",
    ):
        assert part in str(caught.value)


# Snapshots


def test_two_hundred_trees_that_are_destroyed_right_after_save_come_back(run: Path) -> None:
    """Donated, deleted or overwritten: the checkpoint holds the old values."""
    donate = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    random = np.random.default_rng(0)
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        for trial in range(200):
            rows = int(random.integers(1, 900))
            values = random.standard_normal((3, rows, 700), np.float32)
            tree = {
                "donated": jnp.array(values[0]),
                "deleted": jnp.array(values[1]),
                "host": values[2].copy(),
            }
            jax.block_until_ready(tree)
            future = manager.save(trial, tree)
            tree["donated"] = donate(tree["donated"])
            tree["deleted"].delete()
            tree["host"][...] = -1
            future.result()
            back = manager.restore(trial, shardings="numpy")
            for name, value in zip(("donated", "deleted", "host"), values, strict=True):
                assert np.array_equal(back[name], value), (trial, name)


@pytest.mark.parametrize("borrow", [True, False])
def test_a_tree_larger_than_the_limit_goes_through_it(run: Path, *, borrow: bool) -> None:
    """Copies never exceed it; borrowed views fall to nothing."""
    tree = {"jax": jnp.ones((4096, 4096)), "numpy": np.ones((4096, 4096), np.float32)}
    limiter = ByteLimiter("32MiB")
    with CheckpointManager(run, in_flight_bytes=limiter, borrow=borrow) as manager:
        manager.save(0, tree).result()
        statistics = manager.statistics()
        assert statistics.peak_bytes <= 32 << 20
        assert (statistics.used_bytes, statistics.borrowed_bytes) == (0, 0)
        assert_same(manager.restore(0), tree)


def test_large_jax_arrays_are_viewed_not_copied(gate: Gate) -> None:
    """Nothing is allocated for them, and what is borrowed is counted until it is written."""
    tree = [jnp.ones((1024, 1024)) for _ in range(8)]
    with CheckpointManager("run", storage=gate) as manager:
        future = manager.save(0, tree)
        assert manager.statistics().borrowed_bytes == 8 << 22
        assert manager.statistics().peak_bytes == 0
        gate.open.set()
        future.result()
        assert manager.statistics().borrowed_bytes == 0


# Busy


def test_forty_saves_from_several_threads_are_all_done(run: Path) -> None:
    """None deadlocks."""
    with CheckpointManager(run) as manager:
        threads = [
            threading.Thread(
                target=lambda first=first: [
                    manager.save(step, SMALL) for step in range(first, 40, 4)
                ]
            )
            for first in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manager.wait()
        assert manager.all_steps() == list(range(40))


def test_skip_gives_a_future_without_a_result(gate: Gate) -> None:
    """Nothing of it is saved; one waits, the next is skipped."""
    with CheckpointManager("run", storage=gate, on_busy="skip") as manager:
        manager.save(0, SMALL)
        gate.entered.wait()
        manager.save(1, SMALL)
        skipped = manager.save(2, SMALL)
        assert (skipped.state, skipped.result()) == (State.SKIPPED, None)
        gate.open.set()
        manager.wait()
        assert manager.all_steps() == [0, 1]


def test_replace_cancels_the_one_that_waits(gate: Gate) -> None:
    """The newest takes its place."""
    with CheckpointManager("run", storage=gate, on_busy="replace") as manager:
        manager.save(0, SMALL)
        gate.entered.wait()
        replaced = manager.save(1, SMALL)
        manager.save(2, SMALL)
        assert replaced.cancelled()
        gate.open.set()
        manager.wait()
        assert manager.all_steps() == [0, 2]


def test_wait_blocks_until_there_is_a_place(gate: Gate) -> None:
    """Without a place to wait, until the one being written is done."""
    with CheckpointManager("run", storage=gate, max_pending=0) as manager:
        manager.save(0, SMALL)
        gate.entered.wait()
        thread = threading.Thread(target=lambda: manager.save(1, SMALL).result())
        thread.start()
        assert manager.pending() == [0]
        gate.open.set()
        thread.join()
        assert manager.all_steps() == [0, 1]


def test_a_cancelled_save_commits_nothing_and_the_next_one_works(gate: Gate) -> None:
    """Queued or being written."""
    with CheckpointManager("run", storage=gate) as manager:
        writing = manager.save(0, SMALL)
        gate.entered.wait()
        queued = manager.save(1, SMALL)
        assert writing.cancel()
        assert queued.cancel()
        gate.open.set()
        manager.wait()
        manager.save(2, SMALL).result()
        assert manager.all_steps() == [2]
        assert manager.statistics().used_bytes == 0


def test_progress_moves_while_a_save_runs(run: Path) -> None:
    """Bytes and leaves, up to all of them."""
    tree = [jnp.ones((1024, 1024)) for _ in range(6)] + [1]
    seen = []
    with CheckpointManager(run) as manager:
        future = manager.save(0, tree)
        while not future.done():
            seen.append(future.progress)
        last = future.progress
    assert last.bytes_done == last.bytes_total == 6 << 22
    assert last.leaves_done == last.leaves_total == 7
    assert sorted(p.bytes_done for p in seen) == [p.bytes_done for p in seen]


def test_a_saves_structure_is_known_at_once(gate: Gate) -> None:
    """And a load's once its manifest has been read."""
    with CheckpointManager("run", storage=gate) as manager:
        future = manager.save(0, {"w": jnp.ones((2, 3))})
        assert future.structure == {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
        gate.open.set()
        future.result()
        load = manager.restore_async(0)
        load.result()
        assert load.structure == future.structure


# Steps


def test_an_existing_step_is_refused_at_once(run: Path) -> None:
    """Committed, queued, or on disk without this manager's doing; nothing there is touched."""
    with CheckpointManager(run) as manager:
        manager.save(1, SMALL).result()
        with pytest.raises(StepExists, match="overwrite=True"):
            manager.save(1, {"w": 2})
        shutil.copytree(run / "step-00000001", run / "step-00000007")
        before = sorted(os.walk(run / "step-00000007"))
        with pytest.raises(StepExists):
            manager.save(7, SMALL)
        manager.save(8, SMALL).result()
        assert sorted(os.walk(run / "step-00000007")) == before


def test_a_queued_step_is_refused_at_once(gate: Gate) -> None:
    """Until it is known to have failed."""
    with CheckpointManager("run", storage=gate) as manager:
        manager.save(1, SMALL)
        with pytest.raises(StepExists, match="queued"):
            manager.save(1, SMALL)
        gate.open.set()


def test_overwrite_replaces_a_step(run: Path) -> None:
    """And only then."""
    with CheckpointManager(run) as manager:
        manager.save(1, {"w": 1}).result()
        manager.save(1, {"w": 2}, overwrite=True).result()
        assert manager.restore(1) == {"w": 2}
        assert entries(run) == ["step-00000001"]


def test_retention_follows_each_commit(run: Path) -> None:
    """10, 20, 5 with the last two: 5 goes at once, and the manager can say why."""
    with CheckpointManager(run, keep=KeepLast(2)) as manager:
        for step in (10, 20, 5):
            manager.save(step, SMALL).result()
        manager.wait()
        assert (manager.all_steps(), manager.latest_step()) == ([10, 20], 20)
        assert manager.explain().deleted == {5: "not kept by KeepLast(n=2)"}
        assert manager.explain().kept[20] == ("KeepLast(n=2)", "newest")


def test_the_best_steps_stay(run: Path) -> None:
    """NaN metrics come back as NaN and never count."""
    losses = [3.0, float("nan"), 2.0, float("nan"), 1.0, 5.0]
    with CheckpointManager(run, keep=KeepBest("loss", n=2, mode="min")) as manager:
        for step, loss in enumerate(losses):
            manager.save(step, SMALL, metrics={"loss": loss}).result()
        manager.wait()
        assert manager.all_steps() == [2, 4, 5]
        assert (manager.best_step("loss", "min"), manager.best_step("loss", "max")) == (4, 5)
        with pytest.raises(NoSuchStep, match="accuracy"):
            manager.best_step("accuracy")


def test_a_step_that_is_being_read_is_not_deleted(run: Path) -> None:
    """The next pass may."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(0, SMALL).result()
        with manager.hold(0):
            manager.save(1, SMALL).result()
            manager.wait()
            assert manager.all_steps() == [0, 1]
            assert "being read or held" in manager.explain().kept[0]
        manager.save(2, SMALL).result()
        manager.wait()
        assert manager.all_steps() == [2]


def test_cadence_says_what_maybe_save_saves(run: Path) -> None:
    """And save what it is told."""
    with CheckpointManager(run, when=Every(steps=2)) as manager:
        for step in range(6):
            manager.maybe_save(step, SMALL)
        manager.wait()
        assert manager.all_steps() == [0, 2, 4]
        manager.save(5, SMALL).result()
        assert manager.all_steps() == [0, 2, 4, 5]


def test_at_and_retention_together(run: Path) -> None:
    """As one writes them."""
    keep = KeepLast(2) | KeepEvery(steps=4)
    with CheckpointManager(run, when=At({0, 2, 4, 6, 8, 10}), keep=keep) as manager:
        for step in range(11):
            manager.maybe_save(step, SMALL)
        manager.wait()
        assert manager.all_steps() == [0, 4, 8, 10]


def test_when_idle_is_due_again_after_the_commit(gate: Gate) -> None:
    """Not while one is in flight."""
    with CheckpointManager("run", storage=gate, when=WhenIdle()) as manager:
        future = manager.maybe_save(0, SMALL)
        assert future is not None
        assert [manager.maybe_save(step, SMALL) for step in (1, 2)] == [None, None]
        gate.open.set()
        manager.wait()
        assert manager.maybe_save(3, SMALL) is not None


def test_a_step_at_or_below_the_newest_is_never_due(run: Path) -> None:
    """But force saves it, unless it is there."""
    with CheckpointManager(run) as manager:
        manager.save(5, SMALL).result()
        assert not manager.should_save(5)
        assert not manager.should_save(4)
        assert manager.maybe_save(4, SMALL) is None
        assert manager.maybe_save(4, SMALL, force=True) is not None
        assert manager.maybe_save(5, SMALL, force=True) is None


def test_a_run_is_found_again_and_what_is_not_ours_is_left_alone(run: Path) -> None:
    """With its metrics and metadata; opening deletes nothing, whatever the rule."""
    with CheckpointManager(run) as manager:
        for step in range(3):
            manager.save(step, SMALL, metrics={"loss": step}, metadata={"note": [1, "x"]}).result()
    (run / "tb_logs").mkdir()
    (run / "notes.txt").write_text("mine")
    (run / "step-00000099").mkdir()  # no record: no step
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        assert manager.all_steps() == [0, 1, 2]
        assert manager.info(1).metadata == {"note": [1, "x"]}
        assert manager.resume(SMALL)[0] == 2
        manager.save(3, SMALL).result()
        manager.wait()
        assert manager.all_steps() == [3]
    assert {"tb_logs", "notes.txt", "step-00000099"} <= set(os.listdir(run))


def test_resume_starts_from_like_where_nothing_is_committed(run: Path) -> None:
    """At the default step; a step that is named must be there."""
    with CheckpointManager(run) as manager:
        assert manager.resume(SMALL) == (0, SMALL)
        assert manager.resume(SMALL, default_step=5)[0] == 5
        with pytest.raises(NoSuchStep):
            manager.resume(SMALL, step=3)
        with pytest.raises(NoSuchStep, match="nothing has been committed"):
            manager.restore()
        assert manager.latest_step() is None


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the trainer's directory becomes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with CheckpointManager("run") as manager:
        monkeypatch.chdir(tmp_path / "elsewhere")
        manager.save(0, SMALL).result()
    assert (tmp_path / "run" / "step-00000000").is_dir()


def test_commit_times_never_go_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though wall clocks do."""
    times = iter([100.0, 50.0, 200.0])
    clock = SimpleNamespace(time=lambda: next(times), perf_counter=time.perf_counter)
    monkeypatch.setattr("ckptmgr.catalog.time", clock)
    with CheckpointManager(run) as manager:
        for step in range(3):
            manager.save(step, SMALL).result()
        assert [manager.info(step).time for step in range(3)] == [100, 100, 200]


# Failures


def test_a_failed_save_is_told_once_and_costs_no_other(gate: Gate) -> None:
    """The next save queues its own work first."""
    gate.fails = StorageError("disk on fire")
    gate.open.set()
    with CheckpointManager("run", storage=gate) as manager:
        first = manager.save(0, SMALL)
        manager._service.wait()
        assert first.state is State.FAILED
        gate.fails = None
        with pytest.raises(EarlierSaveFailed, match="step 0 failed: disk on fire") as caught:
            manager.save(1, SMALL)
        assert caught.value.future is not None
        caught.value.future.result()
        manager.save(2, SMALL).result()
        assert manager.all_steps() == [1, 2]


def test_a_failure_that_was_looked_at_is_not_told_again(gate: Gate) -> None:
    """Nor one that is tolerated; but the second in a row is."""
    gate.fails = StorageError("disk on fire")
    gate.open.set()
    with CheckpointManager("run", storage=gate) as manager:
        with pytest.raises(StorageError) as caught:
            manager.save(0, SMALL).result()
        assert caught.value.step == 0
        manager.wait()
    with CheckpointManager("other", storage=gate, tolerated_failures=1) as manager:
        manager.save(0, SMALL)
        manager.wait()
        manager.save(1, SMALL)
        with pytest.raises(EarlierSaveFailed, match="step 1"):
            manager.wait()


def test_close_tells_a_failure_but_never_masks_the_blocks_own(gate: Gate) -> None:
    """Which comes first."""
    gate.fails = StorageError("disk on fire")
    gate.open.set()
    with pytest.raises(EarlierSaveFailed), CheckpointManager("run", storage=gate) as manager:
        manager.save(0, SMALL)
    with pytest.raises(ZeroDivisionError), CheckpointManager("run", storage=gate) as manager:
        manager.save(0, SMALL)
        _ = 1 / 0


def test_a_full_disk_fails_one_save_and_the_next_succeeds(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest step is the one before; no temporary directory is left."""
    real = os.writev
    with CheckpointManager(run) as manager:
        manager.save(1, SMALL).result()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(NoSpace):
            manager.save(2, SMALL).result()
        assert manager.latest_step() == 1
        monkeypatch.setattr(os, "writev", real)
        manager.wait()
        assert entries(run) == ["step-00000001"]
        manager.maybe_save(2, SMALL)
        manager.wait()
        assert manager.latest_step() == 2


def test_a_step_that_cannot_fit_is_refused_before_it_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both sizes."""
    with CheckpointManager(run) as manager:
        monkeypatch.setattr(manager._storage, "free_bytes", lambda: 10, raising=False)
        with pytest.raises(NoSpace, match="needs 16 bytes and 10 are free"):
            manager.save(0, SMALL).result()


def test_a_save_that_fails_in_the_trainers_thread_leaves_nothing(run: Path) -> None:
    """And the next save and the cadence work as before."""
    deleted = jnp.ones((1024, 1024))
    deleted.delete()
    with CheckpointManager(run, when=Every(steps=1)) as manager:
        for tree in ({"a": {"f": len}}, {"a": {"f": deleted}, "b": np.ones((2048, 2048))}):
            with pytest.raises(UnsupportedLeaf) as caught:
                manager.save(0, tree)
            assert caught.value.leaf == "a/f"
        assert (manager.pending(), entries(run)) == ([], [])
        assert manager.statistics().used_bytes == manager.statistics().borrowed_bytes == 0
        manager.maybe_save(0, SMALL)
        manager.wait()
        assert manager.all_steps() == [0]


def test_every_damaged_file_is_found_and_named(run: Path) -> None:
    """Flipped, cut, emptied, removed: an error with step and file, never other values."""
    tree = {"large": jnp.ones((600, 600)), "small": jnp.arange(4.0)}
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        files = [
            path
            for path in (run / "step-00000000").rglob("*")
            if path.is_file() and path.name not in ("zarr.json", "checkpoint.json")
        ]
        assert len(files) == 3
        for path in files:
            data = path.read_bytes()
            flipped = bytearray(data)
            flipped[5] ^= 1
            for bad in (bytes(flipped), data[:-1], data[: len(data) // 2], b"", None):
                path.unlink()
                if bad is not None:
                    path.write_bytes(bad)
                with pytest.raises(DamagedStep) as caught:
                    manager.restore(0)
                assert caught.value.step == 0
                assert caught.value.file == str(path)
                path.write_bytes(data)
        assert_same(manager.restore(0), tree)


def test_two_swapped_chunks_are_found(run: Path) -> None:
    """Though each has a good checksum of its own."""
    tree = {"w": np.random.default_rng(0).standard_normal((6000, 1000))}
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        one, other = (run / "step-00000000" / "arrays" / "w" / f"c.{i}.0" for i in range(2))
        one.rename(run / "aside")
        other.rename(one)
        (run / "aside").rename(other)
        with pytest.raises(DamagedStep, match="not the bytes saved"):
            manager.restore(0)


# Bad input


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_busy": "drop"}, "on_busy is 'wait', 'skip' or 'replace', not 'drop'"),
        ({"in_flight_bytes": "2 GB"}, "in_flight_bytes"),
        ({"in_flight_bytes": 0}, "in_flight_bytes"),
        ({"in_flight_bytes": -1}, "in_flight_bytes"),
        ({"pack_below": "2 GB"}, "pack_below"),
        ({"pack_below": "1GiB"}, "pack_below is at most 16MiB"),
        ({"max_pending": -1}, "max_pending"),
        ({"max_pending": True}, "max_pending"),
        ({"tolerated_failures": "1"}, "tolerated_failures"),
        ({"when": 100}, "when is a cadence"),
        ({"keep": 3}, "keep is a retention rule"),
    ],
)
def test_an_impossible_option_is_refused_and_nothing_is_made(
    run: Path, options: dict[str, object], text: str
) -> None:
    """Named, with what it can be."""
    with pytest.raises(InvalidOption, match=text):
        CheckpointManager(run, **options)  # type: ignore[arg-type]  # wrong on purpose
    assert not run.exists()


@pytest.mark.parametrize("directory", ["", 3, None, "ftp://host/run", "a\0b"])
def test_a_directory_that_is_none_is_refused(directory: object) -> None:
    """Nor the URL of a store."""
    with pytest.raises(InvalidOption):
        CheckpointManager(directory)  # type: ignore[arg-type]  # wrong on purpose


def test_a_missing_or_unwritable_parent_is_told_at_opening(tmp_path: Path) -> None:
    """With the directory's name."""
    with pytest.raises(MissingFile, match="parent directory") as caught:
        CheckpointManager(tmp_path / "no" / "run")
    assert caught.value.file == str(tmp_path / "no")
    with pytest.raises(StorageError):
        CheckpointManager("/proc/run")


@pytest.mark.parametrize(
    "metrics",
    [{"loss": jnp.ones(2)}, {"loss": "low"}, {"loss": None}, {1: 2.0}, [1], {"loss": 1j}],
)
def test_metrics_that_are_no_scalars_are_refused_at_once(run: Path, metrics: object) -> None:
    """By name; nothing is saved."""
    with CheckpointManager(run) as manager:
        with pytest.raises(InvalidOption, match="metric"):
            manager.save(0, SMALL, metrics=metrics)  # type: ignore[arg-type]  # wrong on purpose
        assert manager.pending() == manager.all_steps() == []


@pytest.mark.parametrize(
    "metadata", [{"a": (1,)}, {"a": np.float32(1)}, {1: 2}, [1], {"a": float("nan")}]
)
def test_metadata_that_json_would_change_is_refused(run: Path, metadata: object) -> None:
    """At once, with its place."""
    with CheckpointManager(run) as manager, pytest.raises(InvalidOption, match="metadata"):
        manager.save(0, SMALL, metadata=metadata)  # type: ignore[arg-type]  # wrong on purpose


def test_a_tree_passed_as_step_is_a_type_error_that_names_like(run: Path) -> None:
    """For save, restore and resume."""
    with CheckpointManager(run) as manager:
        for call in (manager.restore, lambda tree: manager.save(tree, 1)):
            with pytest.raises(TypeError, match="like="):
                call(SMALL)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(CheckpointError):
            manager.restore("oldest")  # type: ignore[arg-type]  # wrong on purpose


# Ends


def test_a_second_writer_is_refused_and_a_forgotten_one_lets_go(run: Path) -> None:
    """In the same process too; a reader needs no lock."""
    first = CheckpointManager(run)
    first.save(0, SMALL)
    with pytest.raises(DirectoryLocked, match=f"pid {os.getpid()}"):
        CheckpointManager(run)
    with CheckpointManager(run, read_only=True) as reader:
        first.wait()
        assert reader.all_steps() == [0]
        with pytest.raises(ManagerClosed, match="read_only"):
            reader.save(1, SMALL)
    del first
    with CheckpointManager(run) as again:
        assert again.all_steps() == [0]


def test_a_closed_manager_says_so_and_closing_again_is_no_harm(run: Path) -> None:
    """What was queued is there."""
    manager = CheckpointManager(run)
    manager.save(0, SMALL)
    manager.close()
    manager.close()
    assert (run / "step-00000000").is_dir()
    with pytest.raises(ManagerClosed):
        manager.save(1, SMALL)
    with pytest.raises(ManagerClosed):
        manager.restore(0)


def test_close_is_bounded(gate: Gate) -> None:
    """What is not done by then is given up, and said."""
    manager = CheckpointManager("run", storage=gate)
    future = manager.save(0, SMALL)
    gate.entered.wait()
    threading.Timer(0.1, gate.open.set).start()
    with pytest.raises(WaitTimeout, match=r"\[0\]"):
        manager.close(timeout=0.01)
    assert future.cancelled()
    assert gate.names() == []


def test_wait_is_bounded_and_the_save_goes_on(gate: Gate) -> None:
    """Only the waiting ends."""
    with CheckpointManager("run", storage=gate) as manager:
        future = manager.save(0, SMALL)
        with pytest.raises(TimeoutError):
            manager.wait(timeout=0.01)
        gate.open.set()
        assert future.result() is not None


def test_a_callback_may_call_the_manager(run: Path) -> None:
    """Save and wait for it, even."""
    ended = threading.Event()
    with CheckpointManager(run) as manager:

        def save_next(_: object) -> None:
            manager.save(1, SMALL).result()
            ended.set()

        manager.save(0, SMALL).add_done_callback(save_next)
        assert ended.wait(30)
        assert manager.all_steps() == [0, 1]


def test_a_restored_tree_is_not_kept_alive(run: Path) -> None:
    """Not by the future, nor by a cycle that waits for the garbage collector."""
    gc.disable()
    try:
        with CheckpointManager(run) as manager:
            manager.save(0, [jnp.ones((1024, 1024)), jnp.ones(3)]).result()
            back = manager.restore(0)
            alive = [weakref.ref(leaf) for leaf in back]
            del back
        assert [leaf() for leaf in alive] == [None, None]
    finally:
        gc.enable()


def test_an_unchanged_structure_is_planned_once(run: Path) -> None:
    """The plan is looked up after that."""
    with CheckpointManager(run) as manager:
        manager.save(0, {"w": jnp.ones(3), "n": 1}).result()
        manager.save(1, {"w": jnp.zeros(3), "n": 2}).result()
        assert len(manager._planner._plans) == 1
        manager.save(2, {"w": jnp.zeros(4), "n": 2}).result()
        assert len(manager._planner._plans) == 2
        assert [manager.restore(s)["n"] for s in range(3)] == [1, 2, 2]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_lives_in_an_async_trainer(run: Path, backend: str) -> None:
    """`async with`, and futures that are awaited in its loop."""

    async def main() -> None:
        async with CheckpointManager(run) as manager:
            info = await manager.save(0, SMALL)
            assert info is not None
            assert_same(await manager.restore_async(0), SMALL)

    anyio.run(main, backend=backend)
    assert (run / "step-00000000").is_dir()


def test_restored_leaves_that_shared_a_buffer_are_independent(run: Path) -> None:
    """Each may be donated and updated in place without the others noticing."""
    donate = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    tree = [jnp.full((7,), float(i)) for i in range(200)]
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        back = manager.restore(0)
        for i in range(0, 200, 2):
            back[i] = donate(back[i])
        for i in range(200):
            assert np.array_equal(np.asarray(back[i]), np.full(7, i if i % 2 else -1.0))
        assert_same(manager.restore(0), tree)


def test_two_threads_that_save_more_than_the_limit_do_not_wait_for_each_other(run: Path) -> None:
    """The first in the queue never waits for copies of the second."""
    tree = {str(i): np.ones(1 << 21, np.uint8) for i in range(20)}
    with CheckpointManager(run, in_flight_bytes="8MiB") as manager:
        threads = [
            threading.Thread(target=lambda step=step: manager.save(step, tree).result())
            for step in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert manager.all_steps() == [0, 1, 2, 3]


@pytest.mark.parametrize("keys", [(1, True, 1.0), (0.0, -0.0), ((1,), (True,))])
def test_keys_that_python_calls_equal_keep_their_types(run: Path, keys: tuple[object, ...]) -> None:
    """The plan of one is not that of the other."""
    with CheckpointManager(run) as manager:
        for step, key in enumerate(keys):
            manager.save(step, {key: jnp.ones(2)}).result()
        found = [repr(next(iter(manager.restore(step)))) for step in range(len(keys))]
        assert found == [repr(key) for key in keys]


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (2**63, np.int64(0)),
        (3_000_000_000, jnp.int32(0)),
        (2**70, np.int64(0)),
        (-1, np.uint8(0)),
        (10**400, jnp.float32(0)),
    ],
)
def test_a_number_that_does_not_fit_is_a_mismatch(run: Path, value: int, like: object) -> None:
    """Never another number."""
    with CheckpointManager(run) as manager:
        manager.save(0, {"n": value}).result()
        with pytest.raises(TreeMismatch, match="'n': saved int"):
            manager.restore(like={"n": like})


def test_a_step_overwritten_while_it_is_read_is_the_old_or_the_new_one(run: Path) -> None:
    """Never called damaged; while it is read it is not overwritten, which is said."""
    trees = [{"a": np.full(300_000, i, np.float64), f"b{i % 2}": i} for i in range(30)]
    failures: list[BaseException] = []
    with CheckpointManager(run) as manager:
        manager.save(0, trees[0]).result()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    back = manager.restore(0)
                except CheckpointError as error:
                    failures.append(error)
                    return
                number = int(back["a"][0])
                assert back[f"b{number % 2}"] == number
                assert (back["a"] == number).all()

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for tree in trees[1:]:
            with contextlib.suppress(StepHeld):
                manager.save(0, tree, overwrite=True).result()
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_prefix_tree_may_hold_none_nodes_and_namedtuples(run: Path) -> None:
    """With and without like; what it does not fit is told."""
    there = SingleDeviceSharding(jax.devices()[2])
    tree = {"none": None, "pair": Pair(jnp.ones(2), jnp.ones(3)), "c": jnp.zeros(2)}
    wanted = {"none": None, "pair": Pair(there, there), "c": None}
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        for back in (manager.restore(shardings=wanted), manager.restore(0, tree, shardings=wanted)):
            assert [leaf.sharding == there for leaf in jax.tree.leaves(back)] == [False, True, True]
        for wrong in ({"c": there}, {**wanted, "d": there}):
            with pytest.raises(TreeMismatch, match="shardings"):
                manager.restore(shardings=wrong)
        with pytest.raises(InvalidOption, match=r"a Sharding.*not 3"):
            manager.restore(shardings={**wanted, "c": 3})


def test_metrics_are_what_they_were_when_save_was_called(gate: Gate) -> None:
    """And numbers that are none are refused then, too."""
    with CheckpointManager("run", storage=gate) as manager:
        loss = np.array(0.5)
        future = manager.save(0, SMALL, metrics={"loss": loss, "half": jnp.bfloat16(2)})
        loss[...] = 99
        gate.open.set()
        info = future.result()
        assert info is not None
        assert info.metrics == {"loss": 0.5, "half": 2.0}
        for wrong in (10**400, np.void(b"abc"), np.zeros((), "V4"), np.str_("1"), np.complex64(1)):
            with pytest.raises(InvalidOption, match="metric 'l'"):
                manager.save(1, SMALL, metrics={"l": wrong})


@pytest.mark.parametrize(
    "like", [np.zeros(3, "M8[s]"), np.array(["a", "b", "c"]), jax.random.key(0)], ids=str
)
def test_a_like_of_another_kind_of_dtype_is_a_mismatch(run: Path, like: object) -> None:
    """With both sides."""
    with CheckpointManager(run) as manager:
        manager.save(0, {"a": jnp.ones(3)}).result()
        with pytest.raises(TreeMismatch, match="'a': saved float32"):
            manager.restore(like={"a": like})


@pytest.mark.parametrize("casting", ["no", "equiv", "same_kind"])
def test_big_endian_arrays_come_back_through_like(run: Path, casting: str) -> None:
    """Whatever the casting: it is what was saved."""
    tree = {"a": np.arange(3, dtype=">f4")}
    with CheckpointManager(run) as manager:
        manager.save(0, tree).result()
        assert_same(manager.restore(like=tree, casting=casting), tree)


class Broken(Retention):
    """A rule of the user's own that fails."""

    def keeps(self, steps: Steps) -> Iterable[int]:
        """Raise."""
        raise ZeroDivisionError(f"{len(steps)} steps")


def test_a_rule_that_raises_deletes_nothing_and_costs_no_save(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the service goes on."""
    with CheckpointManager(run, keep=Broken()) as manager:
        for step in range(3):
            assert manager.save(step, SMALL).result(30) is not None
        manager.wait(30)
        assert manager.all_steps() == [0, 1, 2]
    assert "retention failed" in caplog.text
