"""Local files: durability, names, modes, errors of the system told as ours."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from ckptmgr import DirectoryLocked, MissingFile, NoSpace, StorageError
from ckptmgr.format.step import step_name, temporary_name
from ckptmgr.storage import rename
from ckptmgr.storage.local import LocalStorage


@pytest.fixture
def storage(run: Path) -> LocalStorage:
    """A directory that has been made."""
    storage = LocalStorage(str(run))
    storage.create()
    return storage


def test_everything_is_synced_before_the_rename_and_the_parent_after(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that survives a power cut."""
    calls: list[tuple[str, str]] = []

    def path_of(descriptor: int) -> str:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), storage.root)

    def note(where: ModuleType, name: str, kind: str) -> None:
        real = getattr(where, name)

        def noted(*arguments: object) -> object:
            first = arguments[0]
            calls.append((kind, path_of(first) if isinstance(first, int) else "rename"))
            return real(*arguments)

        monkeypatch.setattr(where, name, noted)

    note(os, "fsync", "fsync")
    note(os, "fdatasync", "fdatasync")
    note(rename, "renameat2", "rename")
    with storage.attempt("step-00000001") as attempt:
        attempt.put("arrays/w/c.0", [b"data"])
        attempt.put("tree.json", [b"{}"])
        attempt.publish(b"record", replace=False)
    temporary = os.path.basename(attempt.directory)
    assert [call for call in calls if call[0] == "fdatasync"] == [
        ("fdatasync", f"{temporary}/{path}")
        for path in ("arrays/w/c.0", "tree.json", "checkpoint.json")
    ]
    assert calls[-5:] == [
        ("fsync", f"{temporary}/arrays/w"),
        ("fsync", f"{temporary}/arrays"),
        ("fsync", temporary),
        ("rename", "rename"),
        ("fsync", "."),
    ]
    assert Counter(kind for kind, _ in calls) == {"fdatasync": 3, "fsync": 4, "rename": 1}


def test_only_the_owner_may_look(storage: LocalStorage) -> None:
    """Directories 0700, files 0600."""
    with storage.attempt("step-00000001") as attempt:
        attempt.put("d/a", [b"x"])
        attempt.publish(b"record", replace=False)
    for folder, _, files in os.walk(storage.root):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for file in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, file)).st_mode) == 0o600


def test_leftovers_of_a_dead_writer_are_swept_and_nothing_else(storage: LocalStorage) -> None:
    """Not what people keep beside the steps."""
    ours = {temporary_name(step_name(3), kind) for kind in ("tmp", "trash")}
    theirs = {"tb_logs", "notes.txt", ".tmp", ".tmp-mine", "step-00000009"}
    for name in ours | theirs:
        os.mkdir(os.path.join(storage.root, name))
    assert set(storage.sweep()) == ours
    assert set(storage.names()) == theirs


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    """A mistyped path must not start an empty run."""
    with pytest.raises(MissingFile, match="parent directory does not exist"):
        LocalStorage(str(tmp_path / "no" / "run")).create()


def test_a_file_in_its_place_is_refused(run: Path) -> None:
    """And left alone."""
    run.write_text("mine")
    with pytest.raises(StorageError, match="a file, not a directory"):
        LocalStorage(str(run)).create()
    assert run.read_text() == "mine"


def test_a_full_disk_is_no_space(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with (
        pytest.raises(NoSpace, match="free some space"),
        storage.attempt("step-00000001") as attempt,
    ):
        attempt.put("a", [b"x"])
    assert storage.names() == []


def test_short_writes_are_finished(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take fewer bytes than it was given, and across parts."""
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [b"".join(map(bytes, parts))[:3]]))
    with storage.attempt("step-00000001") as attempt:
        attempt.put("a", [b"ab", b"", b"cdefg", b"h"])
        attempt.publish(b"record", replace=False)
    assert storage.read("step-00000001/a", 8) == b"abcdefgh"


def test_a_symlink_in_the_place_of_a_file_is_not_followed(storage: LocalStorage) -> None:
    """Only regular files are ours."""
    os.symlink("/etc/passwd", os.path.join(storage.root, "link"))
    with pytest.raises(StorageError):
        storage.read("link", 1 << 20)


def test_a_fifo_in_the_place_of_a_file_does_not_hang(storage: LocalStorage) -> None:
    """It is no file of the right size."""
    os.mkfifo(os.path.join(storage.root, "fifo"))
    with pytest.raises(StorageError):
        storage.read_into("fifo", memoryview(bytearray(3)), offset=0, size=3)


def test_the_lock_names_its_holder(storage: LocalStorage) -> None:
    """Host and process, for the one who is refused."""
    other = LocalStorage(storage.root)
    expected = f"host {socket.gethostname()}, pid {os.getpid()}"
    with storage.lock(), pytest.raises(DirectoryLocked, match=expected), other.lock():
        pass


def test_the_former_step_is_not_removed_where_the_swap_may_not_be_durable(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could undo it, and would find nothing under the old name."""
    real = os.fsync

    def fails(descriptor: int) -> None:
        if os.path.samefile(f"/proc/self/fd/{descriptor}", storage.root):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    with storage.attempt("step-00000001") as attempt:
        attempt.put("arrays/a/c", [b"old"])
        attempt.publish(b"record", replace=False)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError), storage.attempt("step-00000001") as attempt:
        attempt.put("arrays/a/c", [b"new"])
        attempt.publish(b"record", replace=True)
    found = {(path / "arrays" / "a" / "c").read_bytes() for path in Path(storage.root).iterdir()}
    assert found == {b"old", b"new"}
