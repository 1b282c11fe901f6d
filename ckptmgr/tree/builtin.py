"""The built-in handlers: arrays and scalars of jax, numpy and Python, PRNG keys, bytes.

They take classes exactly, not their subclasses: a bool is no int, np.float64 no float,
and a subclass that came back as its base would be a leaf silently changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ckptmgr.format.zarr import NAMES, Shape
from ckptmgr.tree.handlers import Array, Encoded, Forms, Handler, NumpyStruct


class JaxArray(Handler):
    """A jax.Array of numbers. Comes back as one, with the sharding that the load chooses."""

    name = "jax.Array"
    types = (jax.Array,)

    def handles(self, leaf: Any) -> bool:
        """Concrete arrays: no tracer, no key array."""
        return leaf.dtype in NAMES and not isinstance(leaf, jax.core.Tracer)

    def encode(self, leaf: jax.Array) -> Encoded:
        """The array itself."""
        return Encoded(None, {"": leaf})

    def decode(self, value: object, arrays: Mapping[str, Array]) -> object:
        """The array itself."""
        return arrays[""]

    def form(self, value: object, arrays: Forms) -> object:
        """Its shape, dtype and sharding."""
        return arrays[""]


class KeyArray(Handler):
    """A PRNG key or an array of keys: comes back as keys of the same implementation."""

    name = "jax.random.key"
    types = (jax.Array,)

    def handles(self, leaf: Any) -> bool:
        """Concrete key arrays."""
        return _is_key(leaf.dtype) and not isinstance(leaf, jax.core.Tracer)

    def encode(self, leaf: jax.Array) -> Encoded:
        """The name of the implementation, and the keys' bits."""
        return Encoded(str(jax.random.key_impl(leaf)), {"": jax.random.key_data(leaf)})

    def decode(self, value: str, arrays: Mapping[str, Array]) -> object:
        """Keys of these bits."""
        return jax.random.wrap_key_data(jnp.asarray(arrays[""]), impl=value)

    def form(self, value: str, arrays: Forms) -> object:
        """Shape and sharding of the keys, and their dtype."""
        data = jax.ShapeDtypeStruct(arrays[""].shape, arrays[""].dtype)
        keys = jax.eval_shape(partial(jax.random.wrap_key_data, impl=value), data)
        place = arrays[""].sharding
        if isinstance(place, NamedSharding):  # the bits of a key have one more axis
            spec = PartitionSpec(*place.spec[: len(keys.shape)])
            place = NamedSharding(place.mesh, spec, memory_kind=place.memory_kind)
        return jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=place)

    def accepts(self, form: Any, target: Any) -> bool:
        """Keys of the same shape and implementation."""
        return (getattr(target, "shape", None), getattr(target, "dtype", None)) == (
            form.shape,
            form.dtype,
        )


def _is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


class NumpyArray(Handler):
    """A numpy array of numbers. Comes back writable, in C order, with its byte order."""

    name = "numpy.ndarray"
    types = (np.ndarray,)

    def handles(self, leaf: Any) -> bool:
        """Arrays of the dtypes we know; no subclass, as it would come back without its class."""
        return type(leaf) is np.ndarray and leaf.dtype.newbyteorder("=") in NAMES

    def encode(self, leaf: np.ndarray) -> Encoded:
        """The array; and its byte order where it is not little-endian, as what is stored is."""
        return Encoded(">" if leaf.dtype.byteorder == ">" else None, {"": leaf})

    def decode(self, value: str | None, arrays: Mapping[str, Array]) -> object:
        """The array, swapped where it was."""
        array = np.asarray(arrays[""])
        return array.astype(_ordered(array.dtype, value), copy=False)

    def form(self, value: str | None, arrays: Forms) -> object:
        """Its shape and dtype."""
        return NumpyStruct(arrays[""].shape, _ordered(arrays[""].dtype, value))


_FIRST_FOREIGN: Final = 256  # NPY_USERDEF: dtypes from here on are not numpy's own


def _ordered(dtype: np.dtype, order: str | None) -> np.dtype:
    """The dtype in that byte order; those of ml_dtypes, as it may be stored, have only one."""
    return dtype.newbyteorder(">") if order == ">" and dtype.num < _FIRST_FOREIGN else dtype


class NumpyScalar(Handler):
    """A numpy scalar such as np.float32(3); comes back as one, never as a Python number."""

    name = "numpy.generic"
    types = (np.generic,)

    def handles(self, leaf: Any) -> bool:
        """Scalars of the dtypes we know."""
        return leaf.dtype.type is type(leaf) and leaf.dtype in NAMES

    def encode(self, leaf: np.generic) -> Encoded:
        """An array without dimensions."""
        return Encoded(None, {"": np.asarray(leaf)})

    def decode(self, value: object, arrays: Mapping[str, Array]) -> object:
        """Its one element."""
        return np.asarray(arrays[""])[()]

    def form(self, value: object, arrays: Forms) -> object:
        """Its class."""
        return arrays[""].dtype.type


