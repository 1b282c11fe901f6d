"""Handlers: how one kind of leaf becomes named arrays plus JSON, and comes back.

A handler does no I/O and looks at nothing but its leaf. Classes match exactly, not
their subclasses: a bool is no int, np.float64 no float, and a subclass that came back
as its base would be a leaf silently changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import ClassVar, TypeAlias

import jax
import numpy as np

from ckptmgr.format.scalar import JSON, from_json, to_json
from ckptmgr.format.zarr import NAMES

Array: TypeAlias = "jax.Array | np.ndarray"
NONE: Mapping[str, Array] = {}


class Handler(ABC):
    """One kind of leaf.

    Attributes:
      name: what the manifest calls it, stable for ever.
    """

    name: ClassVar[str]

    @abstractmethod
    def handles(self, leaf: object) -> bool:
        """Whether the leaf is of this kind."""

    def key(self, leaf: object) -> Hashable:
        """All that the plan depends on; leaves of equal keys are planned alike."""
        return type(leaf).__qualname__

    def arrays(self, leaf: object) -> Mapping[str, Array]:
        """The arrays to store, the main one under the name ""."""
        return NONE

    def value(self, leaf: object) -> JSON:
        """The JSON to store."""
        return None

    @abstractmethod
    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """The leaf back from its JSON and its arrays, which are the leaf's to keep."""


class JaxArray(Handler):
    """A jax.Array of numbers. Comes back as one, with the sharding that the load chooses."""

    name = "jax.Array"

    def handles(self, leaf: object) -> bool:
        """Concrete arrays: no tracer, no key array."""
        return (
            isinstance(leaf, jax.Array)
            and not isinstance(leaf, jax.core.Tracer)
            and leaf.dtype in NAMES
        )

    def key(self, leaf: object) -> Hashable:
        """Shape, dtype and sharding."""
        assert isinstance(leaf, jax.Array)
        return leaf.aval, leaf.sharding

    def arrays(self, leaf: object) -> Mapping[str, Array]:
        """The array itself."""
        assert isinstance(leaf, jax.Array)
        return {"": leaf}

    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """The array itself."""
        return arrays[""]


class NumpyArray(Handler):
    """A numpy array of numbers. Comes back writable, in C order, with its byte order."""

    name = "numpy.ndarray"

    def handles(self, leaf: object) -> bool:
        """Arrays of the dtypes we know; no subclass, as it would come back without its class."""
        return type(leaf) is np.ndarray and leaf.dtype.newbyteorder("=") in NAMES

    def key(self, leaf: object) -> Hashable:
        """Shape and dtype."""
        assert isinstance(leaf, np.ndarray)
        return leaf.dtype, leaf.shape

    def arrays(self, leaf: object) -> Mapping[str, Array]:
        """The array itself."""
        assert isinstance(leaf, np.ndarray)
        return {"": leaf}

    def value(self, leaf: object) -> JSON:
        """The byte order, where it is not the machine's: the bytes stored are little-endian."""
        assert isinstance(leaf, np.ndarray)
        return ">" if leaf.dtype.byteorder == ">" else None

    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """The array, swapped where it was."""
        array = np.asarray(arrays[""])
        return array.astype(array.dtype.newbyteorder(">")) if value == ">" else array


class NumpyScalar(Handler):
    """A numpy scalar such as np.float32(3); comes back as one, never as a Python number."""

    name = "numpy.generic"

    def handles(self, leaf: object) -> bool:
        """Scalars of the dtypes we know."""
        return (
            isinstance(leaf, np.generic) and leaf.dtype.type is type(leaf) and leaf.dtype in NAMES
        )

    def arrays(self, leaf: object) -> Mapping[str, Array]:
        """An array without dimensions."""
        return {"": np.asarray(leaf)}

    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """Its one element."""
        return np.asarray(arrays[""])[()]


class PythonScalar(Handler):
    """int of any size, float, bool, complex and str, exact in the manifest."""

    name = "python"
    types = frozenset({int, float, bool, complex, str})

    def handles(self, leaf: object) -> bool:
        """Exactly these classes."""
        return type(leaf) in self.types

    def value(self, leaf: object) -> JSON:
        """Its exact JSON."""
        return to_json(leaf)

    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """The value."""
        return from_json(value)


class Bytes(Handler):
    """bytes and bytearray, stored as an array of uint8."""

    name = "bytes"

    def handles(self, leaf: object) -> bool:
        """Exactly these two classes."""
        return type(leaf) in (bytes, bytearray)

    def key(self, leaf: object) -> Hashable:
        """Class and length."""
        assert isinstance(leaf, bytes | bytearray)
        return type(leaf), len(leaf)

    def arrays(self, leaf: object) -> Mapping[str, Array]:
        """The bytes as uint8."""
        assert isinstance(leaf, bytes | bytearray)
        return {"": np.frombuffer(leaf, np.uint8)}

    def value(self, leaf: object) -> JSON:
        """Which of the two it is."""
        return type(leaf).__name__

    def decode(self, value: JSON, arrays: Mapping[str, Array]) -> object:
        """The bytes back."""
        data = np.asarray(arrays[""]).tobytes()
        return bytearray(data) if value == "bytearray" else data


BUILT_IN: tuple[Handler, ...] = (
    JaxArray(),
    NumpyArray(),
    PythonScalar(),
    NumpyScalar(),
    Bytes(),
)
