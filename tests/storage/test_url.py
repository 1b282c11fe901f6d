"""Where a run lies: paths and URLs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptmgr
from ckptmgr import CheckpointManager, InvalidOption, MemoryStorage, NoSuchStep, ObjectStore
from ckptmgr.storage.cloud import CloudStorage
from ckptmgr.storage.local import LocalStorage
from ckptmgr.storage.url import absolute, at, parent, storage_of


def test_a_url_is_a_prefix_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slash at its end says nothing more; what the environment says of the endpoint counts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for url in ("s3://bucket/runs/a", "s3://bucket/runs/a/", "S3://bucket/runs/a"):
        store = storage_of(url)
        assert isinstance(store, CloudStorage)
        assert store.root == "s3://bucket/runs/a"
    assert storage_of("gs://bucket").root == "gs://bucket"
    store, name = parent("s3://bucket/a/b")
    assert (store.root, name) == ("s3://bucket/a", "b")


def test_a_path_is_local_and_a_store_is_itself(tmp_path: Path) -> None:
    """What is given as `storage` goes before what the path says."""
    assert isinstance(storage_of(tmp_path), LocalStorage)
    memory = MemoryStorage()
    assert storage_of("anything", memory) is memory
    assert absolute("s3://bucket/a") == "s3://bucket/a"
    with pytest.raises(NoSuchStep):
        at(tmp_path / "absent")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/run", "no store is known for 'ftp'"),
        ("://bucket/run", "no store is known"),
        ("s3:///run", "is no bucket"),
        ("s3://ab/run", "3 or more characters"),
        ("s3://Bucket_/run", "is no bucket"),
        ("s3://bucket/../run", "cannot be a part"),
        ("s3://bucket/a//b", "cannot be a part"),
        ("s3://bucket/a?versionId=1", "cannot be a part"),
        ("s3://bucket/a\nb", "cannot be a part"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused(url: str, said: str) -> None:
    """With what it can be; before anything is asked of a network."""
    with pytest.raises(InvalidOption, match=said):
        CheckpointManager(url)


def test_a_url_with_credentials_is_refused_without_repeating_them() -> None:
    """They belong into the environment."""
    with pytest.raises(InvalidOption) as caught:
        CheckpointManager("s3://key:canary-secret@bucket/run")
    assert "canary" not in str(caught.value)
    assert "environment" in str(caught.value)
    for url in ("s3://key:canary/secret@bucket/run", "s3://key:canary@bucket"):
        with pytest.raises(InvalidOption, match="environment") as caught:
            ckptmgr.load(url)
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "host"},
        {"endpoint": "http://user:secret@host"},
        {"endpoint": "http://host/path"},
        {"retries": -1},
        {"retries": 1.5},
        {"deadline": 0},
        {"deadline": "60"},
        {"lease_seconds": float("inf")},
    ],
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    """By name."""
    with pytest.raises(InvalidOption, match=next(iter(options))) as caught:
        ObjectStore(**options)  # type: ignore[arg-type]  # that is what is tested
    assert "secret" not in str(caught.value)


def test_options_of_another_place_are_refused(tmp_path: Path) -> None:
    """Rather than ignored."""
    with pytest.raises(InvalidOption, match="local directory"):
        CheckpointManager(tmp_path, storage=ObjectStore())
    with pytest.raises(InvalidOption, match="are of s3://"):
        CheckpointManager("gs://bucket/run", storage=ObjectStore(region="x"))
    with pytest.raises(InvalidOption, match="is a bucket"):
        parent("s3://bucket")
