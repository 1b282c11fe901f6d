"""Steps in object stores: damage, replies that are lost, leftovers, and what a trainer does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import ckptmgr
from ckptmgr import (
    CheckpointManager,
    DamagedStep,
    KeepLast,
    NoSuchStep,
    StepExists,
    StepHeld,
    StorageError,
    StoreUnavailable,
    verify,
)
from ckptmgr.storage.cloud import CloudStorage
from ckptmgr.storage.cloud_attempt import ATTEMPTS, Marker, marker_of
from ckptmgr.storage.objects import Objects
from ckptmgr.storage.pointer import pointed
from ckptmgr.storage.url import storage_of
from tests.storage.proxy import Asked, Proxy, before
from tests.storage.servers import Store
from tests.trees import assert_same, common

TREE = {"large": np.arange(300_000.0), "small": np.arange(3.0), "other": np.arange(4.0)}


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Store:
    """A prefix on each kind of store."""
    found: Store = request.getfixturevalue(request.param)
    return found


def objects_of(store: Store) -> Objects:
    """The objects of a prefix."""
    found = storage_of(store.url, store.options)
    assert isinstance(found, CloudStorage)
    return found.objects


def data_of(objects: Objects, step: int) -> dict[str, bytes]:
    """The objects of a step's data by their paths in it."""
    pointer = objects.get(f"step-{step:08d}/checkpoint.json")
    assert pointer is not None
    prefix = f"{pointed(pointer.data, '')[0].data}/"
    found = {key: objects.get(key) for key in objects.keys(prefix)}
    return {key: value.data for key, value in found.items() if value is not None}


def test_a_run_is_a_run(store: Store) -> None:
    """Saved, looked at, kept, annotated, overwritten, rolled back, and found by another."""
    tree = common()
    with CheckpointManager(store.url, keep=KeepLast(2), storage=store.options) as manager:
        for step in range(4):
            manager.save(step, tree, metrics={"loss": 1.0 / (step + 1)}).result()
        manager.wait()
        assert manager.all_steps() == [2, 3]
        assert_same(manager.restore(), tree)
        assert manager.verify().ok
        manager.annotate(3, metrics={"score": 2.0})
        with pytest.raises(StepExists):
            manager.save(3, tree)
        manager.save(3, {"new": jnp.ones(2)}, overwrite=True).result()
        assert manager.info(3).metrics == {}
        manager.pin(2)
        manager.rollback(2)
    with CheckpointManager(store.url, storage=store.options, read_only=True) as reader:
        assert reader.all_steps() == [2]
        assert reader.info(2).pinned
        assert_same(reader.restore(), tree)
    keys = objects_of(store).keys("")
    assert not [key for key in keys if key.startswith((".attempts", ".holds", ".lock", ".probe"))]


def test_a_tree_at_a_url_is_saved_loaded_and_added_to(store: Store) -> None:
    """As at a path."""
    url = f"{store.url}/model"
    with pytest.raises(NoSuchStep):
        ckptmgr.load(url, storage=store.options)
    ckptmgr.save(url, {"a": jnp.ones(3)}, storage=store.options)
    with pytest.raises(StepExists):
        ckptmgr.save(url, {"a": jnp.ones(3)}, storage=store.options)
    ckptmgr.save(url, {"b": 2}, merge=True, storage=store.options)
    assert_same(ckptmgr.load(url, storage=store.options), {"a": jnp.ones(3), "b": 2})
    assert ckptmgr.verify(url, storage=store.options).ok
    assert ckptmgr.load_structure(url, storage=store.options)["b"] is int
    ckptmgr.save(url, {"c": 1.0}, overwrite=True, storage=store.options)
    assert ckptmgr.load(url, storage=store.options) == {"c": 1.0}


def test_a_part_of_a_tree_is_read_in_parts(s3: Store) -> None:
    """Not the other arrays, and of a pack only what is asked for."""
    many = {f"leaf_{i}": np.full(1000, float(i)) for i in range(100)}
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, {"many": many, **TREE}).result()
    with before(s3.endpoint) as (proxy, endpoint):
        options = s3.of(endpoint=endpoint)
        found = ckptmgr.load(s3.url, select="many/leaf_7", storage=options)
    assert np.array_equal(found["many"]["leaf_7"], many["leaf_7"])
    assert not [asked for asked in proxy.asked if "large" in asked.path]


