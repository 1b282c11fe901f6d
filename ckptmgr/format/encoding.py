"""The bytes of the commit record, notes and the manifest, and back, bounded and checked.

What parsing costs is bounded before a parser sees the bytes. They are parsed into the
types of `manifest.py`, where an unknown field is an error, a key that comes twice is
one too, and what they say is checked against itself before any of it is used.
"""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from ckptmgr.errors import DamagedStep, InvalidOption, UnsupportedFormat
from ckptmgr.format import bounds, consistency
from ckptmgr.format.consistency import Fault
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import FORMAT, CommitRecord, Manifest, Note, Strict


class _Envelope(Strict, frozen=True):
    digest: str
    record: msgspec.Raw


class _AnyFormat(msgspec.Struct):
    format: int


_T = TypeVar("_T")


def encode_record(record: CommitRecord) -> bytes:
    """The bytes of checkpoint.json: the record and the digest of its own bytes.

    Raises:
      InvalidOption: its metrics and metadata are more than a reader takes.
    """
    return _envelope(record)


def decode_record(data: bytes, file: str) -> CommitRecord:
    """The record in the bytes of a checkpoint.json.

    Raises:
      DamagedStep: it is no valid record.
      UnsupportedFormat: it is one of a newer format.
    """
    envelope = _enveloped(data, file)
    record = _versioned(bytes(envelope.record), CommitRecord, file)
    _refuse("commit record", consistency.of_record(record), file)
    return record


def encode_note(note: Note) -> bytes:
    """The bytes of a note: itself, and the digest of its own bytes.

    Raises:
      InvalidOption: its metrics and metadata are more than a reader takes.
    """
    return _envelope(note)


def _envelope(content: CommitRecord | Note) -> bytes:
    raw = msgspec.json.encode(content)
    data = msgspec.json.encode(_Envelope(digest(raw), msgspec.Raw(raw))) + b"\n"
    if len(data) > bounds.LARGEST_RECORD or bounds.cost(data) > bounds.room():
        raise InvalidOption(
            f"metrics and metadata are {len(data)} bytes of JSON; at most "
            f"{bounds.LARGEST_RECORD} of not too many values are read again"
        )
    return data


def decode_note(data: bytes, file: str) -> Note:
    """The note in these bytes.

    Raises:
      DamagedStep: it is none.
    """
    envelope = _enveloped(data, file)
    note = _parse(bytes(envelope.record), Note, file)
    _refuse("note", consistency.of_note(note), file)
    return note


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of tree.json."""
    return msgspec.json.encode(manifest)


def decode_manifest(
    data: bytes, record: CommitRecord, file: str, room: int = bounds.room()
) -> Manifest:
    """The manifest in the bytes of a tree.json, checked against its record and itself.

    `room`: the bytes of memory that it may take.

    Raises:
      DamagedStep: it is not the one that was committed, or contradicts itself.
      UnsupportedFormat: it is one of a newer format.
    """
    if len(data) != record.manifest_nbytes or digest(data) != record.manifest_digest:
        raise DamagedStep("the manifest is not the one that was committed", file=file)
    manifest = _versioned(data, Manifest, file, room)
    _refuse("manifest", consistency.of_manifest(manifest), file)
    nbytes = sum(array.nbytes for leaf in manifest.leaves for array in leaf.arrays)
    if (nbytes, len(manifest.leaves)) != (record.nbytes, record.leaves):
        raise DamagedStep("the commit record tells of another tree", file=file)
    return manifest


def _refuse(kind: str, fault: Fault | None, file: str) -> None:
    if fault:
        raise DamagedStep(
            f"the {kind} contradicts itself: {fault.what}", leaf=fault.leaf, file=file
        )


def _enveloped(data: bytes, file: str) -> _Envelope:
    """What is in the bytes of a file that proves itself; they are exactly those written."""
    envelope = _parse(data.removesuffix(b"\n"), _Envelope, file)
    same = msgspec.json.encode(envelope) + b"\n" == data
    if not same or digest(bytes(envelope.record)) != envelope.digest:
        raise DamagedStep("it differs from its own digest", file=file)
    return envelope


def _versioned(data: bytes, kind: type[_T], file: str, room: int = bounds.room()) -> _T:
    """Parse what has a format number; a number of another format explains why it does not parse."""
    try:
        parsed = _parse(data, kind, file, room)
        found = getattr(parsed, "format", None)
    except DamagedStep:
        found = _parse(data, _AnyFormat, file, room).format
        if found == FORMAT:
            raise
    if found != FORMAT:
        raise UnsupportedFormat(
            f"format {found} is not known to this version, which reads format {FORMAT}; "
            "update ckptmgr",
            file=file,
        )
    return parsed


def _parse(data: bytes, kind: type[_T], file: str, room: int = bounds.room()) -> _T:
    if bounds.MOST_PER_BYTE * len(data) > room and bounds.cost(data) > room:
        raise DamagedStep(
            f"its {len(data)} bytes could take {bounds.cost(data)} of memory, more than the "
            f"{room} that a file like this one may",
            file=file,
        )
    try:
        parsed = msgspec.json.decode(data, type=kind)
        # What comes back as it was has no key twice, of which a parser hides all but one.
        if kind is not _AnyFormat and msgspec.json.encode(parsed) != data:
            json.loads(data, object_pairs_hook=_refuse_twice)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedStep(f"not valid: {error}", file=file) from error
    return parsed


def _refuse_twice(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key comes twice")
