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
    # As jax numbers leaves: dicts by their sorted keys, and None is one.
    kinds = jax.tree.leaves(tree, is_leaf=lambda node: node is None)
    numbers = [number for number, kind in enumerate(kinds) if kind is not None]
    arrays = Arrays(f"{path}/{JAX_STORE}", zarr3=True, ocdbt=True, missing=True)
    sources = iter(arrays.open_all(list(map(str, numbers))))

    def made(node: Any) -> object:
        match node:
            case None:
                return None
            case dict():
                return {key: made(node[key]) for key in sorted(node)}
            case list() | tuple():
                children = [made(child) for child in node]
                return children if isinstance(node, list) else tuple(children)
            case jax.ShapeDtypeStruct():
                return Leaf(next(sources), handler=JAX, sharding=ShardingEntry())
        raise UnsupportedFormat(f"a node of {type(node)} is not known here", file=path)

    return foreign(NAME, path, made(tree))


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
