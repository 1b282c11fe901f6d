"""safetensors: named arrays in one file, their header first; read in place, part by part.

Names are key paths joined by dots, as most writers make them: `params.layer_0.kernel`.
https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np

from ckptmgr.errors import DamagedStep, StorageError, UnsupportedFormat
from ckptmgr.format.keypath import SEPARATOR
from ckptmgr.format.zarr import Shape
from ckptmgr.interop.base import NO_JSON, NUMPY, Foreign, Leaf, foreign, nested
from ckptmgr.interop.recognise import LONGEST_HEADER
from ckptmgr.interop.writing import Item, Read
from ckptmgr.pipeline.extent import Extent

NAME: Final = "safetensors"
_LENGTH: Final = struct.Struct("<Q")
DTYPES: Final[dict[str, np.dtype]] = {
    "BOOL": np.dtype(bool),
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "C64": np.dtype("complex64"),
}


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mapped:
    """An array in a file."""

    path: str
    start: int
    dtype: np.dtype
    shape: Shape

    @property
    def aside(self) -> int:
        """What is mapped is the page cache's."""
        return 0

    def read(self, extent: Extent) -> np.ndarray:
        """A part, in memory of its own."""
        mapped: np.ndarray = np.memmap(self.path, np.uint8, "r", self.start, self._nbytes())
        array = mapped.view(self.dtype).reshape(self.shape)
        return np.array(array[tuple(slice(start, stop) for start, stop in extent)])

    def _nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def open_at(path: str) -> Foreign:
    """Open a file; only its header is read.

    Raises:
      DamagedStep, UnsupportedFormat: it cannot be read.
    """
    tensors, begins, metadata = _header(path)
    size = os.path.getsize(path)
    flat: list[tuple[list[tuple[object, bool]], object]] = []
    for name, tensor in tensors.items():
        start, stop = tensor.data_offsets
        if tensor.dtype not in DTYPES:
            raise UnsupportedFormat(f"no dtype {tensor.dtype} is known", leaf=name, file=path)
        dtype = DTYPES[tensor.dtype]
        if min(tensor.shape, default=0) < 0 or (
            math.prod(tensor.shape) * dtype.itemsize != stop - start
        ):
            raise DamagedStep("its bytes are not those of its shape", leaf=name, file=path)
        if not 0 <= start <= stop <= size - begins:
            raise DamagedStep("it lies past the end of the file", leaf=name, file=path)
        keys: list[tuple[object, bool]] = [(key, True) for key in name.split(".")]
        source = Mapped(path, begins + start, dtype, tensor.shape)
        flat.append((keys, Leaf(source, handler=NUMPY)))
    opened = foreign(NAME, path, nested(flat) if flat else {})
    return Foreign(NAME, path, opened.manifest, opened.sources, metadata=metadata)


def _header(path: str) -> tuple[dict[str, _Tensor], int, dict[str, Any]]:
    """What it holds, where its data begins, and what is said of it."""
    try:
        with open(path, "rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > min(LONGEST_HEADER, os.path.getsize(path)):
                raise DamagedStep("its header is longer than the file", file=path)
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
        metadata = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        tensors = msgspec.convert(header, dict[str, _Tensor])
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file=path) from error
    except (*NO_JSON, struct.error) as error:
        raise DamagedStep(f"this is no header of safetensors: {error}", file=path) from error
    return tensors, _LENGTH.size + length, metadata


class Writer:
    """Writes arrays under their key paths, joined by dots; Python numbers as arrays of one."""

    def unfit(self, path: str, item: Item) -> str | None:
        """Texts, dtypes that the format lacks, and names that would not come back."""
        if item.source is None and not isinstance(item.value, bool | int | float):
            return f"it is a {type(item.value).__name__}"
        if "." in path or "~" in path or path in ("", "__metadata__"):
            return "its name would not come back as it is"
        return None if item.dtype in _CODES else f"there is no dtype {item.dtype}"

    def write(
        self, path: str, items: Mapping[str, Item], read: Read, hollow: Mapping[str, object]
    ) -> None:
        """The header, then one array after the other; the widest first, so that each is aligned."""
        ordered = sorted(items.items(), key=lambda pair: (-pair[1].dtype.itemsize, pair[0]))
        header, begins = {}, 0
        for name, item in ordered:
            stop = begins + item.nbytes
            header[name.replace(SEPARATOR, ".")] = {
                "dtype": _CODES[item.dtype],
                "shape": item.shape,
                "data_offsets": [begins, stop],
            }
            begins = stop
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % 8)
        with open(path, "xb") as file:
            file.write(_LENGTH.pack(len(text)) + text)
            for _, item in ordered:
                with read(item) as array:
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
