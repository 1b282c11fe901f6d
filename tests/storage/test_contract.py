"""The contract of a store, on each store: what holds for one holds for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptmgr import (
    DirectoryLocked,
    MissingFile,
    StepDeleted,
    StepExists,
    StepHeld,
    StorageError,
    TruncatedFile,
)
from ckptmgr.format.step import COMMIT_RECORD
from ckptmgr.storage.base import Attempt, Storage
from ckptmgr.storage.local import LocalStorage
from ckptmgr.storage.memory import MemoryStorage
from ckptmgr.storage.url import storage_of
from tests.storage.servers import Store

Open = Callable[[], Storage]


@pytest.fixture(params=["local", "memory", "s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same place again and again, as processes do."""
    memory = MemoryStorage()
    if request.param in ("s3", "gs"):
        server: Store = request.getfixturevalue(request.param)
        return lambda: storage_of(server.url, server.options)
    return (
        (lambda: LocalStorage(str(tmp_path / "run")))
        if request.param == "local"
        else lambda: memory
    )


def keep(attempt: Attempt, key: str, path: str) -> None:
    """A file of a published step, in this one too."""
    if not attempt.link(key, path, None):
        attempt.copy(key, path)


def write(storage: Storage, name: str, *, replace: bool = False, **files: bytes) -> None:
    """Publish a step of these files."""
    with storage.attempt(name) as attempt:
        for path, data in files.items():
            attempt.put(f"arrays/{path}/c", [data[:2], data[2:]])
        attempt.publish(b"record", replace=replace)


def opened(store: Open) -> Storage:
    """The place, made."""
    storage = store()
    storage.create()
    return storage


def test_what_was_published_is_there(store: Open) -> None:
    """Its files, its record, its name, for another opening too."""
    write(opened(store), "step-00000001", a=b"abcdef")
    other = store()
    assert "step-00000001" in other.names()
    assert other.taken("step-00000001")
    assert other.read("step-00000001/arrays/a/c", 6) == b"abcdef"
    assert other.read(f"step-00000001/{COMMIT_RECORD}", 100) == b"record"


def test_several_processes_put_files_into_one_attempt_and_one_publishes_it(store: Open) -> None:
    """Directories that both need are no conflict; all is there at once."""
    storage, other = opened(store), store()
    with storage.attempt("step-00000001") as lead, other.attempt("step-00000001") as joined:
        joined.join(lead.share())
        for number, attempt in enumerate((lead, joined)):
            attempt.put(f"arrays/a/c.{number}", [b"%d" % number])
        joined.put("packs/1/c.0", [b"pack"])
        joined.sync()
        assert not other.taken("step-00000001")
        lead.publish(b"record", replace=False)
    files = ("arrays/a/c.0", "arrays/a/c.1", "packs/1/c.0")
    assert [storage.read(f"step-00000001/{file}", 9) for file in files] == [b"0", b"1", b"pack"]


def test_a_file_of_another_process_is_never_written_over(store: Open) -> None:
    """Two that put the same one have made different plans."""
    storage = opened(store)
    with storage.attempt("step-00000001") as lead, storage.attempt("step-00000001") as joined:
        joined.join(lead.share())
        lead.put("a/c", [b"1"])
        with pytest.raises((StorageError, StepExists)):
            joined.put("a/c", [b"2"])


def test_a_shared_attempt_that_is_given_up_leaves_nothing(store: Open) -> None:
    """Whoever shared it removes it, and who joined later is told."""
    storage = opened(store)
    before = storage.names()
    with storage.attempt("step-00000001") as joined:
        with storage.attempt("step-00000001") as lead:
            shared = lead.share()
            joined.join(shared)
            joined.put("a/c", [b"1"])
        with pytest.raises(StorageError), storage.attempt("step-00000001") as late:
            late.join(shared)
    assert storage.names() == before


