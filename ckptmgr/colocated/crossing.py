"""Crossing: meshes, shardings and forms of arrays as JSON that names devices by their ids.

Ids hold between a controller and its hosts while they run, so what is made here is sent
and forgotten: it is never written to a checkpoint, where shardings are `tree/sharding.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ckptmgr.errors import InvalidOption
from ckptmgr.format.zarr import DTYPES, NAMES

Device = Any  # jaxlib's, which has no stubs


def pack(value: object) -> str:
    """A Mesh, a Sharding, devices, ShapeDtypeStructs, and dicts, lists and tuples of them.

    Raises:
      InvalidOption: something else is among them, or two of the devices have the same id.
    """
    return json.dumps(_packed(value))


def _packed(value: Any) -> Any:
    match value:
        case None:
            return None
        case Mesh():
            types = [kind.name for kind in value.axis_types]
            return {"mesh": [_ids(value.devices.flat), value.axis_sizes, value.axis_names, types]}
        case NamedSharding(mesh=Mesh()):
            return {"named": [_packed(value.mesh), _spec(value.spec), value.memory_kind]}
        case SingleDeviceSharding():
            return {"single": [*_ids(value.device_set), value.memory_kind]}
        case jax.ShapeDtypeStruct() if value.dtype in NAMES:
            return {"struct": [value.shape, NAMES[value.dtype], _packed(value.sharding)]}
        case [jax.Device(), *_]:
            return {"devices": _ids(value)}
        case list() | tuple() if type(value) in (list, tuple):
            return {type(value).__name__: [_packed(item) for item in value]}
        case dict() if all(type(key) is str for key in value):
            return {"dict": {key: _packed(item) for key, item in value.items()}}
    raise InvalidOption(
        f"a {type(value).__name__} does not cross to the hosts of the devices: {value!r}; what "
        "does are Meshes, NamedShardings, SingleDeviceShardings, devices and ShapeDtypeStructs"
    )


def _spec(spec: PartitionSpec) -> list[object]:
    if any(not (axes is None or isinstance(axes, str | tuple)) for axes in spec):
        raise InvalidOption(f"{spec} does not cross: it leaves an axis open")
    return list(spec)


def _ids(devices: Iterable[Device]) -> list[int]:
    return _once([device.id for device in devices])


def _once(ids: list[int]) -> list[int]:
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise InvalidOption(f"the device ids {twice} are there more than once, in {ids}")
    return ids


def unpack(data: str, devices: Sequence[Device] | None = None) -> Any:  # what was packed
    """What was packed, on the devices of the same ids: of `devices`, or the CPUs here.

    A list of devices comes back as a tuple.

    Raises:
      InvalidOption: an id is none of theirs, or that of two.
    """
    here: Sequence[Device] = jax.devices("cpu") if devices is None else devices
    return _Unpacking(dict(zip(_ids(here), here, strict=True))).value(json.loads(data))


class _Unpacking:
    """Rebuilds what was packed on devices by their ids."""

    def __init__(self, by_id: dict[int, Device]) -> None:
        self._by_id = by_id

    def _find(self, ids: list[int]) -> tuple[Device, ...]:
        missing = [one for one in _once(ids) if one not in self._by_id]
        if missing:
            raise InvalidOption(
                f"no device here has the ids {missing}; there are {sorted(self._by_id)}"
            )
        return tuple(self._by_id[one] for one in ids)

    def value(self, packed: Any) -> Any:
        if packed is None:
            return None
        ((kind, parts),) = packed.items()
        match kind:
            case "mesh":
                ids, sizes, names, types = parts
                grid = np.array(self._find(ids)).reshape(sizes)
                return Mesh(grid, names, axis_types=tuple(AxisType[name] for name in types))
            case "named":
                mesh, spec, memory = parts
                axes = [tuple(part) if isinstance(part, list) else part for part in spec]
                return NamedSharding(self.value(mesh), PartitionSpec(*axes), memory_kind=memory)
            case "single":
                return SingleDeviceSharding(self._find(parts[:1])[0], memory_kind=parts[1])
            case "struct":
                shape, dtype, sharding = parts
                place = self.value(sharding)
                return jax.ShapeDtypeStruct(tuple(shape), DTYPES[dtype], sharding=place)
            case "devices":
                return self._find(parts)
            case "dict":
                return {key: self.value(item) for key, item in parts.items()}
            case "list":
                return [self.value(item) for item in parts]
            case "tuple":
                return tuple(self.value(item) for item in parts)
        raise InvalidOption(f"pack() makes nothing like {packed!r}")
