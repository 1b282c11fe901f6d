"""Hostile texts: bytes that are no JSON or too much of it, and numbers that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.hostile.forging import (
    Json,
    Spoil,
    also,
    compact,
    envelope,
    forged,
    leaf,
    seal,
    tree,
    zeros_digest,
)

RECORD, NOTE = "checkpoint.json", "00000000000000000001-0123456789abcdef.json"
BYTES = {
    "empty": b"",
    "no_utf8": b'{"digest":"\xff\xfe","record":{}}\n',
    "brackets": b"[" * 200_000,
    "objects": b'{"record":' * 200_000,
    "digits": b'{"format":' + b"1" * 5_000_000 + b"}",
    "nan": b'{"format":1,"step":NaN}',
    "null": b"null",
    "pickle": b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os",
    "dicts": b"[" + b'{"a":0},' * 1_500_000 + b"0]",
    "lists": b"[" + b"[]," * 5_000_000 + b"0]",
    "ten_million_leaves": b'{"format":1,"structure":{"kind":"list","children":['
    + b"0," * 10_000_000
    + b'0]},"leaves":[]}',
}


def written(path: str, data: bytes) -> Spoil:
    """Bytes as they are."""

    def spoil(step: Path) -> None:
        (step / path).write_bytes(data)

    return spoil


def enveloped(path: str, content: Json) -> Spoil:
    """Bytes, or JSON, in an envelope that vouches for them."""
    return lambda step: envelope(step / path, content)


def sealed(data: bytes) -> Spoil:
    """Bytes of a manifest that the record vouches for."""
    return lambda step: seal(step, data)


def told(**fields: Json) -> Spoil:
    """Other fields of the record."""
    return lambda step: seal(step, **fields)


for _name, _data in BYTES.items():
    also(f"record_{_name}", written(RECORD, _data), None, RECORD)
    also(f"enveloped_record_{_name}", enveloped(RECORD, _data), None, RECORD)
    also(f"manifest_{_name}", written("tree.json", _data))
    also(f"sealed_manifest_{_name}", sealed(_data))
    also(f"note_{_name}", enveloped(f"notes/{NOTE}", _data), None, NOTE, ("verify",))

for _name, _record, _file in (
    ("newer", {"format": 2}, RECORD),
    ("older", {"format": 0}, RECORD),
    ("negative_step", {"step": -2}, RECORD),
    ("step_of_text", {"step": "../../x"}, RECORD),
    ("negative_size", {"nbytes": -1}, RECORD),
    ("negative_manifest", {"manifest_nbytes": -1}, RECORD),
    ("large_manifest", {"manifest_nbytes": 2**62}, "tree.json"),
    ("end_of_time", {"time": 1e300}, RECORD),
    ("before_time", {"time": -1.0}, RECORD),
    ("claims_ten_million_leaves", {"leaves": 10_000_000}, "tree.json"),
    ("more_bytes", {"nbytes": 2**62}, "tree.json"),
    ("float_for_int", {"leaves": 1.5}, RECORD),
    ("unknown_field", {"__class__": "os.system"}, RECORD),
    ("metric_of_objects", {"metrics": {"loss": {"a": [1]}}}, RECORD),
    ("metric_of_digits", {"metrics": {"loss": {"int": "0x" + "f" * 5_000_000}}}, RECORD),
):
    also(f"record_{_name}", told(**_record), None, _file)
also("record_of_another_step", told(step=9), None, "step-00000002", ("restore",))
also("manifest_newer", forged(lambda manifest: manifest.update(format=2)))
also("note_of_another_time", enveloped(f"notes/{NOTE}", {"time": 1e300}), None, NOTE, ("verify",))
also(
    "note_of_objects",
    enveloped(f"notes/{NOTE}", {"time": 1.0, "metrics": {"loss": [1]}}),
    None,
    NOTE,
    ("verify",),
)
also("pin_of_brackets", enveloped("notes/pinned", BYTES["brackets"]), None, "pinned", ("verify",))


def truncated(path: str, length: int) -> Spoil:
    """The beginning of a file."""
    return lambda step: os.truncate(step / path, length)


also("record_truncated", truncated(RECORD, 200), None, RECORD)
also("record_sparse", truncated(RECORD, 1 << 30), None, RECORD)
also("manifest_truncated", truncated("tree.json", 500))


def sealed_manifest_truncated(step: Path) -> None:
    """Half of it, which the record vouches for."""
    seal(step, (step / "tree.json").read_bytes()[:500])


def manifest_sparse(step: Path, size: int = 1 << 30) -> None:
    """A gigabyte of zeros that the record vouches for."""
    (step / "tree.json").write_bytes(b"")
    os.truncate(step / "tree.json", size)
    seal(step, manifest_nbytes=size, manifest_digest=zeros_digest(size))


def manifest_sparse_beside_sparse_data(step: Path) -> None:
    """Less of it, with a terabyte of data that seems to need it."""
    os.truncate(step / "packs" / "0" / "c.0", 1 << 40)
    manifest_sparse(step, 1 << 26)


def record_keys_twice(step: Path) -> None:
    """Of which parsers take one or the other."""
    raw = compact(json.loads((step / RECORD).read_bytes())["record"])
    envelope(step / RECORD, raw[:-1] + b',"step":2}')


def manifest_keys_twice(step: Path) -> None:
    """The same in the manifest."""
    seal(step, b'{"format":1,' + (step / "tree.json").read_bytes()[1:])


def manifest_of_dicts(step: Path) -> None:
    """Forty megabytes that would become a gigabyte of objects."""
    manifest = tree(step)
    leaf(manifest, "n")["value"] = {"list": "BOMB"}
    bomb = b"[" + b'{"a":0},' * 5_000_000 + b"0]"
    seal(step, compact(manifest).replace(b'"BOMB"', bomb))


for _spoil in (
    sealed_manifest_truncated,
    manifest_sparse,
    manifest_sparse_beside_sparse_data,
    manifest_keys_twice,
    manifest_of_dicts,
):
    also(_spoil.__name__, _spoil)
also("record_keys_twice", record_keys_twice, None, RECORD)
