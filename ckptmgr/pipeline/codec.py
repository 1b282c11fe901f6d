"""Chunks that are not raw: encoded and decoded by TensorStore's zarr3 driver, in memory.

What the driver makes of one chunk is put as one file, like any other; nothing of the
driver's own locking and syncing is used.
"""

from __future__ import annotations

import msgspec
import numpy as np
import tensorstore as ts

from ckptmgr.format import zarr
from ckptmgr.format.zarr import Codec, Shape


def encode(chunk: np.ndarray, edges: Shape, codec: Codec) -> bytes:
    """The bytes of the file of a chunk; where it is less than `edges` the rest is zeros."""
    array, store = _open(chunk.shape, chunk.dtype, edges, codec, {})
    array.write(_visible(chunk)).result()
    return bytes(store[_key(edges)])


def decode(data: bytes, shape: Shape, dtype: np.dtype, edges: Shape, codec: Codec) -> np.ndarray:
    """The chunk of this shape that `encode` was given.

    Raises:
      ValueError: these are not the bytes of such a chunk.
    """
    array, _ = _open(shape, dtype, edges, codec, {_key(edges): data})
    return np.asarray(array.read().result()).view(dtype)


def _open(
    shape: Shape, dtype: np.dtype, edges: Shape, codec: Codec, files: dict[str, bytes]
) -> tuple[ts.TensorStore, ts.KvStore]:
    """An array of one chunk in a memory of its own, which holds these files."""
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    for key, data in files.items():
        store[key] = data
    metadata = msgspec.json.decode(zarr.array_metadata(dtype, shape, edges, codec))
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": metadata,
        # Else a chunk of zeros would be left out, and missing is an error.
        "store_data_equal_to_fill_value": True,
    }
    array = ts.open(spec, context=context, open=True, assume_metadata=True).result()
    return array, store


def _key(edges: Shape) -> str:
    return ".".join(("c", *["0"] * len(edges)))


def _visible(chunk: np.ndarray) -> np.ndarray:
    """The chunk in the dtype that Zarr has a name for."""
    return chunk if zarr.data_type(chunk.dtype) == zarr.NAMES[chunk.dtype] else chunk.view(np.uint8)
