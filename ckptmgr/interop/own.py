"""Our own checkpoints, opened like those of others, to be written in another format."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import anyio
import numpy as np

from ckptmgr.format.manifest import ArrayEntry, Manifest
from ckptmgr.format.zarr import DTYPES, Shape
from ckptmgr.interop.base import Foreign, Source
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline import extent
from ckptmgr.pipeline.extent import Extent
from ckptmgr.pipeline.read import Reader, Wanted
from ckptmgr.pipeline.records import read_both, step_info
from ckptmgr.pipeline.source import Found
from ckptmgr.storage.base import Storage

NAME = "ckptmgr"
_UNCOUNTED = 1 << 62  # bytes: whoever reads counts them


@dataclass(frozen=True, slots=True)
class OwnArray:
    """The main array of a leaf of a step."""

    storage: Storage
    name: str
    manifest: Manifest
    leaf: int
    entry: ArrayEntry

    @property
    def dtype(self) -> np.dtype:
        """As it is stored."""
        return DTYPES[self.entry.dtype]

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.entry.shape

    @property
    def aside(self) -> int:
        """The buffer that it is read into."""
        return self.entry.nbytes

    def read(self, part: Extent) -> np.ndarray:
        """A part, each of its chunks checked."""
        path = self.manifest.leaves[self.leaf].path
        size = extent.items(part) * self.dtype.itemsize
        target = np.empty(extent.shape_of(part), self.dtype)
        want = Wanted(self.leaf, path, self.entry, (part,), size)

        def deliver(found: Found) -> None:
            for (_, _, number), piece in found.items():
                box = self.entry.packed[number].box if self.entry.packed else part
                extent.fill(target, part, [(box or extent.whole(self.shape), piece)])

        if size:
            reader = Reader(self.storage, self.name, self.manifest, ByteLimiter(_UNCOUNTED))
            anyio.run(reader.read, [want], deliver)
        return target


def open_step(storage: Storage, name: str) -> Foreign:
    """Open a step, or a checkpoint at a path.

    Raises:
      MissingFile, DamagedStep: there is none, or it is not what was saved.
    """
    _, record, manifest = read_both(storage, name)
    sources: dict[int, Source] = {}
    for number, leaf in enumerate(manifest.leaves):
        for array in leaf.arrays:
            if array.name == "":
                sources[number] = OwnArray(storage, name, manifest, number, array)
    info = step_info(record, "")
    found = Foreign(NAME, f"{storage.root}/{name}", manifest, sources, record.step)
    return dataclasses.replace(found, metrics=info.metrics, metadata=info.metadata)
