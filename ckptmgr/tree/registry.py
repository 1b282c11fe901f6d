"""The handlers that a manager knows, by leaf and by name; the first that matches wins."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from ckptmgr.errors import UnsupportedFormat, UnsupportedLeaf
from ckptmgr.tree.handlers import BUILT_IN, Handler


class Registry:
    """An ordered list of handlers."""

    def __init__(self, handlers: Sequence[Handler] = BUILT_IN) -> None:
        self._handlers = tuple(handlers)
        self._names = {handler.name: handler for handler in handlers}
        self._candidates: dict[type, Handler] = {}

    def find(self, leaf: object) -> Handler | None:
        """The handler of a leaf, if there is one."""
        return next((handler for handler in self._handlers if handler.handles(leaf)), None)

    def candidate(self, leaf: object) -> Handler | None:
        """The handler that took the first leaf of this class; it need not take this one."""
        handler = self._candidates.get(type(leaf))
        if handler is None:
            handler = self.find(leaf)
            if handler is not None:
                self._candidates[type(leaf)] = handler
        return handler

    def named(self, name: str, leaf: str) -> Handler:
        """The handler that a manifest names for the leaf at path `leaf`.

        Raises:
          UnsupportedFormat: there is none of that name.
        """
        try:
            return self._names[name]
        except KeyError as error:
            raise UnsupportedFormat(f"no handler is named {name!r}", leaf=leaf) from error


def unsupported(leaf: object, path: str) -> UnsupportedLeaf:
    """The error for a leaf that no handler takes: what it is, and what to do."""
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    dtype = getattr(leaf, "dtype", None)
    if isinstance(leaf, jax.core.Tracer):
        advice = "it is a tracer: call save() outside of jit"
    elif dtype is not None:
        advice = f"its dtype {dtype} is not stored; convert it, or leave it out of the tree"
    else:
        advice = "leaves may be arrays, numbers, str and bytes; leave it out of the tree"
    return UnsupportedLeaf(f"a leaf of class {kind} cannot be saved: {advice}", leaf=path)
