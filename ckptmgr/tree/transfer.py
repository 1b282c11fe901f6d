"""Host arrays onto devices, thousands at a time.

jax.device_put costs 33 us an array (jax 0.10, 2 cores), nearly all of it to describe each
one anew. Its last step alone, with the description of another array of that shape, costs
6 us. That step is private, so this is the only file that uses it; where it is gone, or an
array goes to several devices, device_put does it all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Sharding

_last_step: Callable[..., jax.Array] | None = None
with contextlib.suppress(ImportError, AttributeError):
    from jax._src.interpreters import pxla

    _last_step = pxla.batched_device_put


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
