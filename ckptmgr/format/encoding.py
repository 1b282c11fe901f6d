"""The bytes of the commit record and the manifest, and back, bounded and checked.

Both are parsed into the types of `manifest.py`, where an unknown field is an error, and
the manifest is checked against itself before any of its numbers is used.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

import msgspec

from ckptmgr.errors import DamagedStep, InvalidOption, UnsupportedFormat
from ckptmgr.format import keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    FORMAT,
    ArrayEntry,
    CommitRecord,
    Grid,
    Manifest,
    Note,
    Pack,
    Strict,
    leaf_indices,
    per_process,
)
from ckptmgr.format.zarr import Shape

LARGEST_RECORD: Final = 16 << 20
LARGEST_NOTE: Final = 16 << 20
LARGEST_MANIFEST: Final = 1 << 30
_MOST_AXES: Final = 64  # numpy's limits
_LONGEST_AXIS: Final = 2**63


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
    return _envelope(record, LARGEST_RECORD)


def decode_record(data: bytes, file: str) -> CommitRecord:
    """The record in the bytes of a checkpoint.json.

    Raises:
      DamagedStep: it is no valid record.
      UnsupportedFormat: it is one of a newer format.
    """
    envelope = _enveloped(data, file)
    return _versioned(bytes(envelope.record), CommitRecord, file)


def encode_note(note: Note) -> bytes:
    """The bytes of a note: itself, and the digest of its own bytes."""
    return _envelope(note, LARGEST_NOTE)


def _envelope(content: CommitRecord | Note, largest: int) -> bytes:
    raw = msgspec.json.encode(content)
    data = msgspec.json.encode(_Envelope(digest(raw), msgspec.Raw(raw))) + b"\n"
    if len(data) > largest:
        raise InvalidOption(
            f"metrics and metadata are {len(data)} bytes of JSON; at most {largest} are read again"
        )
    return data


def decode_note(data: bytes, file: str) -> Note:
    """The note in these bytes.

    Raises:
      DamagedStep: it is none.
    """
    envelope = _enveloped(data, file)
    return _parse(bytes(envelope.record), Note, file)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of tree.json."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, record: CommitRecord, file: str) -> Manifest:
    """The manifest in the bytes of a tree.json, checked against its record and itself.

    Raises:
      DamagedStep: it is not the one that was committed, or contradicts itself.
      UnsupportedFormat: it is one of a newer format.
    """
    if len(data) != record.manifest_nbytes or digest(data) != record.manifest_digest:
        raise DamagedStep("the manifest is not the one that was committed", file=file)
    manifest = _versioned(data, Manifest, file)
    fault = contradiction(manifest)
    if fault:
        raise DamagedStep(f"the manifest contradicts itself: {fault}", file=file)
    return manifest


def _enveloped(data: bytes, file: str) -> _Envelope:
    """What is in the bytes of a file that proves itself; they are exactly those written."""
    envelope = _parse(data, _Envelope, file)
    same = msgspec.json.encode(envelope) + b"\n" == data
    if not same or digest(bytes(envelope.record)) != envelope.digest:
        raise DamagedStep("it differs from its own digest", file=file)
    return envelope


def _versioned(data: bytes, kind: type[_T], file: str) -> _T:
    """Parse what has a format number; a number of another format explains why it does not parse."""
    try:
        parsed = _parse(data, kind, file)
        found = getattr(parsed, "format", None)
    except DamagedStep:
        found = _parse(data, _AnyFormat, file).format
        if found == FORMAT:
            raise
    if found != FORMAT:
        raise UnsupportedFormat(
            f"format {found} is not known to this version, which reads format {FORMAT}; "
            "update ckptmgr",
            file=file,
        )
    return parsed


def _parse(data: bytes, kind: type[_T], file: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStep(f"not valid: {error}", file=file) from error


def contradiction(manifest: Manifest) -> str | None:
    """What is impossible about a manifest; None where it is consistent."""
    packs = {pack.process: pack for pack in manifest.packs}
    if len(packs) != len(manifest.packs):
        return "two packs of one process"
    if any(pack.chunk < 1 or pack.nbytes < 0 for pack in manifest.packs):
        return "a pack has an impossible size"
    if len({leaf.path for leaf in manifest.leaves}) != len(manifest.leaves):
        return "two leaves have the same path"
    directories = set()
    for leaf in manifest.leaves:
        for array in leaf.arrays:
            fault = _impossible(array, packs)
            if fault:
                return f"leaf {leaf.path!r}: {fault}"
            if array.grid:
                directories.add(keypath.directory(leaf.path, array.name))
    own = sum(array.grid is not None for leaf in manifest.leaves for array in leaf.arrays)
    if len(directories) != own:
        return "two arrays share a directory"
    return _impossible_structure(manifest)


def _impossible_structure(manifest: Manifest) -> str | None:
    if any(per_process(c) for node in per_process(manifest.structure) for c in node.children):
        return "what one process has for itself lies in another such"
    if sorted(leaf_indices(manifest.structure)) != list(range(len(manifest.leaves))):
        return "the structure does not name each leaf once"
    return None


def _impossible(array: ArrayEntry, packs: dict[int, Pack]) -> str | None:
    if array.dtype not in zarr.DTYPES:
        return f"unknown dtype {array.dtype!r}"
    if len(array.shape) > _MOST_AXES or not all(0 <= n < _LONGEST_AXIS for n in array.shape):
        return "an impossible shape"
    if (array.grid is not None) + bool(array.packed) != (array.nbytes > 0):
        return "its bytes must lie in exactly one place"
    fault = _impossible_grid(array.shape, array.grid) if array.grid else None
    if fault or not array.packed:
        return fault
    if not _tiled(array.shape, [box.box for box in array.packed]):
        return "its boxes do not make it up"
    for box in array.packed:
        pack, nbytes = packs.get(box.pack), array.nbytes_of(box)
        if pack is None or box.offset < 0 or box.offset + nbytes > pack.nbytes:
            return "it lies outside its pack"
        if box.offset % pack.chunk + nbytes > pack.chunk:
            return "it crosses the chunks of its pack"
    return None


def _tiled(shape: Shape, boxes: list[tuple[tuple[int, int], ...] | None]) -> bool:
    """Whether boxes make up the whole of a shape, and none of it twice.

    They are all of one extent, the shards of an array: different cells of one grid, as many
    as it has.
    """
    if boxes == [None]:
        return True
    cells, first = set(), boxes[0] or ()
    for box in boxes:
        if not box or len(box) != len(shape):  # an array without axes has no parts
            return False
        for (start, stop), (low, high), n in zip(box, first, shape, strict=True):
            edge = high - low
            if edge < 1 or stop - start != edge or start % edge or not 0 <= start <= n - edge:
                return False
        cells.add(box)
    whole = math.prod(n // (high - low) for n, (low, high) in zip(shape, first, strict=True))
    exact = all(n % (high - low) == 0 for n, (low, high) in zip(shape, first, strict=True))
    return exact and len(cells) == len(boxes) == whole


def _impossible_grid(shape: Shape, grid: Grid) -> str | None:
    chunk = grid.chunk
    if len(chunk) != len(shape) or any(
        not 1 <= edge <= max(n, 1) for edge, n in zip(chunk, shape, strict=True)
    ):
        return "its chunks do not fit its shape"
    if len(grid.digests) != zarr.cells(shape, chunk):
        return "its digests do not match its chunks"
    if grid.codec.zstd is not None and grid.codec.zstd not in zarr.ZSTD_LEVELS:
        return "an impossible level of zstd"
    inside = grid.codec.read_chunk or chunk
    if len(inside) != len(chunk) or any(
        edge < 1 or whole % edge for edge, whole in zip(inside, chunk, strict=True)
    ):
        return "the chunks inside do not divide its chunks"
    return None
