"""The handlers that a manager knows, by leaf and by name; the first that matches wins.

In this order: the caller's that override, the built-in ones, registered classes, the
caller's others. Where two of these would take one leaf without having said so, that is
an error rather than a silent choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptmgr.errors import InvalidOption
from ckptmgr.tree import registered
from ckptmgr.tree.builtin import BUILT_IN, JaxArray
from ckptmgr.tree.handlers import Handler

_BUILT_IN_NAMES = frozenset(handler.name for handler in BUILT_IN)


class Registry:
    """The built-in handlers, those of registered classes, and the caller's own.

    Raises:
      InvalidOption: a name is taken or missing, or a handler overrides what there is not.
    """

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._own: dict[str, Handler] = {}
        for handler in handlers:
            self._own[_checked(handler, self._own)] = handler
        self._first = tuple(h for h in self._own.values() if h.overrides is not None)
        self._last = tuple(h for h in self._own.values() if h.overrides is None)
        self._by_class: dict[type, tuple[Handler, ...]] = {}

    def find(self, leaf: object) -> Handler | None:
        """The handler of a leaf, if there is one."""
        kind = type(leaf)
        for handler in self._by_class.get(kind, ()):
            if handler.handles(leaf):
                return handler
        # Anew, as a class may have been registered meanwhile.
        everyone = (*self._first, *BUILT_IN, *registered.leaf_handlers(), *self._last)
        candidates = self._by_class[kind] = tuple(_for_class(everyone, kind))
        return next((handler for handler in candidates if handler.handles(leaf)), None)

    def is_verbatim(self, leaf: object, handler: Handler) -> bool:
        """Whether each leaf of this class and dtype goes to this handler, and stays as it is."""
        return handler.name == JaxArray.name and self._by_class[type(leaf)][0] is handler

    def rival(self, leaf: object, taken_by: Handler) -> Handler | None:
        """A handler that would take this leaf too, where it was not said which goes first."""
        if not self._own or (taken_by.name in self._own and taken_by.overrides is None):
            return None
        if taken_by.name not in self._own:
            return next((handler for handler in self._last if handler.takes(leaf)), None)
        others = (*BUILT_IN, *registered.leaf_handlers())
        other = next((handler for handler in others if handler.takes(leaf)), None)
        return None if other is None or other.name == taken_by.overrides else other

    def named(self, name: str) -> Handler | None:
        """The handler that a manifest names."""
        if name in self._own:
            return self._own[name]
        built_in = next((handler for handler in BUILT_IN if handler.name == name), None)
        return built_in or registered.leaf_named(name)


def _checked(handler: Handler, others: dict[str, Handler]) -> str:
    """The name of a handler that may stand beside the others."""
    if not isinstance(handler, Handler):
        raise InvalidOption(f"handlers holds {handler!r}, which is no ckptmgr.Handler")
    name = getattr(handler, "name", None)
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"{type(handler).__name__}.name is a str that is not empty")
    if name in others or name in _BUILT_IN_NAMES or registered.leaf_named(name) is not None:
        raise InvalidOption(f"two handlers are named {name!r}; rename one")
    known = {*_BUILT_IN_NAMES, *(leaf.name for leaf in registered.leaf_handlers())}
    if handler.overrides is not None and handler.overrides not in known:
        raise InvalidOption(
            f"handler {name!r} overrides {handler.overrides!r}, which is none of "
            f"{', '.join(sorted(known))}"
        )
    return name


def _for_class(handlers: Sequence[Handler], kind: type) -> list[Handler]:
    return [h for h in handlers if h.types is None or issubclass(kind, h.types)]
