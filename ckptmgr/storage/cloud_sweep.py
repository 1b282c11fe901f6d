"""Sweeping a prefix of what dead writers left: data, half-done moves, holds and probes.

Data goes once its marker has aged and no pointer leads to it; as long as there is a
pointer that cannot be read, what it may lead to stays.
"""

from __future__ import annotations

import re
import time
from typing import Final, Protocol

import msgspec

from ckptmgr.errors import Exhausted, MissingFile, StorageError
from ckptmgr.format.step import COMMIT_RECORD
from ckptmgr.storage import holds, probe
from ckptmgr.storage.cloud_attempt import ATTEMPTS, Marker, remove_data
from ckptmgr.storage.objects import Objects
from ckptmgr.storage.pointer import is_data

_ASIDE: Final = re.compile(
    rf"(\.(?:damaged|abandoned)-(step-\d{{8,19}})-[0-9a-f]{{16}})/{COMMIT_RECORD}"
)
_SLOW: Final = 600.0  # seconds; for what a writer that died had asked of a store, or of a slow one


class Steps(Protocol):
    """What is swept."""

    objects: Objects

    def names(self) -> list[str]:
        """What has a commit record."""

    def data_of(self, name: str) -> str:
        """Where the data of one of them lies."""

    def gone(self, name: str) -> None:
        """One of them is none any more."""


def sweep(store: Steps, lease_seconds: float) -> list[str]:
    """Sweep, as the one writer; returns what data was removed."""
    holds.sweep(store.objects)
    probe.sweep(store.objects)
    _sweep_aside(store)
    markers = store.objects.keys(ATTEMPTS)
    kept, unclear = _all_pointed(store) if markers else (set(), [])
    removed = []
    for key in markers:
        found = store.objects.get(key)
        if found is None:
            continue
        marker = _marker(key, found.data)
        step = marker.data.partition("/")[0]
        if any(step in name for name in unclear):
            continue
        if marker.data in kept:
            store.objects.delete(key)
        elif marker.since + lease_seconds + _SLOW < time.time():
            remove_data(store.objects, marker.data)
            removed.append(marker.data)
    return removed


def _marker(key: str, data: bytes) -> Marker:
    try:
        marker = msgspec.json.decode(data, type=Marker)
    except msgspec.MsgspecError as error:
        raise StorageError(f"no marker of ours: {error}", file=key) from error
    if not is_data(marker.data):
        raise StorageError(f"no marker of ours: {marker.data!r}", file=key)
    return marker


def _sweep_aside(store: Steps) -> None:
    """Undo what was cut short as a step was set aside: where its own pointer is still there."""
    objects = store.objects
    for key in [*objects.keys(".damaged-"), *objects.keys(".abandoned-")]:
        match = _ASIDE.fullmatch(key)
        if match is None:
            continue
        aside, there = objects.get(key), objects.get(f"{match[2]}/{COMMIT_RECORD}")
        if aside and there and aside.data == there.data:
            objects.delete(key)
            store.gone(match[1])


def _all_pointed(store: Steps) -> tuple[set[str], list[str]]:
    """The data of every step, and of what was set aside; and those that cannot say."""
    found, unclear = set(), []
    for name in store.names():
        try:
            found.add(store.data_of(name))
        except MissingFile:
            continue  # it went meanwhile
        except Exhausted:
            raise
        except StorageError:
            unclear.append(name)
    return found, unclear
