"""Classes that users register: leaves with their encoding, nodes with their aux data.

The two tables here are the only state of the process, changed by nothing but
`register_leaf` and `register_node`. A class is stored under the name it was registered
with, never by its module path, and only a registered class is ever made from a name in
a file.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

import jax
import numpy as np

from ckptmgr.errors import InvalidOption
from ckptmgr.tree.builtin import BUILT_IN
from ckptmgr.tree.handlers import Array, Encoded, Forms, Handler

C = TypeVar("C", bound=type)
_STRUCTURE: Final = (dict, OrderedDict, list, tuple, type(None))
_KNOWN_NODES: Final = {"flax.FrozenDict": ("flax.core.frozen_dict", "FrozenDict")}


class RegisteredLeaf(Handler):
    """The handler of a class that `register_leaf` was given."""

    def __init__(
        self, cls: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
    ) -> None:
        self.name = name
        self.types = (cls,)
        self._cls = cls
        self._encode = encode
        self._decode = decode

    def handles(self, leaf: object) -> bool:
        """Exactly this class: a subclass would come back as its base."""
        return type(leaf) is self._cls

    def encode(self, leaf: object) -> Encoded:
        """What the user's function makes of it: each array or bytes in it is stored as an array."""
        data = self._encode(leaf)
        named = type(data) is dict and all(type(key) is str for key in data)
        values, arrays = {}, {}
        for key, item in data.items() if named else [("", data)]:
            handler = next((h for h in BUILT_IN if h.takes(item)), None)
            encoded = Encoded(item) if handler is None else handler.encode(item)
            values[key] = (handler and handler.name, encoded.value)
            for array in encoded.arrays.values():  # of a built-in handler one at most
                arrays[key] = array
        return Encoded((named, values), arrays)

    def decode(self, value: Any, arrays: Mapping[str, Array]) -> object:
        """The leaf of that data."""
        named, values = value
        data = {}
        for key, (name, item) in values.items():
            handler = next((h for h in BUILT_IN if h.name == name), None)
            own = {"": arrays[key]} if key in arrays else {}
            data[key] = item if handler is None else handler.decode(item, own)
        return self._decode(data if named else data[""])

    def form(self, value: object, arrays: Forms) -> object:
        """Its class."""
        return self._cls

    def accepts(self, form: object, target: object) -> bool:
        """Any leaf of the class, and the class itself."""
        return target is self._cls or type(target) is self._cls


@dataclass(frozen=True, slots=True)
class NodeClass:
    """A class that jax can flatten, with how its aux data becomes plain data and comes back."""

    cls: type
    name: str
    to_data: Callable[[Any], Any]
    from_data: Callable[[Any], Any]

    def make(self, aux: object, children: list[object]) -> object:
        """The node of this aux data and these children."""
        if issubclass(self.cls, tuple) and hasattr(self.cls, "_fields"):
            made: object = self.cls(*children)  # type: ignore[arg-type]  # a namedtuple's arguments
            return made
        # Neither is in jax's documentation, both are in its public namespace.
        make = jax.tree_util.PyTreeDef.from_node_data_and_children
        registry = jax.tree_util.default_registry
        leaf = jax.tree_util.tree_structure(0)
        treedef = make(registry, (self.cls, aux), [leaf] * len(children))
        node: object = treedef.unflatten(children)
        return node


_LEAVES: dict[str, RegisteredLeaf] = {}
_NODES: dict[str, NodeClass] = {}
_BY_CLASS: dict[type, NodeClass] = {}


