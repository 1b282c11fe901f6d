"""Mutations of everything that is parsed: an error of ours, or something sound.

A few thousand in `make test`, a million in `make fuzz`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import ckptmgr
from ckptmgr import CheckpointError
from ckptmgr.errors import MsgpackError
from ckptmgr.format import encoding, msgpack
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import CommitRecord, Manifest
from ckptmgr.pipeline import forms
from ckptmgr.tree.registry import Registry
from tests.golden.make import OPTIONS, leaves
from tests.hostile.mutations import OF_BYTES, OF_TREES, Mutate

OWED = int(os.environ.get("CKPTMGR_FUZZ", "9000")) // 6  # by each of the tests
BATCH = 5_000  # hypothesis remembers all that it tried in one

Parser = Callable[[bytes], object]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with classes, keys, codecs and a note."""
    run = tmp_path_factory.mktemp("fuzz") / "run"
    with ckptmgr.CheckpointManager(run, leaf_options=OPTIONS) as manager:
        manager.save(1, leaves(), metrics={"loss": float("nan")}, metadata={"a": [1]}).result()
        manager.annotate(1, metrics={"score": 1.0})
    return run / "step-00000001"


def sealed(raw: bytes) -> bytes:
    """A record or a note with the digest of itself."""
    return b'{"digest":"' + digest(raw).encode() + b'","record":' + raw + b"}\n"


def content(path: Path) -> bytes:
    """What is in such an envelope."""
    data = path.read_bytes()
    return data[data.index(b'"record":') + 9 : -2]


def fuzz(
    data: bytes,
    parse: Parser,
    kinds: st.SearchStrategy[Mutate] = OF_TREES | OF_BYTES,
    errors: type[Exception] = CheckpointError,
) -> None:
    """Parse as many mutations of these bytes as a target owes; only `errors` may be raised."""
    tried, sound = 0, 0

    @settings(
        max_examples=min(BATCH, OWED),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(kinds)
    def some(mutate: Mutate) -> None:
        nonlocal tried, sound
        for mutated in mutate(data):
            tried += 1
            with contextlib.suppress(errors):
                parse(mutated)
                sound += 1

    number = 0
    while tried < OWED:
        seed(number)(some)()
        number += 1
    print(f"{tried} mutations, {sound} of them sound")
    assert sound < tried


def test_commit_records(step: Path) -> None:
    """With an envelope that vouches for them."""
    fuzz(content(step / "checkpoint.json"), lambda raw: encoding.decode_record(sealed(raw), "f"))


def test_envelopes(step: Path) -> None:
    """As they are."""
    fuzz((step / "checkpoint.json").read_bytes(), lambda data: encoding.decode_record(data, "f"))


def test_notes(step: Path) -> None:
    """With an envelope that vouches for them."""
    (note,) = (step / "notes").iterdir()
    fuzz(content(note), lambda raw: encoding.decode_note(sealed(raw), "f"))


def _manifest(step: Path) -> tuple[bytes, Parser]:
    record = encoding.decode_record((step / "checkpoint.json").read_bytes(), "f")

    def parse(data: bytes) -> object:
        proof = {"manifest_nbytes": len(data), "manifest_digest": digest(data)}
        return encoding.decode_manifest(data, _vouching(record, **proof), "f")

    return (step / "tree.json").read_bytes(), parse


def _vouching(record: CommitRecord, **changes: object) -> CommitRecord:
    return msgspec.structs.replace(record, **changes)


def test_manifests(step: Path) -> None:
    """That a record vouches for."""
    fuzz(*_manifest(step))


def test_structures(step: Path) -> None:
    """Of manifests that are sound: the tree is made, of the forms of its leaves."""
    data, parse = _manifest(step)
    registry, devices = Registry(), tuple(jax.devices())

    def make(mutated: bytes) -> object:
        manifest = parse(mutated)
        assert isinstance(manifest, Manifest)
        return forms.describe(manifest, registry, devices)

    fuzz(data, make)


def test_msgpack() -> None:
    """Every extension type, nested."""
    tree = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3),
        "b": (1, 2.5, (3 - 1j, None, True)),
        "c": [np.float32(1.5), b"bytes", "text", {"d": {}, "e": []}],
    }
    fuzz(msgpack.serialize(tree), msgpack.restore, OF_BYTES, MsgpackError)