@pytest.mark.parametrize("damage", ["flipped", "removed", "cut", "longer", "swapped"])
def test_damage_is_found_and_the_step_before_is_restored(store: Store, damage: str) -> None:
    """Whatever object it befalls."""
    objects = objects_of(store)
    options = store.of(lease_seconds=0.5)
    with CheckpointManager(store.url, storage=options) as manager:
        manager.save(0, TREE).result()
        manager.save(1, TREE).result()
    whole = data_of(objects, 1)
    for key, data in whole.items():
        if damage == "flipped":
            objects.put(key, bytes([data[0] ^ 1]) + data[1:])
        elif damage == "removed":
            objects.delete(key)
        elif damage == "cut":
            objects.put(key, data[:-1])
        elif damage == "longer":
            objects.put(key, data + b" ")
        else:
            objects.put(key, next(other for other in whole.values() if other != data))
        with CheckpointManager(store.url, storage=options, read_only=True) as reader:
            report = reader.verify(1)
            assert not report.ok, key
            assert_same(reader.restore(), TREE)
            if not key.endswith("zarr.json"):
                with pytest.raises(DamagedStep):
                    reader.restore(1)
        objects.put(key, data)
    with CheckpointManager(store.url, storage=options, read_only=True) as reader:
        assert reader.verify(1).ok


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"data": 3}\n',
        b'{"data": "../../other/0123456789abcdef"}\n',
        b"[" * 99,
    ],
)
def test_a_pointer_to_nowhere_is_damage(s3: Store, text: bytes) -> None:
    """It costs that step alone, and is set aside when its number is saved again."""
    objects = objects_of(s3)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
        manager.save(1, TREE).result()
    objects.put("step-00000001/checkpoint.json", text)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        assert manager.all_steps() == [0]
        assert_same(manager.restore(), TREE)
        manager.save(1, TREE).result()
        assert manager.all_steps() == [0, 1]
    assert objects.keys(".damaged-step-00000001")


@pytest.fixture
def proxied(s3: Store) -> Iterator[tuple[Proxy, Store]]:
    """A prefix behind a proxy."""
    with before(s3.endpoint) as (proxy, endpoint):
        options = s3.of(endpoint=endpoint, deadline=5.0, retries=0)
        yield proxy, Store(s3.url, endpoint, options)


def commits(asked: Asked) -> bool:
    """Whether this puts a commit record."""
    return asked.kind == "put" and asked.path.endswith("checkpoint.json")


def test_a_commit_whose_reply_was_lost_is_known_for_what_it_is(
    proxied: tuple[Proxy, Store],
) -> None:
    """Read back, and no failure."""
    proxy, store = proxied
    with CheckpointManager(store.url, storage=store.options) as manager:
        proxy.fault = lambda asked: "lost" if commits(asked) else None
        assert manager.save(0, TREE).result() is not None
        proxy.fault = lambda _: None
        assert manager.verify(0).ok


def test_a_commit_that_nobody_knows_of_is_never_half_a_step(proxied: tuple[Proxy, Store]) -> None:
    """It fails, and its data stays for as long as it may still have become a step."""
    proxy, store = proxied
    committed: list[bool] = []

    def broken(asked: Asked) -> str | None:
        if commits(asked):
            committed.append(True)
            return "lost"
        return "503" if committed and asked.path.endswith("checkpoint.json") else None

    with CheckpointManager(store.url, storage=store.options) as manager:
        proxy.fault = broken
        error = manager.save(0, TREE).exception()
        proxy.fault = lambda _: None
        assert isinstance(error, StoreUnavailable)
    with CheckpointManager(store.url, storage=store.options) as manager:
        assert manager.all_steps() == [0]
        assert manager.verify(0).ok
        assert_same(manager.restore(), TREE)
    assert not objects_of(store).keys(ATTEMPTS)


def test_what_a_dead_writer_left_is_swept_when_it_has_aged(s3: Store) -> None:
    """Not what a step leads to, and not what is young."""
    objects = objects_of(s3)
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
    (kept,) = {key.rpartition("/arrays/large/c.0")[0] for key in data_of(objects, 0)} - {""}
    kept = "/".join(next(iter(data_of(objects, 0))).split("/")[:2])
    data = {"old": f"step-00000007/{'a' * 16}", "young": f"step-00000008/{'b' * 16}", "kept": kept}
    for name, prefix in data.items():
        since = time.time() - (0 if name == "young" else 3600)
        objects.put(marker_of(prefix), msgspec.json.encode(Marker(prefix, since)))
        if name != "kept":
            objects.put(f"{prefix}/arrays/a/c.0", b"x")
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        assert manager.verify(0).ok
    assert objects.keys(ATTEMPTS) == [marker_of(data["young"])]
    assert not objects.keys("step-00000007")
    assert objects.keys("step-00000008")


