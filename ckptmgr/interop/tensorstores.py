"""Arrays that TensorStore reads: Zarr 2 and 3, as files or in an OCDBT database."""

from __future__ import annotations

import math
import os
from typing import Any, Final

import numpy as np
import tensorstore as ts

from ckptmgr.errors import DamagedStep, OutOfMemory
from ckptmgr.format.zarr import Shape
from ckptmgr.pipeline import extent as extents
from ckptmgr.pipeline.extent import Extent

_MEMORY: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Arrays:
    """The arrays of one directory.

    Args:
      directory: where they lie.
      zarr3: whether they are of Zarr 3, not 2.
      ocdbt: whether they lie in a database, not in files.
      missing: whether a chunk that is not there stands for zeros, as its writer left those out.
    """

    def __init__(self, directory: str, *, zarr3: bool, ocdbt: bool, missing: bool = False) -> None:
        self._directory = directory
        self._driver = "zarr3" if zarr3 else "zarr"
        self._ocdbt = ocdbt
        self._missing = missing

    def open(self, name: str) -> TensorStoreArray:
        """The array of a name. Waits until its metadata have been read.

        Raises:
          DamagedStep: they are missing, or no array's.
        """
        return self.open_all([name])[0]

    def open_all(self, names: list[str]) -> list[TensorStoreArray]:
        """The arrays of many names, all at once."""
        try:
            opening = [ts.open(self._spec(name)) for name in names]
        except ValueError as error:  # names that lead elsewhere
            raise DamagedStep(f"no such array: {_short(error)}", file=self._directory) from error
        found = []
        for name, future in zip(names, opening, strict=True):
            try:
                found.append(TensorStoreArray(future.result(), name, self._directory))
            except ValueError as error:
                raise DamagedStep(
                    f"this array cannot be opened: {_short(error)}",
                    leaf=name,
                    file=self._directory,
                ) from error
        return found

    def _spec(self, name: str) -> dict[str, Any]:
        kvstore: dict[str, Any] = {"driver": "file", "path": f"{self._directory}/{name}/"}
        if self._ocdbt:
            base = {"driver": "file", "path": f"{self._directory}/"}
            kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        return {
            "driver": self._driver,
            "kvstore": kvstore,
            "open": True,
            "fill_missing_data_reads": self._missing,
            "recheck_cached_data": False,
        }


class TensorStoreArray:
    """One array; TensorStore's own."""

    def __init__(self, array: Any, name: str, directory: str) -> None:
        self._array = array
        self._name = name
        self._directory = directory

    @property
    def dtype(self) -> np.dtype:
        """As numpy knows it."""
        dtype: np.dtype = np.dtype(self._array.dtype.numpy_dtype)
        return dtype

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return tuple(self._array.shape)

    @property
    def aside(self) -> int:
        """The chunk that it decodes a part from: as it is stored, decompressed, and decoded."""
        chunk = self._array.chunk_layout.read_chunk.shape or ()
        known = (n or whole for n, whole in zip(chunk, self.shape, strict=False))
        return 3 * math.prod(known) * self.dtype.itemsize

    def read(self, extent: Extent) -> np.ndarray:
        """A part, decoded."""
        most = max(self.dtype.itemsize * extents.items(extent), self.aside)
        if most > _MEMORY:  # which TensorStore, in C++, ends the process for
            raise OutOfMemory(
                f"to read it {most} bytes are needed, more than there is memory",
                leaf=self._name,
                file=self._directory,
            )
        index = tuple(slice(start, stop) for start, stop in extent)
        try:
            found: np.ndarray = self._array[index].read().result()
        except ValueError as error:
            missing = "is missing" in str(error) or "NOT_FOUND" in str(error)
            what = "a chunk is missing" if missing else "a chunk cannot be read"
            raise DamagedStep(
                f"{what}: {_short(error)}", leaf=self._name, file=self._directory
            ) from error
        return found


def _short(error: ValueError) -> str:
    """TensorStore's words without the places in its source."""
    return str(error).partition(" [source locations=")[0].partition(" [tensorstore_spec=")[0]


ZARR2: Final = frozenset(
    [
        *("bool", "float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    ]
)


def create(directory: str, array: np.ndarray) -> None:
    """Write an array as Zarr 2, durable on return."""
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{directory}/"}}
    dtype = ts.dtype(array.dtype.name)
    ts.open(spec, create=True, dtype=dtype, shape=array.shape).result().write(array).result()
