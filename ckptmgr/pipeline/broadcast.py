"""Broadcast: the first replica's processes read, the others get the bytes from their devices.

Along one axis of the mesh every array is the same. Each device of the first replica puts
the bits of its part into an array with that axis in front, the others zeros; the sum over
the axis, of integers, so that no bit of a float changes, is what all of them have. It is
a device collective: it belongs into the thread that trains, in the same order everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptmgr.errors import InvalidOption
from ckptmgr.format.zarr import Shape
from ckptmgr.pipeline import extent
from ckptmgr.pipeline.extent import Extent

_BATCH_BYTES: Final = 256 << 20
_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32, 16: np.uint32}
DURATION: Final = "/ckptmgr/restore/broadcast_secs"
READ_DURATION: Final = "/ckptmgr/restore/read_secs"


@dataclass(frozen=True, slots=True)
class Replica:
    """The axis along which arrays on a mesh are the same, and whether to read for the others."""

    axis: str
    reads: bool


def replicas(
    shardings: Sequence[NamedSharding], axis: str | None, process: int
) -> Mapping[object, Replica]:
    """The axis to broadcast along on each mesh that arrays lie on.

    Args:
      shardings: of the arrays.
      axis: its name; None: the first one that no array is divided along.
      process: this one.

    Raises:
      InvalidOption: no axis will do, and why.
    """
    specs: dict[Mesh, set[str]] = {}
    for sharding in shardings:
        assert isinstance(sharding.mesh, Mesh), "an abstract one has no devices"
        used = specs.setdefault(sharding.mesh, set())
        for axes in sharding.spec:
            used.update(() if axes is None else (axes,) if isinstance(axes, str) else axes)
    return {mesh: _replica(mesh, used, axis, process) for mesh, used in specs.items()}


def _replica(mesh: Mesh, used: set[str], axis: str | None, process: int) -> Replica:
    names = [axis] if axis is not None else [str(name) for name in mesh.axis_names]
    faults = []
    for name in names:
        fault = _fault(mesh, used, name)
        if fault is None:
            first = np.moveaxis(mesh.devices, mesh.axis_names.index(name), 0)[0]
            return Replica(name, process in {device.process_index for device in first.flat})
        faults.append(fault)
    raise InvalidOption(
        f"the mesh {dict(mesh.shape)} has no axis to broadcast along: " + "; ".join(faults)
    )


def _fault(mesh: Mesh, used: set[str], name: str) -> str | None:
    """Why arrays cannot be broadcast along an axis."""
    if name not in mesh.axis_names:
        return f"there is no axis {name!r}"
    if name in used:
        return f"arrays are divided along {name!r}"
    if mesh.shape[name] == 1:
        return f"{name!r} has one replica only"
    where: dict[int, int] = {}
    for number, replica in enumerate(np.moveaxis(mesh.devices, mesh.axis_names.index(name), 0)):
        for device in replica.flat:
            if where.setdefault(device.process_index, number) != number:
                return (
                    f"process {device.process_index} lies in several replicas along {name!r}, and "
                    "each must be made of whole processes"
                )
    return None


@dataclass(frozen=True, slots=True)
class Sent:
    """An array on its way: what it will be, and the bits of the parts that this process read.

    Attributes:
      parts: this process's parts, with the devices of each.
      bits: an array for each of these devices, in that order; empty where it did not read.
    """

    shape: Shape
    dtype: np.dtype
    sharding: NamedSharding
    axis: str
    parts: Mapping[Extent, Sequence[Any]]
    bits: list[jax.Array]


def can_send(dtype: np.dtype) -> bool:
    """Whether arrays of this dtype go through: those of less than a byte an item do not."""
    return not dtype.name.removeprefix("u").startswith(("int2", "int4", "float4_", "float6_"))


def to_bits(array: np.ndarray) -> np.ndarray:
    """The array as unsigned integers, the replica axis in front; the last axis may be longer."""
    flat = array.reshape(1, *(array.shape or (1,)))
    return np.ascontiguousarray(flat).view(_WORDS[array.dtype.itemsize])


def from_bits(bits: jax.Array, dtype: np.dtype, shape: Shape) -> jax.Array:
    """The array of these integers, without the replica axis; for use under jit."""
    if dtype == np.bool_:
        return (bits != 0).reshape(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real = np.dtype(f"float{dtype.itemsize * 4}")
        pairs = from_bits(bits, real, (*(shape or (1,)), 2))
        return jax.lax.complex(pairs[..., 0], pairs[..., 1]).reshape(shape)
    words = dtype.itemsize // np.dtype(_WORDS[dtype.itemsize]).itemsize
    grouped = bits.reshape(*(shape or (1,)), *([words] if words > 1 else []))
    return jax.lax.bitcast_convert_type(grouped, dtype).reshape(shape)


def broadcast(arrays: Sequence[Sent]) -> list[jax.Array]:
    """The arrays, on all their devices. Every process calls it with the same arrays in order.

    Blocks until they are there; its duration goes to jax.monitoring.
    """
    began = time.perf_counter()
    found: list[jax.Array] = []
    with jax.enable_x64(True):
        for batch in _batches(arrays):
            fronts = [_front(sent) for sent in batch]
            forms = tuple((sent.dtype, sent.shape, sent.sharding) for sent in batch)
            # Who has no device of the mesh has nothing to compute on.
            here = bool(batch[0].parts)
            found += jax.block_until_ready(_summed(forms)(fronts)) if here else map(_empty, batch)
            for sent in batch:
                sent.bits.clear()
            del fronts
    jax.monitoring.record_event_duration_secs(DURATION, time.perf_counter() - began)
    return found


def _batches(arrays: Sequence[Sent]) -> list[list[Sent]]:
    """The arrays in runs of about as many bytes, each on one mesh: a call for each run."""
    found: list[list[Sent]] = []
    left = 0
    for sent in arrays:
        nbytes = extent.items(extent.whole(sent.shape)) * sent.dtype.itemsize
        if not found or left < nbytes or found[-1][0].sharding.mesh != sent.sharding.mesh:
            found.append([])
            left = _BATCH_BYTES
        found[-1].append(sent)
        left -= nbytes
    return found


def _front(sent: Sent) -> jax.Array:
    """The bits of all replicas: those that were read, and zeros."""
    mesh, spec = sent.sharding.mesh, sent.sharding.spec
    bits = sent.bits
    if not bits:
        zeros = [
            np.zeros_like(to_bits(np.empty(extent.shape_of(part), sent.dtype)))
            for part in sent.parts
        ]
        devices = [device for holders in sent.parts.values() for device in holders]
        counts = [len(holders) for holders in sent.parts.values()]
        each = [zero for zero, count in zip(zeros, counts, strict=True) for _ in range(count)]
        bits = jax.device_put(each, devices)
    words = sent.dtype.itemsize // np.dtype(_WORDS[sent.dtype.itemsize]).itemsize
    last = sent.shape or (1,)
    shape = (mesh.shape[sent.axis], *last[:-1], last[-1] * words)
    front = NamedSharding(mesh, PartitionSpec(sent.axis, *spec))
    words_of = np.dtype(_WORDS[sent.dtype.itemsize])
    return jax.make_array_from_single_device_arrays(shape, front, bits, dtype=words_of)


def _empty(sent: Sent) -> jax.Array:
    """An array of which this process has no part."""
    return jax.make_array_from_single_device_arrays(sent.shape, sent.sharding, [], dtype=sent.dtype)


def _summed(forms: tuple[tuple[np.dtype, Shape, NamedSharding], ...]) -> Any:
    """The compiled sum over replicas of arrays of these dtypes, shapes and shardings."""

    def run(fronts: Sequence[jax.Array]) -> list[jax.Array]:
        return [
            from_bits(jnp.sum(bits, axis=0, dtype=bits.dtype), dtype, shape)
            for bits, (dtype, shape, _) in zip(fronts, forms, strict=True)
        ]

    return jax.jit(run, out_shardings=[sharding for *_, sharding in forms])
