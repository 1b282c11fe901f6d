"""Shardings as data: axis names, sizes and types, PartitionSpec, memory kind.

Device ids differ between processes and runs, so none is stored: a sharding is rebuilt
on the first devices at hand, or not at all where they are too few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from ckptmgr.errors import DamagedStep
from ckptmgr.format.manifest import ShardingEntry


def describe(sharding: Sharding) -> ShardingEntry:
    """What is stored of a sharding; one that is no NamedSharding counts as a single device's."""
    kind = sharding.memory_kind
    if kind == _device(sharding).default_memory().kind:
        kind = None
    if not isinstance(sharding, NamedSharding):
        return ShardingEntry(memory_kind=kind)
    mesh = sharding.mesh
    return ShardingEntry(
        axes=tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        axis_types=tuple(str(axis.name) for axis in mesh.axis_types),
        spec=tuple(
            axes if axes is None or isinstance(axes, str) else tuple(axes) for axes in sharding.spec
        ),
        memory_kind=kind,
    )


def platform(sharding: Sharding) -> str:
    """The platform of its devices: cpu, gpu, tpu."""
    return str(_device(sharding).platform)


def _device(sharding: Sharding) -> Any:  # jaxlib's Device, which has no stubs
    return next(iter(sharding.device_set))


def rebuild(entry: ShardingEntry, devices: Sequence[jax.Device]) -> Sharding | None:
    """The stored sharding on the first of `devices`; None for one device, or where they are few.

    Raises:
      DamagedStep: the entry describes no sharding.
    """
    count = math.prod(size for _, size in entry.axes)
    if not entry.axes or count > len(devices):
        return None
    try:
        mesh = Mesh(
            np.array(devices[:count]).reshape([size for _, size in entry.axes]),
            [name for name, _ in entry.axes],
            axis_types=tuple(AxisType[name] for name in entry.axis_types),
        )
        return NamedSharding(mesh, PartitionSpec(*entry.spec), memory_kind=entry.memory_kind)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStep(f"the manifest describes no sharding: {error}") from error
