"""Host arrays onto devices, thousands at a time; and arrays of accelerators to the host.

jax.device_put costs 33 us an array (jax 0.10, 2 cores), nearly all of it to describe each
one anew. Its last step alone, with the description of another array of that shape, costs
6 us. That step is private, so this is the only file that uses it; where it is gone, or an
array goes to several devices, device_put does it all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Sharding

_HOST: Final = "pinned_host"  # what an accelerator copies to by itself
_last_step: Callable[..., jax.Array] | None = None
with contextlib.suppress(ImportError, AttributeError):
    from jax._src.interpreters import pxla

    _last_step = pxla.batched_device_put


def can_send(sharding: Sharding) -> bool:
    """Whether arrays of this sharding can be sent to the host: they lie where devices compute."""
    device: Any = next(iter(sharding.device_set))  # jaxlib's Device, which has no stubs
    kinds = {memory.kind for memory in device.addressable_memories()}
    return _HOST in kinds and sharding.memory_kind == device.default_memory().kind


def send(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Begin to copy arrays to pinned host memory; where `can_send`. Does not wait for it.

    What computes on, donating the arrays, waits on the device for the copy. numpy sees the
    memory of what comes back, once it is there.
    """
    places = [array.sharding.with_memory_kind(_HOST) for array in arrays]
    return list(jax.device_put(list(arrays), places))


def put(arrays: Sequence[np.ndarray], sharding: Sharding | None) -> list[jax.Array]:
    """The arrays as jax arrays of that sharding, or where new ones go; they may not be ready.

    On CPU jax takes the memory of one at a multiple of 64 bytes over, without a copy.
    """
    if _last_step is None or (sharding is not None and sharding.num_devices > 1):
        return list(jax.device_put(list(arrays), sharding))
    numbers: dict[tuple[object, ...], int] = {}
    for number, array in enumerate(arrays):
        numbers.setdefault((array.shape, array.dtype), number)
    firsts = jax.device_put([arrays[number] for number in numbers.values()], sharding)
    placed = dict(zip(numbers.values(), firsts, strict=True))
    devices = list(firsts[0].sharding.device_set) if firsts else []
    for number, array in enumerate(arrays):
        if number not in placed:
            like = placed[numbers[array.shape, array.dtype]]
            placed[number] = _last_step(like.aval, like.sharding, [array], devices, like.committed)
    return [placed[number] for number in range(len(arrays))]
