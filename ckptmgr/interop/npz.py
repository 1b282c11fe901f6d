"""NumPy's npz, written: a zip of one .npy a leaf, under its key path; never with pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Final

import numpy as np

from ckptmgr.interop.writing import Item, Read

NAME: Final = "npz"
_FIRST_FOREIGN: Final = 256  # NPY_USERDEF: dtypes from here on numpy does not write


class Writer:
    """Writes arrays, and Python numbers and texts as arrays of one."""

    def unfit(self, path: str, item: Item) -> str | None:
        """Dtypes that numpy itself lacks, such as bfloat16."""
        if item.dtype.num >= _FIRST_FOREIGN or item.dtype.kind == "O":
            return f"numpy has no dtype {item.dtype}"
        return None

    def write(
        self, path: str, items: Mapping[str, Item], read: Read, hollow: Mapping[str, object]
    ) -> None:
        """One after the other."""
        with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, item in items.items():
                with (
                    read(item) as array,
                    archive.open(f"{name or 'leaf'}.npy", "w", force_zip64=True) as file,
                ):
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
