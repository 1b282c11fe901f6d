"""Notes: what is said of a step after its commit, each an atomic small file beside the manifest.

Any process may add one, under a shared lock that keeps the step there meanwhile. They
are read in the order of their names, which begin with the time: the later word counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from absl import logging

from ckptmgr.errors import (
    DamagedStep,
    MissingFile,
    NoFile,
    StorageError,
    StoreUnavailable,
    TruncatedFile,
)
from ckptmgr.format.bounds import LARGEST_RECORD
from ckptmgr.format.consistency import metric
from ckptmgr.format.encoding import decode_note, encode_note
from ckptmgr.format.manifest import Note
from ckptmgr.format.step import NOTES, StepInfo, nonce
from ckptmgr.pipeline.header import fetch, header
from ckptmgr.storage.base import Storage

_PIN: Final = "pinned"
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"[0-9]{20}-[0-9a-f]{16}\.json")


def annotate(
    storage: Storage,
    name: str,
    metrics: Mapping[str, object] | None,
    metadata: Mapping[str, object] | None,
) -> None:
    """Add metrics and metadata to a step; waits for metrics that are still being computed.

    Raises:
      InvalidOption: they are not what they must be.
      StepDeleted: it is no longer there.
      DamagedStep: a note there is claims the end of time.
    """
    said = header(None, metrics, metadata)
    note = Note(time.time(), fetch(said.metrics), dict(said.metadata))
    with storage.reading(name):
        now = _after(storage.files(f"{name}/{NOTES}"))
        storage.add(f"{name}/{NOTES}/{now:020d}-{nonce()}{_SUFFIX}", encode_note(note))


def _after(files: Iterable[str]) -> int:
    """Now, in nanoseconds, but later than every note there is: wall clocks jump."""
    last = max((file for file in files if _NAME.fullmatch(file)), default="")
    if last.startswith("9" * 20):
        raise DamagedStep("no note can be later than this one; remove it", file=last)
    return max(time.time_ns(), int(last[:20] or 0) + 1)


def pin(storage: Storage, name: str) -> None:
    """Keep a step from retention, until it is unpinned."""
    with storage.reading(name):
        storage.add(f"{name}/{NOTES}/{_PIN}", encode_note(Note(time.time())))


def unpin(storage: Storage, name: str) -> None:
    """Leave a step to retention; nothing is wrong with one that is not pinned."""
    with storage.reading(name):
        if _PIN in storage.files(f"{name}/{NOTES}"):
            storage.discard(f"{name}/{NOTES}/{_PIN}")


def noted(storage: Storage, name: str, info: StepInfo) -> StepInfo:
    """What is known of a step, with what its notes say. One that is damaged is logged.

    A step with notes that cannot be listed or read counts as pinned: they may say to keep it.
    """
    try:
        files = storage.files(f"{name}/{NOTES}")
    except NoFile as error:
        logging.warning("the notes of step %s are left out: %s", info.step, error)
        return replace(info, pinned=True)
    if not files:
        return replace(info, pinned=False) if info.pinned else info
    metrics, metadata, lost = dict(info.metrics), dict(info.metadata), False
    for file in files:
        if not file.endswith(_SUFFIX):
            continue
        try:
            note = read_note(storage, f"{name}/{NOTES}/{file}")
            values = {key: metric(value) for key, value in note.metrics.items()}
        except MissingFile:
            continue  # the step is being deleted
        except StoreUnavailable:
            raise
        except (DamagedStep, StorageError, ValueError) as error:
            logging.warning("a note of step %s is left out: %s", info.step, error)
            lost = True
            continue
        metrics.update(values)
        metadata.update(note.metadata)
    return replace(info, metrics=metrics, metadata=metadata, pinned=lost or _PIN in files)


def is_note(file: str) -> bool:
    """Whether a file among the notes is one; another is what a killed annotator was writing."""
    return file == _PIN or file.endswith(_SUFFIX)


def read_note(storage: Storage, key: str) -> Note:
    """A note.

    Raises:
      MissingFile: it is not there.
      DamagedStep: it is not what was written.
    """
    try:
        data = storage.read(key, LARGEST_RECORD)
    except (NoFile, TruncatedFile) as error:
        raise DamagedStep(f"a note: {error.message}", file=error.file) from error
    return decode_note(data, f"{storage.root}/{key}")
