"""The dispatcher: `save` and `load` run by jax's colocated Python, beside the devices.

What is not an array crosses as cloudpickle in an array of text, to processes that run
for the same controller and trust it; nothing of that is stored. jax keeps every callable
for good, so there is one for each direction and set of devices, and what changes from
call to call is data.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ckptmgr.colocated.crossing import pack, unpack
from ckptmgr.errors import CheckpointError, InvalidOption, UnsupportedLeaf
from ckptmgr.format.step import StepInfo
from ckptmgr.functional import load, save
from ckptmgr.storage.url import absolute
from ckptmgr.tree.structure import key_paths

Device = Any  # jaxlib's, which has no stubs


class Dispatcher:
    """Saves and loads on the hosts of the devices, so that bytes do not pass the controller.

        dispatcher = Dispatcher()
        dispatcher.save("ckpt", state)
        state = dispatcher.load("ckpt", like=state)

    For setups where one process controls devices of other hosts (Pathways). What is written
    is what `ckptmgr.save` writes, bit for bit. Its limits:

    - All devices of a call belong to one host, which must see the path.
    - Only jax arrays go from device to host directly; other leaves cross by cloudpickle, once
      for each device, so they should be small. `load` gives jax arrays only.
    - ckptmgr, and what registers classes with it, must be importable on the hosts.
    - It blocks until the step is durable, and makes no steps of a run: no cadence, no
      retention.
    - It was run on CPU devices of one process, where jax calls the function in place.
      Remote backends are as far as jax's own experimental interface goes.

    Raises:
      InvalidOption: cloudpickle is not installed, which jax needs for it.
    """

    def __init__(self) -> None:
        self._pickle = _cloudpickle()
        self._writers: dict[tuple[Device, ...], Callable[..., Any]] = {}
        self._readers: dict[tuple[Device, ...], Callable[..., Any]] = {}

    def save(
        self,
        path: str | os.PathLike[str],
        tree: object,
        *,
        merge: bool = False,
        overwrite: bool = False,
        metadata: Mapping[str, object] | None = None,
        leaf_options: object = (),
    ) -> StepInfo:
        """As `ckptmgr.save`, whose arguments and errors it has."""
        options = {
            "merge": merge,
            "overwrite": overwrite,
            "metadata": metadata,
            "leaf_options": leaf_options,
        }
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        rest = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, jax.Array)}
        if not arrays:
            raise UnsupportedLeaf("there is no jax array whose host could write: use ckptmgr.save")
        placed = jax.device_put(arrays, [colocated(a.sharding) for a in arrays], may_alias=True)
        devices = _devices([array.sharding for array in placed])
        try:
            request = self._text((absolute(path), treedef, rest, options), devices)
        except Exception as error:
            raise UnsupportedLeaf(
                f"a leaf that is no jax array cannot cross to the hosts: {error!r}"
            ) from error
        writer = self._writers.get(devices)
        if writer is None:
            writer = self._writers[devices] = _specialized(_write, devices, _text_like)
        outcome = _read_text(writer(request, placed))
        if isinstance(outcome, CheckpointError):
            raise outcome
        assert isinstance(outcome, StepInfo)
        return outcome

    def load(self, path: str | os.PathLike[str], like: object) -> Any:  # a tree of the caller's
        """As `ckptmgr.load` into `like`, whose leaves are jax arrays, or structs with shardings.

        Raises:
          UnsupportedLeaf: one is neither.
          CheckpointError: as `ckptmgr.load`.
        """
        leaves, treedef = jax.tree_util.tree_flatten(like)
        for leaf, name in zip(leaves, key_paths(like), strict=True):
            if not isinstance(getattr(leaf, "sharding", None), Sharding):
                raise UnsupportedLeaf("it has no sharding to be loaded with", leaf=name)
        structs = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=colocated(leaf.sharding))
            for leaf in leaves
        ]
        devices = _devices([struct.sharding for struct in structs])
        request = self._text((absolute(path), treedef, pack(structs)), devices)
        reader = self._readers.get(devices)
        if reader is None:
            reader = self._readers[devices] = _specialized(_read, devices, None)
        found = jax.device_put(reader(request), [leaf.sharding for leaf in leaves])
        return jax.tree_util.tree_unflatten(treedef, found)

    def _text(self, value: object, devices: Sequence[Device]) -> jax.Array:
        return _text(self._pickle.dumps(value), devices)


def colocated(sharding: Sharding) -> Sharding:
    """The sharding on the CPU devices beside its own; itself where it is on such.

    Raises:
      InvalidOption: it is neither a NamedSharding nor one of a single device.
    """
    if all(device.platform == "cpu" for device in sharding.device_set):  # type: ignore[attr-defined]  # jaxlib's Device has no stubs
        return sharding  # jax's own function would number them anew
    from jax.experimental import colocated_python  # noqa: PLC0415  # only where it is used

    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return NamedSharding(colocated_python.colocated_cpu_devices(sharding.mesh), sharding.spec)
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = colocated_python.colocated_cpu_devices(list(sharding.device_set))
        return SingleDeviceSharding(device)
    raise InvalidOption(f"a {type(sharding).__name__} has no place beside its devices")


def _devices(shardings: Sequence[Sharding]) -> tuple[Device, ...]:
    """All devices of a call, of one host."""
    found: set[Device] = {device for place in shardings for device in place.device_set}
    hosts = {device.process_index for device in found}
    if len(hosts) > 1:
        raise InvalidOption(
            f"the arrays lie on devices of {len(hosts)} hosts; the dispatcher writes on one: save "
            "with jax.distributed, one process a host"
        )
    return tuple(sorted(found, key=lambda device: int(device.id)))


def _specialized(
    function: Callable[..., Any], devices: tuple[Device, ...], specs: Callable[..., Any] | None
) -> Callable[..., Any]:
    from jax.experimental import colocated_python  # noqa: PLC0415  # only where it is used

    made: Callable[..., Any] = colocated_python.colocated_python(function).specialize(
        devices=devices, out_specs_fn=specs
    )
    return made


def _cloudpickle() -> ModuleType:
    try:
        import cloudpickle  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "jax's colocated Python needs cloudpickle: pip install 'ckptmgr[colocated]'"
        ) from error
    module: ModuleType = cloudpickle
    return module


# Text as an array: the only form in which jax lets it cross.


def _text(data: bytes, devices: Sequence[Device]) -> jax.Array:
    text = np.array(base64.b64encode(data).decode(), np.dtypes.StringDType())
    place = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec())
    # One by one: of an array of text for several devices device_put makes one that is broken.
    parts = [jax.device_put(text, device) for device in devices]
    return jax.make_array_from_single_device_arrays((), place, parts)


def _read_text(text: jax.Array) -> Any:
    encoded: str = np.asarray(text.addressable_shards[0].data).item()
    return _cloudpickle().loads(base64.b64decode(encoded))


def _text_like(request: Any, _: object) -> Any:
    return jax.ShapeDtypeStruct((), request.dtype, sharding=request.sharding)


# Run on the hosts: at the top level, so that they cross by name.


def _write(request: jax.Array, arrays: list[jax.Array]) -> jax.Array:
    path, treedef, rest, options = _read_text(request)
    left = iter(arrays)
    leaves = [rest[n] if n in rest else next(left) for n in range(treedef.num_leaves)]
    outcome: object
    try:
        outcome = save(path, jax.tree_util.tree_unflatten(treedef, leaves), **options)
    except CheckpointError as error:
        error.__cause__ = None  # perhaps of a class that only this host has
        outcome = error
    devices: list[Device] = list(_devices([request.sharding]))
    return _text(_cloudpickle().dumps(outcome), devices)


def _read(request: jax.Array) -> list[jax.Array]:
    path, treedef, structs = _read_text(request)
    loaded = load(path, jax.tree_util.tree_unflatten(treedef, unpack(structs)))
    return jax.tree_util.tree_leaves(loaded)
