"""Zarr v3: the chunk grid of an array and the metadata that lets any Zarr reader open it.

Codecs are `bytes` (little-endian) and `crc32c`, chunk keys are flat (`c.0.1`): every
directory costs an fsync. Chunks are cut so that each is one contiguous run of its
shard: on axis 0, and on the next axis only where one row is too large by itself.
https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import ml_dtypes
import msgspec
import numpy as np

CHUNK_BYTES: Final = 16 << 20
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
DTYPES: Final = {name: np.dtype(name) for name in _NUMPY_DTYPES} | {
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


def chunk_shape(shape: Shape, shard: Shape, itemsize: int, limit: int = CHUNK_BYTES) -> Shape:
    """The cells of the regular grid that cuts each shard into chunks of about `limit` bytes.

    An array in one piece is cut into n = ceil(bytes / limit) slabs of ceil(rows / n)
    rows: less than one row of padding. Where several shards share the grid an edge
    must divide theirs: of all divisors the one whose chunk is nearest to the limit
    (on a log scale), so a prime edge stays whole rather than falling into single rows.
    """
    edges = list(shard)
    for axis, edge in enumerate(shard):
        row = itemsize * math.prod(shard[axis + 1 :])
        if edge * row <= limit:
            break
        if shape == shard:
            edges[axis] = math.ceil(edge / math.ceil(edge * row / limit))
        else:
            divisors = [d for d in range(1, edge + 1) if edge % d == 0]
            edges[axis] = min(divisors, key=lambda d: abs(math.log(d * row / limit)))
        if edges[axis] > 1 or row <= limit:
            break
    return tuple(edges)


def grid(shape: Shape, chunk: Shape) -> Iterator[Chunk]:
    """The cells of the grid in C order; the last of an axis may reach less far than `chunk`."""
    counts = (range(math.ceil(n / edge)) for n, edge in zip(shape, chunk, strict=True))
    for index in itertools.product(*counts):
        start = tuple(i * edge for i, edge in zip(index, chunk, strict=True))
        extent = tuple(min(edge, n - s) for edge, n, s in zip(chunk, shape, start, strict=True))
        yield Chunk(start, extent, ".".join(("c", *map(str, index))))


def cells(shape: Shape, chunk: Shape) -> int:
    """How many cells `grid` gives."""
    return math.prod(math.ceil(n / edge) for n, edge in zip(shape, chunk, strict=True))


def array_metadata(dtype: np.dtype, shape: Shape, chunk: Shape) -> bytes:
    """The zarr.json of an array. A dtype that Zarr has no name for, all of one byte, is uint8."""
    true_name = NAMES[dtype]
    name = true_name if true_name in _ZARR_DTYPES else "uint8"
    zero: object = 0.0 if "float" in name else 0
    if name == "bool":
        zero = False
    elif name.startswith("complex"):
        zero = [0.0, 0.0]
    endian = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
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
                "codecs": [{"name": "bytes", **endian}, {"name": "crc32c"}],
                "attributes": {} if name == true_name else {"ckptmgr_dtype": true_name},
            }
        )
    )


def group_metadata() -> bytes:
    """The zarr.json of the group that all large arrays of a step lie in."""
    return b'{"zarr_format":3,"node_type":"group","attributes":{}}'
