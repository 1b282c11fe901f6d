"""`watch`: what a manager says of itself to others, and what becomes of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ckptmgr import CheckpointManager, KeepLast, MemoryStorage, StorageError
from ckptmgr.cli.watching import lines, throughput
from ckptmgr.events import Closed, SaveCommitted, SaveFailed, SaveStarted, StepDeleted
from ckptmgr.status import Board, Status, Work, noted, read_status
from ckptmgr.storage.local import LocalStorage
from tests.cli.conftest import Shell, tree

STATUS = Status(host="elsewhere", pid=1, time=1000.0, keep="KeepAll()", limit_bytes=1 << 30)


def test_what_a_manager_did_can_be_asked_later(shell: Shell, run: Path) -> None:
    """Its last save, its last failure, its rules, and that it has ended."""
    with CheckpointManager(run, keep=KeepLast(1)) as manager:
        manager.save(1, tree(1)).result()
        manager.save(2, tree(2)).result()
    told = shell("watch", run, "--once")
    assert told.code == 0
    first, *others = told.out.splitlines()
    assert f"pid {os.getpid()}: closed" in first
    assert others[-1] == "keeps    KeepLast(n=1)"
    assert "step 2" in told.out
    found = shell("watch", run, "--once", "--json").json
    assert (found["closed"], found["lives"], found["pid"]) == (True, False, os.getpid())
    assert (found["saved"]["step"], found["saved"]["nbytes"]) == (2, 722_436)
    assert found["deleted"] == {"1": "not kept by KeepLast(n=1)"}
    assert found["failed"] is None


def test_a_run_that_nobody_wrote_lately_says_nothing(shell: Shell, trained: Path) -> None:
    """Nor does one whose status another version wrote."""
    (trained / ".status.json").write_bytes(b'{"version": 7}')
    assert shell("watch", trained, "--once").out == "no manager has said anything here yet\n"
    assert shell("ls", trained).code == 0
    (trained / ".status.json").unlink()
    assert shell("watch", trained, "--once").out == "no manager has said anything here yet\n"
    assert shell("watch", trained, "--once", "--json").json is None
    assert "rules of this run are not known" in shell("explain", trained).err


def test_another_process_is_watched_until_it_ends(run: Path) -> None:
    """A line of JSON for each thing that it says, while it says it."""
    trainer = """
        import sys
        import numpy as np
        import ckptmgr
        with ckptmgr.CheckpointManager(sys.argv[1]) as manager:
            manager.save(1, {"a": np.ones(3)}).result()
            print("saved", flush=True)
            sys.stdin.read()
    """
    lines = "\n".join(line[8:] for line in trainer.splitlines())
    command = [sys.executable, "-m", "ckptmgr.cli", "watch", str(run), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", lines, str(run)], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "saved\n"
        with subprocess.Popen(command, stdout=pipe, text=True) as watcher:
            assert watcher.stdout
            first = msgspec.json.decode(watcher.stdout.readline())
            assert (first["pid"], first["lives"]) == (process.pid, True)
            process.stdin.close()
            while not (said := msgspec.json.decode(watcher.stdout.readline()))["closed"]:
                pass
            assert (said["lives"], said["saved"]["step"]) == (False, 1)
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(60) == 130


def test_one_that_was_killed_is_known_to_be_gone(shell: Shell, run: Path) -> None:
    """By its process; what it was writing is no save on its way any more."""
    with CheckpointManager(run) as manager:
        manager.save(1, tree(1)).result()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    status = read_status(LocalStorage(str(run)))
    assert status is not None
    works = (Work(2, "WRITING", 10, 100),)
    dead = msgspec.structs.replace(status, pid=gone.pid, closed=False, works=works)
    (run / ".status.json").write_bytes(msgspec.json.encode(dead))
    told = shell("watch", run, "--once").out
    assert "its process is gone" in told
    assert "writing" not in told
    assert shell("ls", run, "--json").json["saving"] == []


@pytest.mark.parametrize(
    ("status", "now", "words"),
    [
        (None, 0.0, ["no manager has said anything here yet"]),
        (STATUS, 1002.0, ["elsewhere, pid 1: idle, last heard 2.0 s ago"]),
        (STATUS, 1100.0, ["idle, last heard 1.7 min ago"]),
        (
            msgspec.structs.replace(STATUS, works=(Work(7, "WRITING", 50, 100),)),
            1100.0,
            ["perhaps gone, last heard 1.7 min ago"],
        ),
        (
            msgspec.structs.replace(STATUS, works=(Work(7, "WRITING", 50, 100),)),
            1001.0,
            ["writing  step 7 ██████████░░░░░░░░░░ 50 B of 100 B", "last heard 1.0 s ago"],
        ),
        (
            msgspec.structs.replace(STATUS, works=(Work(7, "QUEUED", 0, 0),)),
            1001.0,
            ["queued   step 7"],
        ),
    ],
)
def test_a_status_is_told_in_lines(status: Status | None, now: float, words: list[str]) -> None:
    """What cannot be known is said to be so."""
    said = "\n".join(lines(status, 0.0, now))
    for word in words:
        assert word in said


def test_throughput_is_that_between_two_statuses() -> None:
    """Of the works in both, and of those that are new."""
    before = msgspec.structs.replace(STATUS, works=(Work(1, "WRITING", 100, 1000),))
    works = (Work(1, "WRITING", 700, 1000), Work(None, "READING", 200, 200))
    after = msgspec.structs.replace(STATUS, time=1002.0, works=works)
    assert throughput(before, after) == 400
    assert throughput(None, after) == throughput(after, before) == throughput(after, None) == 0


def test_the_board_is_changed_by_events() -> None:
    """The last save of either kind, and the last deletions."""
    board = Board()
    saved = SaveCommitted(step=1, path="", nbytes=5, leaves=1, stall=0.1, seconds=2.0)
    board = noted(board, saved, 10.0)
    error = StorageError("disk on fire")
    board = noted(board, SaveFailed(step=2, error=error, seconds=1.0), 11.0)
    for step in range(300):
        board = noted(board, StepDeleted(step=step, why="old", seconds=0.0), 12.0)
    assert noted(board, SaveStarted(step=3, nbytes=0, leaves=0), 13.0) == board
    assert noted(board, Closed(), 13.0) == board
    assert board.saved is not None
    assert (board.saved.step, board.saved.time) == (1, 10.0)
    assert board.failed is not None
    assert (board.failed.step, board.failed.error) == (2, "disk on fire")
    assert [step for step, _ in board.deleted] == list(range(100, 300))


class Told(MemoryStorage):
    """Counts what is told of a run."""

    status_seconds = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self.times = 0
        self.first = threading.Event()

    def tell_status(self, data: bytes) -> None:
        """One more."""
        self.times += 1
        super().tell_status(data)
        self.first.set()


def test_the_status_is_written_seldom(run: Path) -> None:
    """Once as the first save begins, not again before its time, and at the end."""
    storage = Told()
    with CheckpointManager("run", storage=storage) as manager:
        assert storage.times == 0
        for step in range(50):
            manager.save(step, {"a": step}).result()
        assert storage.first.wait(60)
        assert storage.times == 1
    assert storage.times == 2
    status = read_status(storage)
    assert status is not None
    assert status.closed
    assert status.saved is not None
    assert status.saved.step == 49


def test_a_manager_that_saves_nothing_says_nothing(run: Path) -> None:
    """Neither does one that only reads."""
    with CheckpointManager(run):
        pass
    assert not (run / ".status.json").exists()
    with CheckpointManager(run) as manager:
        manager.save(1, {"a": 1}).result()
    before = (run / ".status.json").read_bytes()
    with CheckpointManager(run, read_only=True) as reader:
        reader.restore()
    assert (run / ".status.json").read_bytes() == before


def test_a_status_that_cannot_be_written_costs_no_save(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""

    def full(self: LocalStorage, data: bytes) -> None:
        raise StorageError("disk on fire")

    monkeypatch.setattr(LocalStorage, "tell_status", full)
    with CheckpointManager(run) as manager:
        assert manager.save(1, {"a": 1}).result() is not None
    assert manager.latest_step() == 1
    assert "the status is not written: disk on fire" in caplog.text


def test_whoever_reads_a_status_sees_all_of_one(run: Path) -> None:
    """It is renamed into its place."""
    storage = LocalStorage(str(run))
    run.mkdir()
    first, stop = threading.Event(), threading.Event()

    def write() -> None:
        with storage.lock():
            size = 0
            while not stop.is_set():
                size = (size + 100_003) % 1_000_000
                storage.tell_status(msgspec.json.encode(STATUS) + b" " * size)
                first.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert first.wait(60)
        found = [read_status(storage) for _ in range(300)]
    finally:
        stop.set()
        thread.join()
    assert set(map(repr, found)) == {repr(STATUS)}


def test_a_directory_of_another_is_told_nothing(run: Path) -> None:
    """Where this manager's was moved and another has taken its place."""
    with CheckpointManager(run) as manager:
        manager.save(1, {"a": np.ones(3)}).result()
        run.rename(run.with_name("moved"))
        run.mkdir()
        with pytest.raises(StorageError):
            manager.save(2, {"a": np.ones(3)}).result()
    assert not list(run.iterdir())