class NumpyBits(Handler):
    """Numpy arrays and scalars of long doubles, dates and times, which Zarr has no name for.

    Stored as their bytes, with one more axis. A long double differs between machines: one
    of another kind is refused, never reinterpreted.
    """

    name = "numpy.bits"
    types = (np.ndarray, np.generic)

    def handles(self, leaf: Any) -> bool:
        """Exactly numpy's own classes, of these dtypes in the machine's byte order."""
        own = type(leaf) is np.ndarray or leaf.dtype.type is type(leaf)
        return own and self._takes(leaf.dtype)

    def _takes(self, dtype: Any) -> bool:
        return (dtype.char in "gG" or dtype.kind in "mM") and bool(dtype.isnative)

    def encode(self, leaf: np.ndarray | np.generic) -> Encoded:
        """The dtype, the digits of the machine's long double, whether it is a scalar; the bytes."""
        shape = (*leaf.shape, leaf.dtype.itemsize)
        data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).reshape(shape)
        return Encoded((leaf.dtype.str, _LONG_DIGITS, isinstance(leaf, np.generic)), {"": data})

    def decode(self, value: tuple[str, int, bool], arrays: Mapping[str, Array]) -> object:
        """The array or scalar back.

        Raises:
          ValueError: the long doubles here are others.
        """
        dtype, shape, scalar = self._described(value, tuple(arrays[""].shape))
        array = np.asarray(arrays[""]).reshape(-1).view(dtype).reshape(shape)
        return array[()] if scalar else array

    def form(self, value: tuple[str, int, bool], arrays: Forms) -> object:
        """Shape and dtype, or the class of a scalar."""
        dtype, shape, scalar = self._described(value, tuple(arrays[""].shape))
        return dtype.type if scalar else NumpyStruct(shape, dtype)

    def accepts(self, form: Any, target: Any) -> bool:
        """The same class, shape and dtype."""
        if isinstance(form, type):
            return target is form or type(target) is form
        return isinstance(target, np.ndarray | NumpyStruct) and (target.shape, target.dtype) == (
            form.shape,
            form.dtype,
        )

    def _described(self, value: tuple[str, int, bool], stored: Shape) -> tuple[Any, Shape, bool]:
        name, digits, scalar = value
        dtype = np.dtype(name)
        if not self._takes(dtype) or (dtype.char in "gG" and digits != _LONG_DIGITS):
            raise ValueError(f"this machine has another {name}")
        return dtype, stored[:-1], scalar


_LONG_DIGITS = int(np.finfo(np.longdouble).nmant)


class PythonScalar(Handler):
    """int of any size, float, bool, complex and str, exact in the manifest."""

    name = "python"
    types = (int, float, complex, str)

    def handles(self, leaf: object) -> bool:
        """Exactly these classes."""
        return type(leaf) in (int, float, bool, complex, str)

    def encode(self, leaf: object) -> Encoded:
        """The value itself."""
        return Encoded(leaf)

    def decode(self, value: object, arrays: Mapping[str, Array]) -> object:
        """The value itself.

        Raises:
          TypeError: it is none of these.
        """
        if not self.handles(value):
            raise TypeError(f"a {type(value).__name__} is no scalar")
        return value

    def form(self, value: object, arrays: Forms) -> object:
        """Its class."""
        return type(self.decode(value, {}))

    def accepts(self, form: object, target: object) -> bool:
        """The same class."""
        return target is form or type(target) is form


class Bytes(Handler):
    """bytes and bytearray, stored as an array of uint8."""

    name = "bytes"
    types = (bytes, bytearray)

    def handles(self, leaf: object) -> bool:
        """Exactly these two classes."""
        return type(leaf) in (bytes, bytearray)

    def encode(self, leaf: bytes | bytearray) -> Encoded:
        """Which of the two it is, and the bytes as uint8."""
        return Encoded(type(leaf).__name__, {"": np.frombuffer(leaf, np.uint8)})

    def decode(self, value: str, arrays: Mapping[str, Array]) -> object:
        """The bytes back."""
        data = np.asarray(arrays[""]).tobytes()
        return bytearray(data) if value == "bytearray" else data

    def form(self, value: str, arrays: Forms) -> object:
        """Its class."""
        return bytearray if value == "bytearray" else bytes

    def accepts(self, form: object, target: object) -> bool:
        """The same class, of any length."""
        return target is form or type(target) is form


BUILT_IN: tuple[Handler, ...] = (
    JaxArray(),
    NumpyArray(),
    PythonScalar(),
    NumpyScalar(),
    Bytes(),
    KeyArray(),
    NumpyBits(),
)

IMMUTABLE: Final = frozenset({JaxArray.name, KeyArray.name})
"""The handlers whose arrays nobody changes: these may be viewed after save() has returned."""

NUMBERS: Final = frozenset({JaxArray.name, NumpyArray.name, NumpyScalar.name})
"""The handlers whose main array is the numbers themselves: these can be cast."""
