"""Damage is found and passed over, steps are held, noted, pinned, and gone back to."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import logging

import ckptmgr
from ckptmgr import (
    CheckpointManager,
    DamagedStep,
    DirectoryLocked,
    InvalidOption,
    KeepBest,
    KeepLast,
    ManagerClosed,
    MemoryStorage,
    NoSuchStep,
    StepDeleted,
    StepExists,
    StepHeld,
)
from ckptmgr.storage.local import LocalStorage
from tests.trees import entries

TREE = {"w": np.arange(400_000, dtype=np.float64), "small": np.arange(8), "n": 1}


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged."""
    logging.get_absl_logger().addHandler(caplog.handler)
    yield caplog
    logging.get_absl_logger().removeHandler(caplog.handler)


def flip(path: Path, at: int = -20) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def chunk(run: Path, step: int) -> Path:
    """A data file of a step."""
    return next((run / f"step-{step:08d}" / "arrays").rglob("c.*"))


def saved(run: Path, *steps: int) -> None:
    """A run with these steps, each with its number as a leaf."""
    with CheckpointManager(run) as manager:
        for step in steps:
            manager.save(step, {**TREE, "n": step}).result()


# Verification


def test_a_whole_step_verifies(run: Path) -> None:
    """Every file of it was read."""
    saved(run, 1)
    with CheckpointManager(run) as manager:
        report = manager.verify()
        assert (report.ok, report.step, report.problems) == (True, 1, ())
        files = [path for path in (run / "step-00000001").rglob("*") if path.is_file()]
        assert report.files == len(files) - 2  # the record and the manifest come before
        assert manager.verify(1) == ckptmgr.verify(run) == ckptmgr.verify(run / "step-00000001")
        with pytest.raises(NoSuchStep):
            manager.verify(2)
    with pytest.raises(NoSuchStep):
        ckptmgr.verify(run.parent / "nothing")


