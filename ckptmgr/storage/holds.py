"""Holds: who reads a step in an object store, and who removes one, as objects that expire.

A reader puts its hold and then looks for one who removes the step; who removes it says so
and then looks for holds: at least one of the two sees the other. Both say until when they
count, by the wall clock, as nobody waits to see whether they are renewed: where clocks
differ by more than that a reader is told that the step was deleted, never other data.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from absl import logging

from ckptmgr.errors import AccessDenied, CheckpointError, StepDeleted, StepHeld, StoreUnavailable
from ckptmgr.format.step import COMMIT_RECORD, nonce
from ckptmgr.storage.objects import Object, Objects, absent

HOLDS, DELETING = ".holds/", ".deleting/"
_REMOVING: Final = 10.0  # seconds that who removes a step needs at most, and a reader waits for it


class _Until(msgspec.Struct, frozen=True):
    """Seconds since the epoch, and what tells one such object from another."""

    until: float
    nonce: str


def _encoded(seconds: float) -> bytes:
    return msgspec.json.encode(_Until(time.time() + seconds, nonce()))


def counts(objects: Objects, key: str) -> bool:
    """Whether a hold, or who removes a step, still counts."""
    found = objects.get(key)
    return found is not None and _counts(found)


def _counts(found: Object) -> bool:
    try:
        return msgspec.json.decode(found.data, type=_Until).until > time.time()
    except msgspec.MsgspecError:
        return False


@contextlib.contextmanager
def reading(objects: Objects, name: str, seconds: float) -> Iterator[None]:
    """Hold a step until the context ends; without permission to write, only hope for it.

    Raises:
      StepDeleted: it is not there, or no longer.
    """
    _refuse_absent(objects, name)
    key = f"{HOLDS}{name}/{nonce()}"
    try:
        objects.put(key, _encoded(seconds))
    except AccessDenied as error:
        denied = str(error)
    else:
        denied = ""
    if denied:
        logging.log_first_n(
            logging.WARNING,
            "a step that is read may be deleted, as no hold can be put: %s",
            1,
            denied,
        )
        yield
        return
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(seconds / 4):
            with contextlib.suppress(CheckpointError):
                objects.put(key, _encoded(seconds), seconds=seconds / 4)

    thread = threading.Thread(target=renew, name="ckptmgr hold", daemon=True)
    try:
        began = time.monotonic()  # another's clock may be hours ahead
        while counts(objects, DELETING + name) and time.monotonic() - began < _REMOVING:
            ended.wait(_REMOVING / 200)
        _refuse_absent(objects, name)
        thread.start()
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join(objects.deadline)
        try:
            objects.delete(key)
        except CheckpointError as error:
            logging.warning("a hold is left to expire: %s", error)


def _refuse_absent(objects: Objects, name: str) -> None:
    if objects.get(f"{name}/{COMMIT_RECORD}") is None:
        raise StepDeleted("the step was deleted", file=f"{objects.root}/{name}")


@contextlib.contextmanager
def removing(objects: Objects, name: str) -> Iterator[Callable[[], float]]:
    """Be the only one who has to do with a step until the context ends. Does not wait.

    What it gives is to be called right before the step is touched: the seconds there are for it.

    Raises:
      StepHeld: somebody reads, holds or removes it.
    """
    key, file = DELETING + name, f"{objects.root}/{name}"
    found, began = objects.get(key), time.monotonic()
    if found is not None and _counts(found):
        raise StepHeld("it is being replaced or removed; try again later", file=file)
    only = found.generation if found else absent()
    mine = objects.put(key, _encoded(_REMOVING), only=only)
    if mine is None:
        raise StepHeld("it is being replaced or removed; try again later", file=file)
    try:
        for hold in objects.keys(f"{HOLDS}{name}/"):
            there = objects.get(hold)
            if there is not None and _counts(there):
                raise StepHeld("it is being read or held; try again later", file=file)
            if there is not None:
                objects.delete(hold, only=there.generation)

        def left() -> float:
            seconds = began + _REMOVING - time.monotonic()
            if seconds <= 0:
                raise StoreUnavailable("the store was too slow to remove a step safely", file=file)
            return seconds

        yield left
    finally:
        with contextlib.suppress(CheckpointError):
            objects.delete(key, only=mine)


def sweep(objects: Objects) -> None:
    """Remove the holds that expired."""
    for key in (*objects.keys(HOLDS), *objects.keys(DELETING)):
        found = objects.get(key)
        if found is not None and not _counts(found):
            objects.delete(key, only=found.generation)
