"""Leases: one writer, known by what it renews; and holds of those that read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from ckptmgr import CheckpointManager, DirectoryLocked, StepHeld, StorageError
from ckptmgr.storage import holds, lease
from ckptmgr.storage.cloud import CloudStorage
from ckptmgr.storage.objects import Objects
from ckptmgr.storage.url import storage_of
from tests.storage.proxy import Asked, Proxy, before
from tests.storage.servers import Store

TREE = {"a": np.ones(3)}
LOCK = ".lock"


def objects_of(store: Store) -> Objects:
    """The objects of a prefix."""
    found = storage_of(store.url, store.options)
    assert isinstance(found, CloudStorage)
    return found.objects


def holder(**changes: object) -> bytes:
    """A lease of somebody on another machine."""
    said = {"host": "elsewhere", "pid": 7, "place": "there", "nonce": "0" * 16, "renewed": 0}
    return msgspec.json.encode({**said, "seconds": 1.0, **changes})


def test_another_manager_is_refused_by_name(s3: Store) -> None:
    """In this process too; once the first has closed there is nothing to wait for."""
    with (
        CheckpointManager(s3.url, storage=s3.options),
        pytest.raises(DirectoryLocked, match=f"pid {os.getpid()}"),
    ):
        CheckpointManager(s3.url, storage=s3.options)
    long = s3.of(lease_seconds=3600.0)
    for _ in range(2):
        with CheckpointManager(s3.url, storage=long):
            pass


def test_a_lease_of_a_machine_that_is_gone_is_taken_over_when_it_has_expired(s3: Store) -> None:
    """By the clock of who waits."""
    objects_of(s3).put(LOCK, holder())
    began = time.monotonic()
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        assert time.monotonic() - began >= 1.0
        manager.save(0, TREE).result()


WRITER = """
import sys, time
import numpy as np
from ckptmgr import CheckpointManager, ObjectStore
manager = CheckpointManager(sys.argv[1], storage=ObjectStore(
    endpoint=sys.argv[2], region="us-east-1", lease_seconds=3600.0))
manager.save(0, {"a": np.ones(3)}).result()
print("saved", flush=True)
time.sleep(600)
"""


def test_a_lease_of_a_process_that_was_killed_here_is_taken_over_at_once(s3: Store) -> None:
    """However long it says that it lasts."""
    command = [sys.executable, "-c", WRITER, s3.url, s3.endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"saved\n"
        writer.send_signal(signal.SIGKILL)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        assert manager.all_steps() == [0]


@pytest.mark.parametrize("thief", [True, False])
def test_who_has_lost_its_lease_cannot_commit(s3: Store, *, thief: bool) -> None:
    """Nor delete; nothing of the save is left."""
    objects = objects_of(s3)
    with CheckpointManager(s3.url, storage=s3.of(lease_seconds=3600.0)) as manager:
        manager.save(0, TREE).result()
        if thief:
            objects.put(LOCK, holder())
        else:
            objects.delete(LOCK)
        with pytest.raises(DirectoryLocked, match="elsewhere" if thief else "removed"):
            manager.save(1, TREE).result()
        with pytest.raises(DirectoryLocked):
            manager.delete(0)
        assert manager.all_steps() == [0]
    assert not [key for key in objects.keys("") if key.startswith("step-00000001")]


@pytest.fixture
def proxied(s3: Store) -> Iterator[tuple[Proxy, Store]]:
    """A prefix behind a proxy."""
    with before(s3.endpoint) as (proxy, endpoint):
        yield proxy, Store(s3.url, endpoint, s3.of(endpoint=endpoint, deadline=5.0, retries=1))


def test_a_lease_that_cannot_be_renewed_is_lost_by_its_own_clock(
    proxied: tuple[Proxy, Store],
) -> None:
    """So nobody commits under a lease that another may have taken over."""
    proxy, store = proxied
    objects = objects_of(store)
    held = lease.Lease(objects, LOCK, 0.5)
    try:
        proxy.fault = lambda asked: "503" if asked.kind == "put" else None
        with pytest.raises((StorageError, DirectoryLocked)):
            while True:
                held.ensure()
        with pytest.raises(DirectoryLocked, match="not be renewed"):
            while True:
                with_error(held)
    finally:
        proxy.fault = lambda _: None
        held.release()


def with_error(held: lease.Lease) -> None:
    """Try; where the store fails, there is time left."""
    try:
        held.ensure()
    except DirectoryLocked:
        raise
    except StorageError:
        return


def test_a_renewal_whose_reply_was_lost_loses_nothing(proxied: tuple[Proxy, Store]) -> None:
    """What lies there is one's own."""
    proxy, store = proxied
    held = lease.Lease(objects_of(store), LOCK, 3600.0)
    try:
        lost = ["lost"]
        proxy.fault = lambda asked: lost.pop() if lost and asked.kind == "put" else None
        assert held.ensure() > 3000
        assert not lost
        # Its retries fail too: nobody knows what has become of it.
        seen: list[Asked] = []

        def broken(asked: Asked) -> str | None:
            seen.append(asked)
            puts = [one for one in seen if one.kind == "put"]
            return "lost" if asked.kind == "put" else "503" if puts else None

        proxy.fault = broken
        with pytest.raises(StorageError):
            held.ensure()
        proxy.fault = lambda _: None
        assert held.ensure() > 3000
    finally:
        held.release()


def test_what_is_no_lease_is_not_taken_over(s3: Store) -> None:
    """It is somebody else's object."""
    objects_of(s3).put(LOCK, b"mine")
    with pytest.raises(StorageError, match="no lease"):
        CheckpointManager(s3.url, storage=s3.options)


def test_a_hold_of_a_reader_that_died_expires(s3: Store) -> None:
    """Until then the step stays."""
    objects = objects_of(s3)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
        manager.save(1, TREE).result()
        key = f"{holds.HOLDS}step-00000000/{'0' * 16}"
        objects.put(key, msgspec.json.encode({"until": time.time() + 3600, "nonce": "a"}))
        with pytest.raises(StepHeld):
            manager.delete(0)
        objects.put(key, msgspec.json.encode({"until": time.time() - 1, "nonce": "a"}))
        manager.delete(0)
        assert manager.all_steps() == [1]
        assert not objects.keys(holds.HOLDS)


def test_a_reader_meets_one_who_removes_the_step(s3: Store) -> None:
    """It waits until that one has given up, or says that the step was deleted."""
    storage = storage_of(s3.url, s3.options)
    objects = objects_of(s3)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
    with holds.removing(objects, "step-00000000"), pytest.raises(StepHeld):
        storage.delete("step-00000000")
    objects.put(
        f"{holds.DELETING}step-00000000",
        msgspec.json.encode({"until": time.time() + 1, "nonce": "a"}),
    )
    with storage.reading("step-00000000"):
        assert not holds.counts(objects, f"{holds.DELETING}step-00000000")


def test_the_trainers_thread_asks_the_store_nothing(proxied: tuple[Proxy, Store]) -> None:
    """`save` asks nothing in the trainer's thread."""
    proxy, store = proxied
    with CheckpointManager(store.url, storage=store.of(lease_seconds=3600.0)) as manager:
        manager.save(0, TREE).result()
        manager.wait()
        proxy.asked.clear()
        hung: list[Asked] = []
        proxy.fault = lambda asked: hung.append(asked) or "hang"  # type: ignore[func-returns-value]  # it says hang
        future = manager.save(1, TREE)  # returns, although the store stands still
        assert not future.done()
        proxy.fault = lambda _: None
        future.exception()
