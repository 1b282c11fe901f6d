"""What crafted inputs are made with, and the corpus that they are put into.

A stranger can count digests as well as we can, so what is forged is sealed again: the
manifest's digest in the record, the record's in its envelope.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

import ckptmgr
from ckptmgr import LeafOptions
from ckptmgr.format.digest import digest

Json = Any  # what is forged may be of any shape
Spoil = Callable[[Path], None]
DOORS = ("load", "restore", "verify")


class Hostile(NamedTuple):
    """An input: what spoils a step, what the error must name, and the doors that must refuse it.

    `file` is a part of its name, or several between bars.
    """

    spoil: Spoil
    leaf: str | None = None
    file: str = "tree.json"
    doors: tuple[str, ...] = DOORS


CORPUS: dict[str, Hostile] = {}


def also(
    name: str,
    spoil: Spoil,
    leaf: str | None = None,
    file: str = "tree.json",
    doors: tuple[str, ...] = DOORS,
) -> None:
    """Put an input into the corpus."""
    assert name not in CORPUS, name
    CORPUS[name] = Hostile(spoil, leaf, file, doors)


def honest() -> dict[str, Any]:
    """Leaves of every place: chunks, compressed chunks, a pack, the manifest."""
    return {
        "w": np.arange(4096, dtype=np.float32),
        "z": np.zeros(4096, np.uint8),
        "s": np.arange(16, dtype=np.int32),
        "t": np.arange(16, 32, dtype=np.int32),
        "n": 7,
        "blob": b"\x80\x04\x95",
        "in": {"a": np.ones(3), "b": [1.5, "text"]},
    }


OPTIONS = [
    ("w", LeafOptions(write_chunk=(1024,))),
    ("z", LeafOptions(write_chunk=(1024,), compression="zstd")),
]


def prepare(directory: Path) -> None:
    """A run of two honest steps, and a checkpoint beside it."""
    with ckptmgr.CheckpointManager(directory / "run", leaf_options=OPTIONS) as manager:
        for step in (1, 2):
            manager.save(step, honest()).result()
    ckptmgr.save(directory / "honest", honest(), leaf_options=OPTIONS)


def tree(step: Path) -> Json:
    """The manifest."""
    return json.loads((step / "tree.json").read_bytes())


def leaf(manifest: Json, path: str) -> Json:
    """A leaf of it."""
    return next(entry for entry in manifest["leaves"] if entry["path"] == path)


def array(manifest: Json, path: str) -> Json:
    """The array of a leaf."""
    return leaf(manifest, path)["arrays"][0]


def compact(value: Json) -> bytes:
    """JSON as ckptmgr writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def seal(step: Path, manifest: Json = None, /, **changes: Json) -> None:
    """Write a manifest, and a record that vouches for it."""
    if manifest is not None:
        data = manifest if isinstance(manifest, bytes) else compact(manifest)
        (step / "tree.json").write_bytes(data)
        changes = {"manifest_nbytes": len(data), "manifest_digest": digest(data), **changes}
        if not isinstance(manifest, bytes):
            changes = {"nbytes": nbytes(manifest), **changes}
    record = json.loads((step / "checkpoint.json").read_bytes())["record"]
    envelope(step / "checkpoint.json", record | changes)


def nbytes(manifest: Json) -> int:
    """What the record would say of its bytes, where it can be said."""
    arrays = [array for entry in manifest["leaves"] for array in entry.get("arrays", ())]
    known = {"float32": 4, "uint8": 1, "int32": 4, "float64": 8}
    total = sum(math.prod(map(int, a["shape"])) * known.get(str(a["dtype"]), 1) for a in arrays)
    return int(total) if 0 <= total < 2**63 else 0


def envelope(path: Path, content: Json) -> None:
    """Write a record or a note with the digest of itself."""
    raw = content if isinstance(content, bytes) else compact(content)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"digest":"' + digest(raw).encode() + b'","record":' + raw + b"}\n")


def forged(change: Callable[[Json], Json], **record: Json) -> Spoil:
    """A manifest that was changed, and sealed again."""

    def spoil(step: Path) -> None:
        manifest = tree(step)
        change(manifest)
        seal(step, manifest, **record)

    return spoil


def update(path: str, fields: Mapping[str, Json]) -> Spoil:
    """Other fields of the array of a leaf."""
    return forged(lambda manifest: array(manifest, path).update(fields))


def zeros_digest(count: int) -> str:
    """That of a file of as many zero bytes, a multiple of 16 MiB."""
    state, block = xxhash.xxh3_128(), bytes(1 << 24)
    for _ in range(count >> 24):
        state.update(block)
    return state.hexdigest()
