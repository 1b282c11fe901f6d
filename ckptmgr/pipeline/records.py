"""Reading a commit record and the manifest that belongs to it."""

from __future__ import annotations

from ckptmgr.errors import DamagedStep, MissingFile, NoFile, TruncatedFile
from ckptmgr.format import bounds
from ckptmgr.format.consistency import metric
from ckptmgr.format.encoding import decode_manifest, decode_record
from ckptmgr.format.manifest import CommitRecord, Manifest
from ckptmgr.format.step import COMMIT_RECORD, MANIFEST, StepInfo
from ckptmgr.storage.base import Storage


def read_record(storage: Storage, name: str) -> CommitRecord:
    """The commit record of a step.

    Raises:
      MissingFile: there is none, so there is no such step.
      DamagedStep: it is not what was committed.
    """
    return decode_record(_record_bytes(storage, name), f"{storage.root}/{name}/{COMMIT_RECORD}")


def _record_bytes(storage: Storage, name: str) -> bytes:
    try:
        return storage.read(f"{name}/{COMMIT_RECORD}", bounds.LARGEST_RECORD)
    except (NoFile, TruncatedFile) as error:
        raise DamagedStep(f"the commit record: {error.message}", file=error.file) from error


def step_info(record: CommitRecord, path: str) -> StepInfo:
    """What the record at `path` says, for people."""
    return StepInfo(
        step=record.step,
        time=record.time,
        nbytes=record.nbytes,
        leaves=record.leaves,
        path=path,
        metrics={name: metric(value) for name, value in record.metrics.items()},
        metadata=record.metadata,
    )


def read_manifest(storage: Storage, name: str, record: CommitRecord) -> Manifest:
    """The manifest of a step.

    Raises:
      DamagedStep: it is missing or not what was committed.
    """
    key, size = f"{name}/{MANIFEST}", record.manifest_nbytes
    file = f"{storage.root}/{key}"
    room = bounds.room()
    try:
        if bounds.MOST_PER_BYTE * size > room:
            room = bounds.room(storage.nbytes(name) - size)
        if size > min(bounds.LARGEST_MANIFEST, room // 2):
            raise DamagedStep(f"a manifest of {size} bytes is more than a reader takes", file=file)
        data = storage.read(key, size)
    except (MissingFile, NoFile, TruncatedFile) as error:
        raise DamagedStep(f"the manifest: {error.message}", file=error.file) from error
    return decode_manifest(data, record, file, room)


def read_both(storage: Storage, name: str) -> tuple[bytes, CommitRecord, Manifest]:
    """The bytes of the commit record of a step, the record, and the manifest that belongs to it.

    Raises:
      MissingFile, DamagedStep: as of `read_record` and `read_manifest`.
    """
    while True:
        data = _record_bytes(storage, name)
        record = decode_record(data, f"{storage.root}/{name}/{COMMIT_RECORD}")
        try:
            return data, record, read_manifest(storage, name, record)
        except DamagedStep:
            # One that was replaced in between is not damaged: read the new one.
            if _record_bytes(storage, name) == data:
                raise
