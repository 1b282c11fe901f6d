"""JAX's own `jax.experimental.array_serialization.pytree_serialization`.

A tree definition, which jax itself reads (it needs `flatbuffers`), and the arrays by the
numbers of their leaves in an OCDBT database. Its writer leaves out chunks of zeros, so one
that was lost cannot be told from one of these.
"""

from __future__ import annotations

from typing import Any, Final

import jax

from ckptmgr.errors import DamagedStep, UnsupportedFormat
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.interop.base import JAX, Foreign, Leaf, foreign
from ckptmgr.interop.recognise import JAX_STORE
from ckptmgr.interop.tensorstores import Arrays

NAME: Final = "jax"


def open_at(path: str) -> Foreign:
    """Open a directory.

    Raises:
      DamagedStep, UnsupportedFormat: it cannot be read.
    """
    tree = _definition(path)
    # As jax numbers leaves, of which None is one; and put back by jax, in whatever order.
    kinds, places = jax.tree.flatten(tree, is_leaf=lambda node: node is None)
    numbers = [number for number, kind in enumerate(kinds) if kind is not None]
    arrays = Arrays(f"{path}/{JAX_STORE}", zarr3=True, ocdbt=True, missing=True)
    sources = iter(arrays.open_all(list(map(str, numbers))))
    leaves = [
        None if kind is None else Leaf(next(sources), handler=JAX, sharding=ShardingEntry())
        for kind in kinds
    ]
    try:
        return foreign(NAME, path, jax.tree.unflatten(places, leaves))
    except AssertionError as error:
        raise UnsupportedFormat(f"it has a node that is not known here: {error}") from error


def _definition(path: str) -> Any:
    """The tree, as jax reads it; arrays as ShapeDtypeStructs."""
    try:
        from jax.experimental.array_serialization import (  # noqa: PLC0415  # needs flatbuffers
            pytree_serialization,
        )
    except ImportError as error:
        raise UnsupportedFormat(
            f"to read this format jax needs another package: pip install flatbuffers ({error})",
            file=path,
        ) from error
    try:
        return pytree_serialization.load_pytreedef(path)
    except Exception as error:
        raise DamagedStep(f"jax cannot read the tree definition: {error!r}", file=path) from error
