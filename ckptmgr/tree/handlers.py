"""Handlers: how one kind of leaf becomes plain data plus named arrays, and comes back.

A handler does no I/O and looks at nothing but its leaf. Those that ckptmgr brings along
are in `builtin.py`; a manager is given more as `handlers=`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from ckptmgr.format.zarr import Shape

Array: TypeAlias = "jax.Array | np.ndarray"
Forms: TypeAlias = "Mapping[str, jax.ShapeDtypeStruct]"
_NO_ARRAYS: Mapping[str, Array] = {}


class Encoded(NamedTuple):
    """A leaf as it is stored.

    Attributes:
      value: plain Python data: None, bool, int, float, complex, str, bytes, and tuples,
        lists and dicts of them.
      arrays: jax or numpy arrays of numbers by name, the main one under the name "".
    """

    value: object = None
    arrays: Mapping[str, Array] = _NO_ARRAYS


class NumpyStruct(jax.ShapeDtypeStruct):
    """Shape and dtype of a numpy array; in a `like` tree it asks for a numpy array."""

    def __init__(self, shape: Shape, dtype: np.dtype) -> None:
        super().__init__(shape, dtype)  # type: ignore[no-untyped-call]  # it has no types


@dataclass(frozen=True, slots=True)
class Stored:
    """Stands for a leaf of a handler that says no more; in a `like` tree: as it was saved."""

    handler: str


class Handler(ABC):
    """One kind of leaf; subclass it and pass an instance as `handlers=[...]`.

        class Path(Handler):
            name = "path"
            types = (pathlib.PurePath,)

            def encode(self, leaf): return Encoded(str(leaf))
            def decode(self, value, arrays): return pathlib.Path(value)

    Attributes:
      name: what the manifest calls it; must stay the same as long as its checkpoints live.
      types: the classes whose instances it takes, subclasses included; None: any class.
      overrides: the name of a built-in handler, or of a registered class, that this one
        goes before. Without it those go first. A leaf that two would take without one
        overriding the other is an error.
    """

    name: str
    types: tuple[type, ...] | None = None
    overrides: str | None = None

    def handles(self, leaf: Any) -> bool:
        """Whether it takes this leaf, an instance of `types`. By default all of them."""
        return self.types is not None

    def takes(self, leaf: object) -> bool:
        """Whether it takes this leaf, of any class."""
        return (self.types is None or isinstance(leaf, self.types)) and self.handles(leaf)

    @abstractmethod
    def encode(self, leaf: Any) -> Encoded:
        """The leaf as plain data and arrays.

        An array may be the leaf's own: it is not changed, and must stay as it is until
        `save()` returns.
        """

    @abstractmethod
    def decode(self, value: Any, arrays: Mapping[str, Array]) -> object:
        """The leaf back from what `encode` gave.

        What was a jax array is one again, on the devices of the load, unless the load
        asked for numpy. The arrays are the leaf's to keep.
        """

    def form(self, value: Any, arrays: Forms) -> object:
        """What stands for the leaf in `load_structure`, given its value and its arrays' forms."""
        return Stored(self.name)

    def accepts(self, form: object, target: object) -> bool:
        """Whether a leaf of this form may be restored in the place of the `like` leaf `target`."""
        return (type(target) is type(form) and target == form) or self.takes(target)
