"""Extents: the parts of an array, from where to where on each axis. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import Sharding

from ckptmgr.format.zarr import Shape

Extent: TypeAlias = "tuple[tuple[int, int], ...]"


@functools.lru_cache(maxsize=1024)  # thousands of leaves have few shapes
def whole(shape: Shape) -> Extent:
    """All of an array."""
    return tuple((0, n) for n in shape)


def shape_of(extent: Extent) -> Shape:
    """The shape of a part."""
    return tuple(stop - start for start, stop in extent)


def items(extent: Extent) -> int:
    """How many items a part has."""
    return math.prod(stop - start for start, stop in extent)


def meet(one: Extent, other: Extent) -> Extent | None:
    """What two parts share; None where that is nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def inside(part: Extent, outer: Extent) -> tuple[slice, ...]:
    """Where a part lies in the array that holds an outer one."""
    pairs = zip(part, outer, strict=True)
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in pairs)


def clipped(extent: Extent, shape: Shape) -> Extent:
    """What of a part lies in an array of that shape; perhaps nothing."""
    pairs = zip(extent, shape, strict=True)
    return tuple((min(start, n), min(stop, n)) for (start, stop), n in pairs)


def of_devices(sharding: Sharding, shape: Shape) -> dict[Extent, list[Any]]:
    """The parts that this process has of an array, each with the devices that hold it."""
    found: dict[Extent, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        slices = index or tuple(slice(None) for _ in shape)
        extent = tuple(s.indices(n)[:2] for s, n in zip(slices, shape, strict=True))
        found.setdefault(extent, []).append(device)
    return found


def fill(target: np.ndarray, extent: Extent, pieces: Iterable[tuple[Extent, np.ndarray]]) -> None:
    """Copy into the array of one part what pieces of the same array share with it."""
    for other, piece in pieces:
        common = meet(extent, other)
        if common is not None:
            target[inside(common, extent)] = piece[inside(common, other)]
