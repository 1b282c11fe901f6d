"""The probe: what a store must honour, tried before anything is trusted to it."""

from __future__ import annotations

import contextlib
import time

from absl import logging

from ckptmgr.errors import CheckpointError, StorageError, TruncatedFile
from ckptmgr.format.step import nonce
from ckptmgr.storage.objects import Objects, absent

PROBE = ".probe-"
_OLD = 3600  # seconds; no probe takes as long
_DATA = b"0123456789"
_RACERS = 8


def probe(objects: Objects, *, one_writer: bool) -> None:
    """Try a create-only put, a conditional one, a range and a listing on an object of its own.

    `one_writer`: do without conditions, as nobody else ever writes here.

    Raises:
      StorageError: the store ignores one of them; the text says which, and what to do.
    """
    key = f"{PROBE}{int(time.time())}-{nonce()}"
    try:
        for fault in _faults(objects, key):
            if not one_writer:
                raise StorageError(
                    f"this store ignores {fault}, so two writers would not notice each other: use "
                    "one that honours If-Match and If-None-Match, or give "
                    "storage=ObjectStore(one_writer=True) where nobody else ever writes",
                    file=objects.root,
                )
            logging.warning("%s ignores %s; nobody else may write there", objects.root, fault)
        _read_back(objects, key)
    finally:
        with contextlib.suppress(CheckpointError):
            objects.delete(key)


def sweep(objects: Objects) -> None:
    """Remove what probes left whose process died; others may be under way."""
    for key in objects.keys(PROBE):
        if int(key.split("-")[1]) + _OLD < time.time():
            objects.delete(key)


def _faults(objects: Objects, key: str) -> list[str]:
    """The conditions that are ignored.

    Several puts meet, as TensorStore looks for itself first: one after the other it would
    notice, whatever the store does.
    """
    found = []
    if objects.race(key, [nonce().encode() for _ in range(_RACERS)], absent()) > 1:
        found.append("create-only puts")
    there = objects.put(key, _DATA)
    if objects.put(key, nonce().encode(), only=there) is None:
        raise StorageError("a put on a condition that holds was refused", file=objects.root)
    there = objects.put(key, _DATA)
    assert there is not None, "no condition was asked for"
    if objects.race(key, [nonce().encode() for _ in range(_RACERS)], there) > 1:
        found.append("puts on a condition")
    objects.put(key, _DATA)
    return found


def _read_back(objects: Objects, key: str) -> None:
    part = objects.get_range(key, 2, 5)
    if part != _DATA[2:5]:
        raise StorageError(f"this store ignores ranges: {part!r}", file=objects.root)
    try:
        objects.get_range(key, 5, len(_DATA) + 1)
    except TruncatedFile:
        pass
    else:
        raise StorageError("this store answers ranges past the end", file=objects.root)
    if key not in objects.keys(PROBE):
        raise StorageError("this store does not list what was just put", file=objects.root)
