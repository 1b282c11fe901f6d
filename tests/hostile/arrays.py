"""Hostile arrays: impossible shapes, chunks, dtypes, codecs, places, shardings, metadata."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ckptmgr.format.digest import digest
from ckptmgr.format.zarr import Codec
from ckptmgr.pipeline import codec
from tests.hostile.forging import Json, also, array, forged, seal, tree, update

_ONE = ["00" * 16]
_MANY = _ONE * 1024


def _grid(chunk: int, digests: list[str], **more: Json) -> Json:
    return {"grid": {"chunk": [chunk], "digests": digests, **more}}


def _sharding(axes: Json, types: Json, spec: Json = ()) -> Json:
    return {"sharding": {"axes": axes, "axis_types": types, "spec": list(spec)}}


_AT_NIGHT = {"driver": "file", "path": "/etc/"}
IMPOSSIBLE: dict[str, tuple[str, Json]] = {
    "shape_that_overflows": ("w", {"shape": [2**40, 2**40]}),
    "shape_of_no_items_that_overflows": ("w", {"shape": [2**62, 0, 2**62], "grid": None}),
    "shape_negative": ("w", {"shape": [-4096]}),
    "shape_of_100_axes": ("w", {"shape": [1] * 100}),
    "chunk_of_2_40": ("w", {"shape": [2**40], **_grid(2**40, _ONE)}),
    "chunk_of_2_36_zipped": ("z", {"shape": [2**36], **_grid(2**36, _ONE, codec={"zstd": 3})}),
    "chunk_of_2_36_of_others": (
        "z",
        {"shape": [2**36], **_grid(2**36, _ONE, codec={"read_chunk": [2**30]})},
    ),
    "chunk_of_none": ("w", _grid(0, [])),
    "chunk_negative": ("w", _grid(-1, [])),
    "chunks_inside": ("z", {"shape": [2**30], **_grid(2**30, _ONE, codec={"read_chunk": [1]})}),
    "chunks_missing": ("w", _grid(1024, _ONE)),
    "dtype_object": ("w", {"dtype": "object"}),
    "dtype_void": ("w", {"dtype": "V1000000000"}),
    "dtype_path": ("w", {"dtype": "../../float32"}),
    "codec_level": ("z", _grid(1024, _ONE * 4, codec={"zstd": 10**9})),
    "both_places": ("w", {"packed": [{"pack": 0, "offset": 0, "digest": "00"}]}),
    "no_place": ("w", {"grid": None}),
    "offset_negative": ("s", {"packed": [{"pack": 0, "offset": -64, "digest": "00"}]}),
    "offset_far_out": ("s", {"packed": [{"pack": 0, "offset": 2**62, "digest": "00"}]}),
    "pack_that_is_not": ("s", {"packed": [{"pack": 7, "offset": 0, "digest": "00"}]}),
    "array_twice": ("w", {"name": "other"}),
    "sharding_of_many": ("w", _sharding([["x", 2**40]], ["Auto"], ["y"])),
    "sharding_negative": ("w", _sharding([["x", -1]], ["Auto"], ["x"])),
    "sharding_axis_twice": ("w", _sharding([["x", 1], ["x", 1]], ["Auto", "Auto"])),
    "sharding_type": ("w", _sharding([["x", 1]], ["__class__"], ["x"])),
    "sharding_types": ("w", _sharding([["x", 1]], [], ["x"])),
    "sharding_spec": ("w", _sharding([["x", 1]], ["Auto"], ["y"])),
    "sharding_of_more_axes": ("w", _sharding([["x", 1]], ["Auto"], [None, None])),
}
for _name, (_leaf, _fields) in IMPOSSIBLE.items():
    if _name == "array_twice":
        also(_name, forged(lambda m: m["leaves"][0]["arrays"].append(m["leaves"][0]["arrays"][0])))
    else:
        also(_name, update(_leaf, _fields), _leaf)
# What the parser refuses already, by the place in the text rather than by the leaf.
for _name, _fields in {
    "shape_of_floats": {"shape": [4096.0]},
    "shape_of_digits": {"shape": [10**400]},
    "codec_unknown": _grid(1024, _ONE * 4, codec={"blosc": 1}),
    "kvstore_in_array": {"kvstore": _AT_NIGHT},
    "kvstore_in_grid": _grid(1024, _ONE * 4, kvstore="file:///etc/"),
    "kvstore_for_dtype": {"dtype": _AT_NIGHT},
}.items():
    also(_name, update("w", _fields))
# Sound in themselves: it is the data that is not there.
also(
    "shape_without_data",
    update("w", {"shape": [2**34], "dtype": "uint8", **_grid(2**24, _MANY)}),
    "w",
    "c.",
)
also("shape_of_other_size", update("s", {"shape": [17]}), "t")


def zstd_bomb(step: Path) -> None:
    """Eight thousand bytes that are a quarter of a gigabyte."""
    nothing = np.broadcast_to(np.uint8(0), (2**28,))
    (step / "arrays/z/c.0").write_bytes(codec.encode(nothing, (2**28,), Codec(zstd=3)))


def zstd_bomb_as_announced(step: Path) -> None:
    """One whose bytes are as many as the manifest says, each chunk as large as it may be."""
    size = 32 << 20
    update("z", {"shape": [4 * size], **_grid(size, _ONE * 4, codec={"zstd": 3})})(step)
    bomb = codec.encode(np.zeros(size, np.uint8), (size,), Codec(zstd=3))
    for number in range(4):
        (step / f"arrays/z/c.{number}").write_bytes(bomb)


def sparse_data(step: Path) -> None:
    """Two gigabytes of holes where there should be chunks."""
    update("w", {"shape": [2**31], "dtype": "uint8", **_grid(2**24, _ONE * 128)})(step)
    for number in range(128):
        path = step / f"arrays/w/c.{number}"
        path.write_bytes(b"")
        os.truncate(path, 2**24 + 4)


def overlapping(step: Path) -> None:
    """Two leaves in one place."""
    manifest = tree(step)
    array(manifest, "t")["packed"] = array(manifest, "s")["packed"]
    seal(step, manifest)


def digest_of_another_leaf(step: Path) -> None:
    """Each has the other's: both are digests of something in the file."""
    manifest = tree(step)
    one, other = (array(manifest, name)["packed"][0] for name in "st")
    one["digest"], other["digest"] = other["digest"], one["digest"]
    seal(step, manifest)