@overload
def register_leaf(
    cls: C,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
) -> C: ...
@overload
def register_leaf(
    cls: None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
) -> Callable[[C], C]: ...
def register_leaf(
    cls: type | None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
) -> Any:
    """Let trees hold leaves of a class of yours, in every manager of this process.

        register_leaf(Vocabulary, name="vocabulary", encode=lambda v: v.words, decode=Vocabulary)

    Without `cls` it is a decorator. Instances of subclasses are not taken.

    Args:
      cls: the class.
      name: what files call it; the class's own name by default. Keep it: a checkpoint is
        read by whatever class has the name.
      encode: makes plain data of a leaf: None, numbers, str, bytes, and tuples, lists and
        dicts of them; a jax or numpy array; or a dict of all these by str.
      decode: makes the leaf of that data again.

    Raises:
      InvalidOption: the class or the name is taken, or the class is a built-in leaf.
    """

    def register(cls: C) -> C:
        built_in = {kind for handler in BUILT_IN for kind in handler.types or ()}
        if cls in built_in or cls in _STRUCTURE or _is_number(cls):
            raise InvalidOption(
                f"{cls!r} is built in; pass handlers=[...] with `overrides` instead"
            )
        if not (callable(encode) and callable(decode)):
            raise InvalidOption("encode and decode are functions")
        called = _new_name(cls, name, {leaf.types[0] for leaf in _LEAVES.values() if leaf.types})
        if called in _LEAVES or called in {handler.name for handler in BUILT_IN}:
            raise InvalidOption(f"a handler is named {called!r} already")
        _LEAVES[called] = RegisteredLeaf(cls, called, encode, decode)
        return cls

    return register if cls is None else register(cls)


@overload
def register_node(
    cls: C,
    *,
    name: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> C: ...
@overload
def register_node(
    cls: None = None,
    *,
    name: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> Callable[[C], C]: ...
def register_node(
    cls: type | None = None,
    *,
    name: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> Any:
    """Let nodes of a class that jax can flatten come back by themselves, without `like`.

        @register_node(name="config", to_data=lambda config: config.text, from_data=Config)
        @jax.tree_util.register_static
        class Config: ...

    Without `cls` it is a decorator. For a namedtuple the class itself comes back.

    Args:
      cls: the class; jax must know it by the time it is saved.
      name: what files call it; the class's own name by default.
      to_data: makes plain data of the aux data that jax keeps of a node: None, numbers,
        str, bytes, and tuples, lists and dicts of them. None: it is plain data already.
      from_data: makes the aux data again.

    Raises:
      InvalidOption: the class or the name is taken, or the class is one of jax's own nodes.
    """

    def register(cls: C) -> C:
        if cls in _STRUCTURE:
            raise InvalidOption(f"{cls!r} is stored as it is; there is nothing to register")
        if (to_data is None) != (from_data is None):
            raise InvalidOption("to_data and from_data go together")
        called = _new_name(cls, name, set(_BY_CLASS))
        if called in _NODES or called in _KNOWN_NODES:
            raise InvalidOption(f"a node is registered as {called!r} already")
        node = NodeClass(cls, called, to_data or _same, from_data or _same)
        _NODES[called] = _BY_CLASS[cls] = node
        return cls

    return register if cls is None else register(cls)


def _is_number(cls: object) -> bool:
    """Whether instances are of numpy's or jax's own: the built-in handlers take these."""
    return isinstance(cls, type) and issubclass(cls, bool | np.generic | jax.Array)


def _new_name(cls: type, name: str | None, known: set[type]) -> str:
    if not isinstance(cls, type):
        raise InvalidOption(f"a class is registered, not {cls!r}")
    if cls in known:
        raise InvalidOption(f"{cls!r} is registered already")
    called = cls.__name__ if name is None else name
    if not isinstance(called, str) or not called:
        raise InvalidOption(f"name is a str that is not empty, not {name!r}")
    return called


def _same(data: object) -> object:
    return data


def leaf_named(name: str) -> RegisteredLeaf | None:
    """The registered leaf of this name."""
    return _LEAVES.get(name)


def count() -> int:
    """How many classes are registered: what a plan depends on, as they are never taken back."""
    return len(_LEAVES) + len(_NODES)


def leaf_handlers() -> tuple[Handler, ...]:
    """The handlers of all registered leaves."""
    return tuple(_LEAVES.values())


def node_of(cls: type) -> NodeClass | None:
    """How nodes of this class are stored; None where they are not registered."""
    node = _BY_CLASS.get(cls)
    if node is not None:
        return node
    for name, (module, qualname) in _KNOWN_NODES.items():
        if getattr(sys.modules.get(module), qualname, None) is cls:
            return NodeClass(cls, name, _same, _same)
    return None


def node_named(name: str) -> NodeClass | None:
    """The registered node of this name; None where there is none in this process."""
    if name in _KNOWN_NODES:
        module, qualname = _KNOWN_NODES[name]  # names of ours, not of the file
        try:
            return NodeClass(getattr(importlib.import_module(module), qualname), name, _same, _same)
        except ImportError:
            return None
    return _NODES.get(name)