def test_who_joins_leaves_the_replaced_step_to_who_shared(store: Open) -> None:
    """It ends at any time: before or after the other has removed the former one."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"old")
    with storage.attempt("step-00000001") as joined, storage.attempt("step-00000001") as lead:
        joined.join(lead.share())
        joined.put("b/c", [b"new"])
        lead.publish(b"record", replace=True)
    assert storage.read("step-00000001/b/c", 9) == b"new"
    assert [name for name in storage.names() if name != ".lock"] == ["step-00000001"]


def test_an_attempt_is_invisible_until_it_is_published_and_leaves_nothing(store: Open) -> None:
    """Neither while it runs nor after it was given up."""
    storage = opened(store)
    before = storage.names()
    with storage.attempt("step-00000001") as attempt:
        attempt.put("a", [b"x"])
        assert not storage.taken("step-00000001")
    assert storage.names() == before


def test_an_attempt_that_fails_leaves_nothing(store: Open) -> None:
    """The error comes through."""
    storage = opened(store)
    before = storage.names()
    with pytest.raises(ZeroDivisionError), storage.attempt("step-00000001") as attempt:
        attempt.put("a", [b"x"])
        _ = 1 / 0
    assert storage.names() == before


def test_a_taken_name_is_refused_and_what_is_there_is_untouched(store: Open) -> None:
    """At the publication, whatever was known before."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"old")
    with pytest.raises(StepExists):
        write(storage, "step-00000001", a=b"new")
    assert storage.read("step-00000001/arrays/a/c", 3) == b"old"


def test_replacing_swaps_everything_at_once(store: Open) -> None:
    """No file of the former step is left."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"old", b=b"old")
    write(storage, "step-00000001", replace=True, a=b"new")
    assert storage.read("step-00000001/arrays/a/c", 3) == b"new"
    with pytest.raises(MissingFile):
        storage.read("step-00000001/arrays/b/c", 3)
    assert [name for name in storage.names() if name != ".lock"] == ["step-00000001"]


def test_a_part_of_a_file_goes_into_the_callers_buffer(store: Open) -> None:
    """From the offset on."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"abcdef")
    buffer = bytearray(3)
    storage.read_into("step-00000001/arrays/a/c", memoryview(buffer), offset=2, size=6)
    assert bytes(buffer) == b"cde"


def test_a_file_of_another_size_or_past_its_end_is_truncated(store: Open) -> None:
    """Never zeros."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"abcdef")
    for offset, size in [(0, 7), (0, 5), (5, 6)]:
        with pytest.raises(TruncatedFile):
            storage.read_into(
                "step-00000001/arrays/a/c", memoryview(bytearray(3)), offset=offset, size=size
            )
    with pytest.raises(TruncatedFile):
        storage.read("step-00000001/arrays/a/c", 5)


def test_what_is_missing_is_missing(store: Open) -> None:
    """Files and steps."""
    storage = opened(store)
    with pytest.raises(MissingFile):
        storage.read("step-00000001/arrays/a/c", 5)
    with pytest.raises(MissingFile):
        storage.delete("step-00000001")


def test_a_deleted_step_is_gone_and_its_neighbours_are_not(store: Open) -> None:
    """Name and files."""
    storage = opened(store)
    for name in ("step-00000001", "step-00000002"):
        write(storage, name, a=b"x")
    storage.delete("step-00000001")
    assert not storage.taken("step-00000001")
    assert storage.read("step-00000002/arrays/a/c", 1) == b"x"


def test_there_is_one_writer_and_the_end_of_its_context_lets_go(store: Open) -> None:
    """Also within one process."""
    one, other = opened(store), store()
    with one.lock(), pytest.raises(DirectoryLocked), other.lock():
        pass
    with other.lock():
        pass


def test_a_file_of_a_published_step_is_linked_and_outlives_it(store: Open) -> None:
    """Under another path, through the replacement of its step and its deletion."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"abc", b=b"old")
    with storage.attempt("step-00000001") as attempt:
        keep(attempt, "step-00000001/arrays/a/c", "arrays/kept/c")
        attempt.put("arrays/b/c", [b"new"])
        attempt.publish(b"record", replace=True)
    assert storage.read("step-00000001/arrays/kept/c", 3) == b"abc"
    with storage.attempt("step-00000002") as attempt:
        keep(attempt, "step-00000001/arrays/kept/c", "arrays/a/c")
        attempt.publish(b"record", replace=False)
    storage.delete("step-00000001")
    assert storage.read("step-00000002/arrays/a/c", 3) == b"abc"


