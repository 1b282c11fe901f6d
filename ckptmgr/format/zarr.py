"""Zarr v3: the chunk grid of an array and the metadata that lets any Zarr reader open it.

Codecs are `bytes` (little-endian) and `crc32c`, unless a leaf's options ask for zstd
between the two, or for smaller chunks to read inside of those that are written. Chunk
keys are flat (`c.0.1`): every directory costs an fsync.
https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import ml_dtypes
import msgspec
import numpy as np

METADATA: Final = "zarr.json"
CHECKSUM_BYTES: Final = 4

Shape: TypeAlias = tuple[int, ...]

_NUMPY_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
_ML_DTYPES = [
    *("bfloat16", "int2", "int4", "uint2", "uint4"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
DTYPES: Final[dict[str, np.dtype]] = {name: np.dtype(name) for name in _NUMPY_DTYPES} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES
}
# np.dtype.name is computed anew at each look, in 5 us; a plan looks at it for every leaf.
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
# What Zarr readers open by name; every other dtype is stored as uint8, bit for bit.
_ZARR_DTYPES = frozenset([*_NUMPY_DTYPES, "bfloat16"])


class Chunk(NamedTuple):
    """One cell of a chunk grid: where it starts, its part inside the array, and its file name."""

    start: Shape
    shape: Shape
    key: str


def grid(shape: Shape, chunk: Shape) -> Iterator[Chunk]:
    """The cells of the grid in C order; the last of an axis may reach less far than `chunk`."""
    counts = (range(-(-n // edge)) for n, edge in zip(shape, chunk, strict=True))
    for index in itertools.product(*counts):
        start = tuple(i * edge for i, edge in zip(index, chunk, strict=True))
        extent = tuple(min(edge, n - s) for edge, n, s in zip(chunk, shape, start, strict=True))
        yield Chunk(start, extent, ".".join(("c", *map(str, index))))


def cells(shape: Shape, chunk: Shape) -> int:
    """How many cells `grid` gives."""
    return math.prod(-(-n // edge) for n, edge in zip(shape, chunk, strict=True))


def is_run(shape: Shape, chunk: Shape) -> bool:
    """Whether each chunk is one run of the array: full in all axes after the first cut."""
    cut = next((axis for axis, edge in enumerate(chunk) if edge > 1), len(chunk))
    return all(edge >= n for edge, n in zip(chunk[cut + 1 :], shape[cut + 1 :], strict=True))


class Codec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done to a chunk beside the checksum.

    Attributes:
      read_chunk: the shape of the chunks inside that a Zarr reader can read one by one.
      zstd: the level of compression.
    """

    read_chunk: Shape | None = None
    zstd: int | None = None


RAW: Final = Codec()
ZSTD_LEVELS: Final = range(-7, 23)


@functools.lru_cache(maxsize=4096)  # made for the file and for its digest
def array_metadata(dtype: np.dtype, shape: Shape, chunk: Shape, codec: Codec = RAW) -> bytes:
    """The zarr.json of an array. A dtype that Zarr has no name for, all of one byte, is uint8."""
    true_name, name = NAMES[dtype], data_type(dtype)
    zero: object = 0.0 if "float" in name else 0
    if name == "bool":
        zero = False
    elif name.startswith("complex"):
        zero = [0.0, 0.0]
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": shape,
                "data_type": name,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
                "fill_value": zero,
                "codecs": _codecs(dtype, codec),
                "attributes": {} if name == true_name else {"ckptmgr_dtype": true_name},
            }
        )
    )


def pack_metadata(nbytes: int, chunk: int) -> bytes:
    """The zarr.json of a pack of so many bytes, in chunks of so many."""
    return array_metadata(np.dtype("uint8"), (nbytes,), (chunk,))


def longest(chunk: Shape, nbytes: int, codec: Codec) -> int:
    """A bound on the bytes of the file of a chunk that a codec was applied to.

    Each chunk inside may grow a little, and has an entry of 16 bytes in the index.
    """
    inside = math.prod(chunk) // math.prod(codec.read_chunk or chunk)
    return nbytes + nbytes // 128 + 128 * (inside + 8)


def data_type(dtype: np.dtype) -> str:
    """What Zarr calls a dtype; uint8 where it has no name for it."""
    name = NAMES[dtype]
    return name if name in _ZARR_DTYPES else "uint8"


def _codecs(dtype: np.dtype, codec: Codec) -> list[dict[str, object]]:
    checksum: dict[str, object] = {"name": "crc32c"}
    little: dict[str, object] = {"name": "bytes", "configuration": {"endian": "little"}}
    single: dict[str, object] = {"name": "bytes"}
    chain = [single if dtype.itemsize == 1 else little]
    if codec.zstd is not None:
        chain.append({"name": "zstd", "configuration": {"level": codec.zstd, "checksum": False}})
    chain.append(checksum)
    if codec.read_chunk is None:
        return chain
    inside = {"chunk_shape": codec.read_chunk, "codecs": chain, "index_codecs": [little, checksum]}
    return [{"name": "sharding_indexed", "configuration": {**inside, "index_location": "end"}}]


def says_the_same(metadata: bytes, expected: bytes) -> bool:
    """Whether a zarr.json tells other readers what it must, in these words or others."""
    if metadata == expected:
        return True
    try:
        return bool(msgspec.json.decode(metadata) == msgspec.json.decode(expected))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def group_metadata() -> bytes:
    """The zarr.json of the group that all large arrays of a step lie in."""
    return b'{"zarr_format":3,"node_type":"group","attributes":{}}'
