"""Casting in NumPy's words, with the dtypes of ml_dtypes and Python's numbers in their places.

NumPy itself calls bfloat16 and the like neither safe nor of the same kind as any
other; here they are floats (or ints) like the rest.
"""

from __future__ import annotations

import functools
from typing import Final, Literal, TypeAlias, get_args

import jax.numpy as jnp
import numpy as np

from ckptmgr.errors import InvalidOption, UnsupportedLeaf

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
_BLOCK: Final = 1 << 18  # items
_KINDS: Final = (
    jnp.bool_, jnp.unsignedinteger, jnp.signedinteger, jnp.floating, jnp.complexfloating,
)  # fmt: skip


def parse_casting(value: object) -> Casting:
    """One of NumPy's words.

    Raises:
      InvalidOption: it is none of them.
    """
    if value not in get_args(Casting):
        raise InvalidOption(f"casting is one of {', '.join(get_args(Casting))}, not {value!r}")
    return value  # type: ignore[return-value]  # just checked


def can_cast(source: np.dtype, target: np.dtype, rule: Casting) -> bool:
    """Whether `rule` lets values of `source` become `target`."""
    if source == target:
        return True
    if not _exists(source, target):
        return False
    if rule == "unsafe":
        return True
    if rule == "same_kind":
        return _kind(source) <= _kind(target)
    if rule == "safe":
        return np.can_cast(source, target, "safe")
    return False


def can_store(source: np.dtype, target: np.dtype) -> bool:
    """Whether values of `source` may be stored as `target`, if they fit.

    Of the same kind, or unsigned integers as wider signed ones. Not integers as floats: that
    a step count no longer fits would come out in the middle of a run.
    """
    if _kind(source) != _kind(target):
        return jnp.issubdtype(source, jnp.unsignedinteger) and (
            jnp.issubdtype(target, jnp.signedinteger) and np.can_cast(source, target, "safe")
        )
    return _exists(source, target)


@functools.lru_cache(maxsize=1024)
def _exists(source: np.dtype, target: np.dtype) -> bool:
    """Whether there is code for this cast: ml_dtypes lacks some."""
    if _kind(source) > _kind(target):
        return True  # numpy warns of each one
    try:
        np.zeros(1, source).astype(target)
    except TypeError:
        return False
    return True


def _kind(dtype: np.dtype) -> int:
    return next(place for place, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))


def fill(target: np.ndarray, source: np.ndarray, leaf: str) -> None:
    """Copy numbers into an array of another byte order, or of a dtype that they can be stored as.

    Raises:
      UnsupportedLeaf: a value would not survive: an integer that changes, a float that
        overflows, a NaN where there is none.
    """
    if target.dtype == source.dtype or target.dtype == source.dtype.newbyteorder("="):
        target[...] = source
        return
    if source.size > _BLOCK:  # the copies that the checks make count nowhere: they stay small
        axis = int(np.argmax(source.shape))
        half = source.shape[axis] // 2
        for part in (slice(None, half), slice(half, None)):
            index = (*[slice(None)] * axis, part)
            fill(target[index], source[index], leaf)
        return
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")
        if _kept(target, source):
            return
    raise UnsupportedLeaf(
        f"values of this {source.dtype.name} array do not fit into {target.dtype.name}, which it "
        "is to be stored as",
        leaf=leaf,
    )


def _kept(target: np.ndarray, source: np.ndarray) -> bool:
    if not jnp.issubdtype(source.dtype, jnp.inexact):
        return bool(np.array_equal(target.astype(source.dtype), source))
    if jnp.issubdtype(source.dtype, jnp.complexfloating):
        return all(
            _kept(*parts) for parts in ((target.real, source.real), (target.imag, source.imag))
        )
    largest = float(jnp.finfo(target.dtype).max)  # type: ignore[no-untyped-call]  # it has no types
    finite = np.isfinite(source)
    return bool(
        np.array_equal(np.isnan(target), np.isnan(source))
        and np.array_equal(np.isinf(target), np.isinf(source))
        and np.all(np.abs(np.where(finite, source, 0)) <= largest)
    )