def test_what_is_missing_or_has_another_size_is_not_linked(store: Open) -> None:
    """Nothing is there then; to copy it is an error with the file."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"abc")
    with storage.attempt("step-00000002") as attempt:
        assert not attempt.link("step-00000001/arrays/z/c", "arrays/z/c", None)
        assert not attempt.link("step-00000001/arrays/a/c", "arrays/a/c", 4)
        with pytest.raises(MissingFile):
            attempt.copy("step-00000001/arrays/z/c", "arrays/z/c")
        attempt.copy("step-00000001/arrays/a/c", "arrays/a/c")
        keep(attempt, "step-00000001/arrays/a/c", "arrays/b/c")
        attempt.publish(b"record", replace=False)
    assert storage.read("step-00000002/arrays/a/c", 3) == b"abc"
    assert storage.read("step-00000002/arrays/b/c", 3) == b"abc"


def test_a_step_with_files_of_somebody_else_is_neither_replaced_nor_deleted(store: Open) -> None:
    """The error names them."""
    storage = opened(store)
    with storage.attempt("step-00000001") as attempt:
        attempt.put("arrays/a/notes.txt", [b"mine"])
        attempt.publish(b"record", replace=False)
    with pytest.raises(StorageError, match=r"notes\.txt"):
        write(storage, "step-00000001", replace=True, a=b"x")
    with pytest.raises(StorageError, match=r"notes\.txt"):
        storage.delete("step-00000001")
    assert storage.read("step-00000001/arrays/a/notes.txt", 4) == b"mine"


def test_a_replacement_of_what_is_no_longer_there_is_refused(store: Open) -> None:
    """By the record that it must have."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"old")
    for former in (b"record", b"other"):
        with storage.attempt("step-00000001") as attempt:
            attempt.put("arrays/a/c", [former])
            if former == b"record":
                attempt.publish(b"newer", replace=True, former=former)
            else:
                with pytest.raises(StepExists, match="meanwhile"):
                    attempt.publish(b"newest", replace=True, former=former)
    assert storage.read("step-00000001/arrays/a/c", 6) == b"record"
    storage.delete("step-00000001")
    with storage.attempt("step-00000001") as attempt, pytest.raises(StepExists, match="meanwhile"):
        attempt.publish(b"newest", replace=True, former=b"newer")


def test_a_step_is_kept_while_it_is_read_and_not_longer(store: Open) -> None:
    """From deletion, from being set aside and from replacement; by as many as there are."""
    storage, other = opened(store), store()
    write(storage, "step-00000001", a=b"one")
    with storage.reading("step-00000001"):
        with other.reading("step-00000001"):
            pass
        for refused in (other.delete, lambda name: other.set_aside(name, "damaged")):
            with pytest.raises(StepHeld):
                refused("step-00000001")
        with pytest.raises(StepHeld):
            write(other, "step-00000001", replace=True, a=b"two")
        assert storage.read("step-00000001/arrays/a/c", 9) == b"one"
    other.delete("step-00000001")
    with pytest.raises(StepDeleted), storage.reading("step-00000001"):
        pass


def test_a_step_that_is_set_aside_is_there_under_another_name(store: Open) -> None:
    """Which is none of a step, and which nobody sweeps."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"one")
    name = storage.set_aside("step-00000001", "abandoned")
    assert name.startswith(".abandoned-step-00000001-")
    storage.sweep()
    assert storage.read(f"{name}/arrays/a/c", 9) == b"one"
    assert not storage.taken("step-00000001")
    with pytest.raises(MissingFile):
        storage.set_aside("step-00000001", "abandoned")


def test_small_files_are_added_replaced_and_removed(store: Open) -> None:
    """In a step that is there; it is deleted with them."""
    storage = opened(store)
    write(storage, "step-00000001", a=b"one")
    assert storage.files("step-00000001/notes") == []
    for data in (b"first", b"second"):
        storage.add("step-00000001/notes/x.json", data)
        assert storage.read("step-00000001/notes/x.json", 9) == data
    assert storage.files("step-00000001/notes") == ["x.json"]
    storage.discard("step-00000001/notes/x.json")
    assert storage.files("step-00000001/notes") == []
    with pytest.raises(MissingFile):
        storage.discard("step-00000001/notes/x.json")
    with pytest.raises(MissingFile):
        storage.add("step-00000002/notes/x.json", b"")
    storage.add("step-00000001/notes/y.json", b"y")
    storage.delete("step-00000001")
    assert not storage.taken("step-00000001")