def _metadata(step: Path, data: bytes) -> None:
    """Metadata that the manifest vouches for."""
    (step / "arrays/w/zarr.json").write_bytes(data)
    manifest = tree(step)
    array(manifest, "w")["grid"]["metadata"] = digest(data)
    seal(step, manifest)


def metadata_that_differs(step: Path) -> None:
    """Other readers would read something else."""
    _metadata(step, (step / "arrays/w/zarr.json").read_bytes().replace(b"4096", b"2048"))


def metadata_nested(step: Path) -> None:
    """What TensorStore dies of."""
    _metadata(step, b"[" * 200_000)


also("zstd_bomb", zstd_bomb, "z", "c.0")
also("zstd_bomb_as_announced", zstd_bomb_as_announced, "z", "c.|zarr.json")
also("sparse_data", sparse_data, "w", "c.")
also("overlapping", overlapping, "t")
also("digest_of_another_leaf", digest_of_another_leaf, "s", "c.0")
also("metadata_that_differs", metadata_that_differs, "w", "zarr.json")
also("metadata_nested", metadata_nested, "w", "zarr.json")

PACKS: dict[str, Json] = {
    "endless": {"nbytes": 2**62, "chunk": 1},
    "negative": {"nbytes": -1},
    "without_chunks": {"chunk": 0},
    "of_an_exabyte": {"chunk": 2**60},
    "elsewhere": {"process": "../../etc"},
    "of_nobody": {"process": -1},
}


def packed(fields: Json) -> None:
    """Other fields of the pack."""
    also(f"pack_{_name}", forged(lambda manifest: manifest["packs"][0].update(fields)))


for _name, _fields in PACKS.items():
    packed(_fields)
also("pack_twice", forged(lambda manifest: manifest["packs"].append(manifest["packs"][0])))