@pytest.mark.parametrize("moved", [True, False])
def test_a_step_whose_setting_aside_was_cut_short_is_whole_under_one_name(
    proxied: tuple[Proxy, Store], *, moved: bool
) -> None:
    """Nobody knew whether its old pointer went; both stay until the next writer can look."""
    proxy, store = proxied
    broken = threading.Event()

    def fault(asked: Asked) -> str | None:
        if not asked.path.endswith("step-00000001/checkpoint.json"):
            return None
        if asked.kind == "delete":
            broken.set()
            return "lost" if moved else "reset"
        return "503" if broken.is_set() else None

    with CheckpointManager(store.url, storage=store.options) as manager:
        for step in range(2):
            manager.save(step, TREE).result()
    storage = storage_of(store.url, store.options)
    with storage.lock():
        proxy.fault = fault
        with pytest.raises(StoreUnavailable):
            storage.set_aside("step-00000001", "abandoned")
        proxy.fault = lambda _: None
    objects = objects_of(store)
    (aside,) = (key.partition("/")[0] for key in objects.keys(".abandoned-"))
    with CheckpointManager(store.url, storage=store.options) as manager:
        assert manager.all_steps() == ([0] if moved else [0, 1])
        if not moved:
            assert manager.verify(1).ok
    assert bool(objects.keys(".abandoned-")) == moved
    if moved:
        assert verify(f"{store.url}/{aside}", storage=store.options).ok


def test_a_step_that_stays_as_it_is_read_has_no_other_name(s3: Store) -> None:
    """Setting it aside is refused, and nothing is left of it."""
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
    storage = storage_of(s3.url, s3.options)
    with storage.lock(), storage.reading("step-00000000"), pytest.raises(StepHeld):
        storage.set_aside("step-00000000", "abandoned")
    assert not objects_of(s3).keys(".abandoned-")


def test_a_listing_during_which_a_step_was_committed_is_not_kept(
    proxied: tuple[Proxy, Store],
) -> None:
    """What was put after the store had answered would never be seen."""
    proxy, store = proxied
    storage = storage_of(store.url, store.options)

    def commit(asked: Asked) -> None:
        if asked.kind == "list":
            proxy.after = lambda _: None
            with storage.attempt("step-00000000") as attempt:
                attempt.publish(b"{}", replace=False)

    with storage.lock():
        proxy.after = commit
        assert storage.names() == []
        assert storage.taken("step-00000000")
        assert storage.names() == ["step-00000000"]


def test_two_prefixes_do_not_know_of_each_other(s3: Store) -> None:
    """Not even where one's name begins as the other's."""
    other = f"{s3.url}-more"
    with (
        CheckpointManager(s3.url, storage=s3.options, keep=KeepLast(1)) as one,
        CheckpointManager(other, storage=s3.options) as two,
    ):
        for step in range(2):
            two.save(step, TREE).result()
            one.save(step, TREE).result()
        one.wait()
        assert (one.all_steps(), two.all_steps()) == ([1], [0, 1])


def test_the_record_is_the_last_thing_put_and_the_first_removed(
    proxied: tuple[Proxy, Store],
) -> None:
    """By what the store was asked for."""
    proxy, store = proxied
    with CheckpointManager(store.url, storage=store.options) as manager:
        proxy.asked.clear()
        manager.save(0, TREE).result()
        puts = [asked.path for asked in proxy.asked if asked.kind == "put"]
        steps = [path for path in puts if "/step-" in path]
        assert steps[-1].endswith("step-00000000/checkpoint.json")
        manager.save(1, TREE).result()
        proxy.asked.clear()
        manager.delete(0)
        gone = [asked.path for asked in proxy.asked if asked.kind == "delete"]
        steps = [path for path in gone if "/step-00000000/" in path and "holds" not in path]
        assert steps[0].endswith("step-00000000/checkpoint.json")


def test_the_manifest_says_nothing_of_where_it_lies(s3: Store) -> None:
    """So that what is copied elsewhere is the same."""
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(0, TREE).result()
    for data in data_of(objects_of(s3), 0).values():
        assert b"bucket" not in data
        assert s3.endpoint.encode() not in data
    record = objects_of(s3).get("step-00000000/checkpoint.json")
    assert record is not None
    assert json.loads(record.data.split(b"\n")[0])["data"].startswith("step-00000000/")


def test_a_store_that_cannot_be_reached_says_nothing_against_a_step(
    proxied: tuple[Proxy, Store],
) -> None:
    """It counts as good; opening, restoring and verifying are errors of the store."""
    proxy, store = proxied
    with CheckpointManager(store.url, storage=store.options) as manager:
        manager.save(0, TREE).result()
        proxy.fault = lambda asked: "503" if asked.kind == "get" else None
        for call in (manager.restore, manager.verify):
            with pytest.raises(StorageError, match="SlowDown"):
                call()
        proxy.fault = lambda _: None
        assert manager.all_steps() == [0]
        assert_same(manager.restore(), TREE)
    proxy.fault = lambda asked: "503" if asked.kind == "get" else None
    with pytest.raises(StorageError, match="SlowDown"):
        CheckpointManager(store.url, storage=store.options, read_only=True)