@pytest.mark.parametrize("what", ["flipped", "cut", "longer", "removed", "empty"])
def test_everything_that_is_wrong_is_told(run: Path, what: str) -> None:
    """Leaf, file, and what; of every file, and it does not raise."""
    saved(run, 1)
    files = [path for path in sorted((run / "step-00000001").rglob("*")) if path.is_file()]
    for path in files:
        data = path.read_bytes()
        if what == "flipped":
            flip(path, len(data) // 2)
        elif what == "removed":
            path.unlink()
        else:
            path.write_bytes({"cut": data[:-1], "longer": data + b" ", "empty": b""}[what])
        if path.name == "checkpoint.json" and what == "removed":
            path.write_bytes(data)
            continue  # without a record it is no step
        report = ckptmgr.verify(run / "step-00000001")
        assert not report.ok, path
        assert str(path) in {problem.file for problem in report.problems}, report
        if path.name.startswith("c."):
            leaves = {"w"} if "arrays" in str(path) else {"small"}
            assert {problem.leaf for problem in report.problems} - {None} <= leaves
        path.write_bytes(data)
    assert ckptmgr.verify(run / "step-00000001").ok


def test_a_verification_that_fails_takes_the_step_out_and_one_that_does_not_takes_it_in(
    run: Path,
) -> None:
    """As the latest."""
    saved(run, 1, 2)
    path = chunk(run, 2)
    before = path.read_bytes()
    with CheckpointManager(run) as manager:
        flip(path)
        assert not manager.verify().ok
        assert (manager.latest_step(), manager.all_steps()) == (1, [1])
        path.write_bytes(before)
        assert manager.verify(2).ok
        assert manager.latest_step() == 2


def test_commits_are_verified_before_older_steps_may_go(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that lies is found out: the save fails, and what it was to replace stays."""
    with CheckpointManager(
        run, keep=KeepLast(1), verify_commits=True, in_flight_bytes="4MiB"
    ) as manager:
        manager.save(1, TREE).result()
        lies = threading.Event()
        real = os.writev

        def writev(descriptor: int, parts: Any) -> int:
            if lies.is_set() and len(parts[0]) > 100_000:
                lies.clear()
                parts[0][:] = bytes(len(parts[0]))
            return real(descriptor, parts)

        monkeypatch.setattr(os, "writev", writev)
        for step, overwrite in ((2, False), (1, True)):
            lies.set()
            with pytest.raises(DamagedStep, match="not those that were saved"):
                manager.save(step, {**TREE, "n": 2}, overwrite=overwrite).result()
            assert manager.all_steps() == [1]
            assert manager.restore(1)["n"] == 1
        manager.save(3, TREE).result()
        manager.wait()
        assert manager.all_steps() == [3]
        for step in (4, 5, 6):  # more than the limit: none waits for the proof of another
            manager.save(step, TREE)
    assert entries(run) == ["step-00000006"]


# Falling back


@pytest.mark.parametrize("how", ["restore", "resume", "restore_async", "load"])
def test_the_newest_step_that_is_whole_is_restored(
    run: Path, how: str, heard: pytest.LogCaptureFixture
) -> None:
    """E3: with a warning that says why; what is damaged stays, and is not the latest."""
    saved(run, 1, 2, 3)
    flip(chunk(run, 3))
    (run / "step-00000002" / "tree.json").write_text("{}")
    with CheckpointManager(run) as manager:
        calls: dict[str, Callable[[], Any]] = {
            "restore": manager.restore,
            "resume": lambda: manager.resume(TREE)[1],
            "restore_async": lambda: manager.restore_async().result(),
            "load": partial(ckptmgr.load, run),
        }
        assert calls[how]()["n"] == 1
        for step in (2, 3):
            assert f"step {step} is damaged and is passed over" in heard.text
        if how != "load":
            assert (manager.latest_step(), manager.all_steps()) == (1, [1])
            assert manager.should_save(2)
    assert entries(run) == [f"step-0000000{step}" for step in (1, 2, 3)]


def test_a_run_of_damaged_steps_never_starts_from_nothing(run: Path) -> None:
    """It is an error that names them."""
    saved(run, 1, 2)
    flip(chunk(run, 1))
    (run / "step-00000002" / "checkpoint.json").write_text("nonsense")
    with CheckpointManager(run) as manager:
        calls: list[Callable[[], Any]] = [
            manager.restore,
            partial(manager.resume, TREE),
            partial(ckptmgr.load, run),
        ]
        for call in calls:
            with pytest.raises(DamagedStep, match=r"every step there is is damaged, \[1, 2\]"):
                call()


def test_a_damaged_step_asked_for_by_number_is_an_error(run: Path) -> None:
    """Each time, until it is whole again."""
    saved(run, 1, 2)
    path = chunk(run, 2)
    before = path.read_bytes()
    with CheckpointManager(run) as manager:
        flip(path)
        for _ in range(2):
            with pytest.raises(DamagedStep) as caught:
                manager.restore(2)
            assert (caught.value.step, caught.value.leaf, caught.value.file) == (2, "w", str(path))
        path.write_bytes(before)
        assert manager.restore(2)["n"] == 2
        assert manager.latest_step() == 2


def test_training_goes_on_over_a_damaged_step(run: Path, heard: pytest.LogCaptureFixture) -> None:
    """D13: its number can be saved again; it is set aside, not deleted, and that is told."""
    saved(run, 900, 1000)
    flip(chunk(run, 1000))
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        step, _ = manager.resume(TREE)
        assert step == 900
        with pytest.raises(ckptmgr.UnsupportedLeaf):
            manager.save(1000, {"f": print})
        assert "step-00001000" in os.listdir(run)  # nothing is moved for a save that cannot be
        manager.save(1000, {**TREE, "n": "again"}).result()
        manager.wait()
        assert manager.restore()["n"] == "again"
        assert manager.all_steps() == [1000]
    aside = [name for name in os.listdir(run) if name.startswith(".damaged-step-00001000-")]
    assert len(aside) == 1
    assert aside[0] in heard.text
    with CheckpointManager(run) as manager:  # and nobody sweeps it
        assert manager.all_steps() == [1000]
    assert aside[0] in os.listdir(run)


def test_retention_keeps_the_last_good_step_where_newer_ones_are_damaged(run: Path) -> None:
    """What is damaged is never the reason to delete what is not."""
    saved(run, 1, 2)
    flip(chunk(run, 2))
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        assert manager.restore()["n"] == 1
        manager.annotate(1, metadata={"looked": True})  # retention runs
        assert manager.all_steps() == [1]


def test_going_back_moves_newer_steps_aside(run: Path) -> None:
    """D13: whole or damaged; they stay on disk until a person removes them."""
    saved(run, 900, 950, 1000)
    flip(chunk(run, 950))
    with CheckpointManager(run) as manager:
        assert not manager.verify(950).ok
        assert manager.rollback(900) == [950, 1000]
        assert manager.all_steps() == [900]
        manager.save(1000, {**TREE, "n": "again"}).result()
        assert manager.restore()["n"] == "again"
        with pytest.raises(NoSuchStep):
            manager.rollback(7)
    names = [name[:25] for name in sorted(os.listdir(run)) if "abandoned" in name]
    assert names == [".abandoned-step-00000950-", ".abandoned-step-00001000-"]


# Readers


def test_a_step_that_is_held_is_neither_deleted_nor_replaced(run: Path) -> None:
    """By any process; the next pass may."""
    saved(run, 1)
    with (
        CheckpointManager(run, read_only=True) as reader,
        CheckpointManager(run, keep=KeepLast(1)) as manager,
    ):
        with reader.hold(1) as info:
            assert info.step == 1
            manager.save(2, TREE).result()
            manager.wait()
            assert manager.all_steps() == [1, 2]
            with pytest.raises(StepHeld):
                manager.delete(1)
            with pytest.raises(StepHeld):
                manager.save(1, TREE, overwrite=True).result()
            assert reader.restore(1)["n"] == 1
        manager.save(3, TREE).result()
        manager.wait()
        assert manager.all_steps() == [3]
        with pytest.raises(NoSuchStep), reader.hold(1):
            pass


@pytest.mark.filterwarnings("ignore:os.fork")  # this is about forking
def test_a_forked_child_neither_keeps_a_lock_nor_uses_the_manager(run: Path) -> None:
    """Its parent's end is the lock's."""
    saved(run, 1)
    holder = CheckpointManager(run)
    with holder.hold(1):
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                holder.save(2, TREE)
            except ManagerClosed:
                os.read(ready, 1)
                os._exit(7)
            os._exit(1)
        holder.close()
    with CheckpointManager(run) as other:  # the child still lives
        other.delete(1)
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


FILES = ("arrays/a/c.0", "packs/0/c.0")


def _reads(run: str, until: float, lost: Any) -> None:
    storage = LocalStorage(run)
    while time.monotonic() < until:
        for name in storage.names():
            if not name.startswith("step-"):
                continue
            try:
                with storage.reading(name):
                    for file in FILES:
                        storage.read(f"{name}/{file}", 100)
            except StepDeleted:
                continue
            except ckptmgr.MissingFile:
                lost.value += 1


def test_readers_never_lose_a_file_under_their_hold(run: Path) -> None:
    """Three readers and a deleter, 2,000 rounds."""
    storage = LocalStorage(str(run))
    storage.create()
    context = multiprocessing.get_context("spawn")
    lost = context.Value("i", 0)
    until = time.monotonic() + 120
    readers = [context.Process(target=_reads, args=(str(run), until, lost)) for _ in range(3)]
    for reader in readers:
        reader.start()
    held = 0
    for number in range(2000):
        name = f"step-{number % 7:08d}"
        with storage.attempt(name) as attempt:
            for file in FILES:
                attempt.put(file, [b"x"])
            try:
                attempt.publish(b"record", replace=number % 2 == 0)
            except (StepExists, StepHeld):
                held += 1
        try:
            storage.delete(name)
        except (StepHeld, StepExists):
            held += 1
    for reader in readers:
        reader.terminate()
        reader.join()
    assert lost.value == 0


def _opens(run: str, times: int, won: Any, inside: Any) -> None:
    """Open the run again and again; save a step where nobody else has it."""
    refused = ["host, pid"]
    for _ in range(times):
        try:
            with CheckpointManager(run, keep=KeepLast(3)) as manager:
                with inside.get_lock():
                    inside.value += 1
                    assert inside.value == 1, "two writers"
                step = (manager.latest_step() or 0) + 1
                manager.save(step, {"w": np.full(50_000, step, np.float64), "n": step}).result()
                with inside.get_lock():
                    inside.value -= 1
                with won.get_lock():
                    won.value += 1
        except DirectoryLocked as error:
            refused.append(str(error))
    assert all("pid" in text or "not known" in text for text in refused)
    os._exit(0)  # jax hangs at the exit of a forked child


def test_one_writer_at_a_time_of_many_processes(run: Path) -> None:
    """Eight open it fifty times each; every step is whole, and of one of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.faults"])
    won, inside = context.Value("i", 0), context.Value("i", 0)
    run.mkdir()
    processes = [context.Process(target=_opens, args=(str(run), 50, won, inside)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    with CheckpointManager(run) as manager:
        assert manager.latest_step() == won.value >= 1
        for step in manager.all_steps():
            found = manager.restore(step)
            assert (found["n"], set(found["w"].tolist())) == (step, {float(step)})


def test_trash_makes_room_where_there_is_none(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is tried once more, into another file, when what was deleted could be removed."""
    saved(run, 1)
    with CheckpointManager(run) as manager:
        trash = run / ".trash-step-00000009-0123456789abcdef"
        trash.mkdir()
        (trash / "old").write_bytes(b"x")
        real = os.writev

        def full(descriptor: int, parts: Any) -> int:
            if trash.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, parts)

        monkeypatch.setattr(os, "writev", full)
        manager.save(2, TREE).result()
        assert manager.restore(2)["n"] == 1
        assert not trash.exists()

        def always(descriptor: int, parts: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "writev", always)
        with pytest.raises(ckptmgr.NoSpace):
            manager.save(3, TREE).result()
        monkeypatch.setattr(os, "writev", real)
        assert manager.all_steps() == [1, 2]
        manager.save(4, TREE).result()


def test_the_lock_is_refused_in_the_same_process_too(run: Path) -> None:
    """A manager that is garbage lets go."""
    manager: CheckpointManager | None = CheckpointManager(run)
    with pytest.raises(DirectoryLocked, match=f"pid {os.getpid()}, since 2"):
        CheckpointManager(run)
    assert manager is not None
    manager = None
    CheckpointManager(run).close()


# Notes


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_metrics_known_later_count_for_retention(run: Path, where: str) -> None:
    """D12: the evaluator's word, from another manager; the later one of two."""
    storage = None if where == "disk" else MemoryStorage()
    with CheckpointManager(run, keep=KeepBest("score", mode="max"), storage=storage) as manager:
        for step in range(1, 4):
            manager.save(step, {"n": step}, metrics={"loss": 1.0}).result()
            manager.wait()
            with CheckpointManager(run, read_only=True, storage=storage) as evaluator:
                if step in evaluator.all_steps():
                    evaluator.annotate(step, metrics={"score": 0.0}, metadata={"by": "eval"})
                    evaluator.annotate(step, metrics={"score": {1: 5.0, 2: 1.0, 3: 2.0}[step]})
        manager.save(4, {"n": 4}).result()
        manager.wait()
        assert manager.all_steps() == [1, 4]
        info = manager.info(1)
        assert (info.metrics, info.metadata) == ({"loss": 1.0, "score": 5.0}, {"by": "eval"})
        assert manager.best_step("score", "max") == 1
        with pytest.raises(NoSuchStep):
            manager.annotate(2, metrics={"score": 9.0})
        with pytest.raises(InvalidOption):
            manager.annotate(1, metrics={"score": "good"})


def test_a_pinned_step_stays(run: Path) -> None:
    """Whatever the rules say, until it is unpinned; from any process."""
    saved(run, 1)
    with CheckpointManager(run, read_only=True) as reader:
        reader.pin(1)
        reader.pin(1)
        assert reader.info(1).pinned
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(2, TREE).result()
        manager.wait()
        assert manager.all_steps() == [1, 2]
        assert "pinned" in manager.explain().kept[1]
        with pytest.raises(StepHeld, match="unpin"):
            manager.delete(1)
        manager.unpin(1)
        manager.unpin(2)
        assert manager.all_steps() == [2]


def test_a_damaged_note_is_left_out_and_verification_tells(
    run: Path, heard: pytest.LogCaptureFixture
) -> None:
    """The step itself is whole."""
    saved(run, 1)
    with CheckpointManager(run) as manager:
        manager.annotate(1, metrics={"score": 1.0})
        note = next((run / "step-00000001" / "notes").iterdir())
        flip(note, 60)
        report = manager.verify(1)
        assert [problem.file for problem in report.problems] == [str(note)]
        assert (report.ok, report.whole, manager.latest_step()) == (False, True, 1)
    with CheckpointManager(run) as manager:
        assert manager.info(1).metrics == {}
        assert manager.restore(1)["n"] == 1
    assert "a note of step 1 is left out" in heard.text


def test_a_step_is_deleted_when_that_is_asked_for(run: Path) -> None:
    """Any that is committed, the newest too."""
    saved(run, 1, 2)
    with CheckpointManager(run) as manager:
        manager.delete(2)
        assert (manager.all_steps(), manager.latest_step()) == ([1], 1)
        assert manager.explain().deleted[2] == "delete() was called"
        with pytest.raises(NoSuchStep):
            manager.delete(2)
    with CheckpointManager(run, read_only=True) as reader, pytest.raises(ManagerClosed):
        reader.delete(1)


def test_an_evaluator_waits_for_the_next_step(run: Path) -> None:
    """D11: also where the directory is not there yet; None where the time is over."""
    with CheckpointManager(run, read_only=True) as reader:
        assert reader.wait_for_step(timeout=0) is None
        found: list[int | None] = []
        waiting = threading.Thread(target=lambda: found.append(reader.wait_for_step(after=3)))
        waiting.start()
        saved(run, 3, 4)
        waiting.join(60)
        assert found == [4]
        assert reader.wait_for_step() == 4
        assert reader.wait_for_step(after=4, timeout=0.01) is None


# What a review has found


def test_a_closed_manager_deletes_nothing(run: Path) -> None:
    """Another may write by then."""
    saved(run, 1, 2)
    closed = CheckpointManager(run, keep=KeepLast(1))
    closed.close()
    with CheckpointManager(run) as manager:
        closed.pin(1)
        closed.unpin(1)
        assert manager.all_steps() == [1, 2]
        assert manager.restore(1)["n"] == 1


def test_a_pin_of_another_process_is_seen_before_a_step_goes(run: Path) -> None:
    """Though nobody has told the writer."""
    saved(run, 1, 2)
    with (
        CheckpointManager(run, keep=KeepLast(1)) as manager,
        CheckpointManager(run, read_only=True) as reader,
    ):
        reader.pin(1)
        with pytest.raises(StepHeld, match="pinned"):
            manager.delete(1)
        manager.save(3, TREE).result()
        manager.wait()
        assert manager.all_steps() == [1, 3]


def test_a_part_that_is_whole_makes_no_whole_step(run: Path) -> None:
    """What was found damaged stays out, and is no reason to delete what is good."""
    saved(run, 1, 2)
    flip(chunk(run, 2))
    with CheckpointManager(run, keep=KeepLast(2)) as manager:
        assert not manager.verify(2).ok
        assert manager.restore(2, select="small")["w"] is None
        manager.save(3, TREE).result()
        manager.wait()
        assert manager.all_steps() == [1, 3]


def test_what_a_reader_would_refuse_is_refused_when_it_is_said(run: Path) -> None:
    """Not acknowledged and then lost."""
    saved(run, 1)
    large = {"text": "x" * (17 << 20)}
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with CheckpointManager(run) as manager:
        with pytest.raises(InvalidOption, match="at most"):
            manager.annotate(1, metadata=large)
        with pytest.raises(InvalidOption, match="at most"):
            manager.save(2, TREE, metadata=large).result()
        with pytest.raises(InvalidOption, match="too deep"):
            manager.save(2, TREE, metadata=deep)
        assert (manager.all_steps(), manager.info(1).metadata) == ([1], {})


@pytest.mark.parametrize("how", ["moved", "no record", "a directory", "unreadable", "odd note"])
def test_one_odd_step_keeps_nobody_from_the_others(
    run: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is damaged, and said to be."""
    saved(run, 1, 2)
    record = run / "step-00000002" / "checkpoint.json"
    if how == "moved":
        (run / "step-00000002").rename(run / "step-00000003")
    elif how in ("no record", "a directory"):
        record.unlink()
        if how == "a directory":
            record.mkdir()
    elif how == "odd note":
        (run / "step-00000002" / "notes" / "x.json").mkdir(parents=True)
    else:
        real = os.pread

        def pread(descriptor: int, length: int, offset: int) -> bytes:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(record):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(descriptor, length, offset)

        monkeypatch.setattr(os, "pread", pread)
    with CheckpointManager(run) as manager:
        good = [1, 2] if how == "odd note" else [1]
        assert manager.all_steps() == good
        assert manager.resume(TREE)[0] == good[-1]


def test_a_data_file_that_cannot_be_read_is_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector: the step before is restored."""
    saved(run, 1, 2)
    bad, real = str(chunk(run, 2)), os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with CheckpointManager(run) as manager:
        assert manager.restore()["n"] == 1
        assert manager.latest_step() == 1


def test_a_copy_is_tried_again_from_its_beginning(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk was full for a moment."""
    storage = LocalStorage(str(run))
    storage.create()
    data = os.urandom(3 << 20)
    with storage.attempt("step-00000001") as attempt:
        attempt.put("arrays/a/c.0", [data])
        attempt.publish(b"record", replace=False)
    (run / ".trash-step-00000009-0123456789abcdef").mkdir()
    writes, real = 0, os.writev

    def writev(descriptor: int, parts: Any) -> int:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, parts)

    monkeypatch.setattr(os, "writev", writev)
    with storage.attempt("step-00000002") as attempt:
        attempt.copy("step-00000001/arrays/a/c.0", "arrays/a/c.0")
        attempt.publish(b"record", replace=False)
    assert storage.read("step-00000002/arrays/a/c.0", len(data)) == data


@pytest.mark.parametrize("operation", ["save", "delete"])
def test_the_books_are_right_where_the_last_sync_fails(
    run: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk is what the manager says."""
    saved(run, 1, 2)
    with CheckpointManager(run) as manager:
        real = os.fsync

        def fails(descriptor: int) -> None:
            if os.path.samefile(f"/proc/self/fd/{descriptor}", run):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(ckptmgr.StorageError):
            if operation == "save":
                manager.save(3, TREE).result()
            else:
                manager.delete(2)
        monkeypatch.undo()
        manager.wait()
        there = sorted(int(n[5:]) for n in os.listdir(run) if n.startswith("step-"))
        assert manager.all_steps() == there
        assert manager.restore()["w"].shape == (400_000,)
