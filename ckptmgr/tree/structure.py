"""The structure of a tree as data, and back; and the key paths of its leaves.

dict, OrderedDict, list, tuple, namedtuple and None come back as they are, dict keys
with their types. A namedtuple class comes back as one of equal name and fields:
nothing is ever imported by a name read from a file. Registered classes come back with
their aux data; any other class that jax can flatten through `like` alone.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ckptmgr.errors import CheckpointError, DamagedStep, UndecodableLeaf, UnsupportedLeaf
from ckptmgr.format import keypath
from ckptmgr.format.manifest import (
    CustomNode,
    DictNode,
    ListNode,
    NamedTupleNode,
    Node,
    NoneNode,
    RegisteredNode,
    TupleNode,
)
from ckptmgr.format.scalar import JSON, from_json, to_json
from ckptmgr.tree.registered import NodeClass, node_named, node_of


class PyTreeDef(Protocol):
    """What is used of jax's own class of this name, which has no stubs."""

    num_leaves: int

    def node_data(self) -> tuple[type, Any] | None:
        """The class of the node and what jax keeps of it; None for a leaf."""

    def children(self) -> list[PyTreeDef]:
        """The nodes below."""


def flatten(tree: object) -> tuple[list[object], PyTreeDef]:
    """The leaves of a tree in jax's order, and its treedef.

    Raises:
      UnsupportedLeaf: jax cannot flatten it, as when the keys of a dict have no order.
    """
    try:
        return jax.tree_util.tree_flatten(tree)
    except SystemError as error:  # how jax 0.10 reports a recursion error of its own
        raise UnsupportedLeaf("the tree is nested too deep for jax") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsupportedLeaf(
            f"jax cannot flatten this tree ({error}); the keys of one dict must be comparable"
        ) from error


def key_paths(tree: object) -> list[str]:
    """The key path of each leaf as text, in jax's order: `["params/layer_0/kernel", ...]`.

    A `/` inside a key is written `~1` and a `~` as `~0` (RFC 6901). None is no leaf.

    Raises:
      UnsupportedLeaf: two leaves have the same path.
    """
    paths = [path_text(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UnsupportedLeaf("two leaves have the same key path; rename one", leaf=twice)
    return paths


def path_text(path: Sequence[object]) -> str:
    """One of jax's key paths as text."""
    return keypath.join(map(_key, path))


def _key(key: object) -> object:
    match key:
        case DictKey(key=name) | FlattenedIndexKey(key=name):
            return name
        case SequenceKey(idx=index):
            return index
        case GetAttrKey(name=name):
            return name
        case _:
            return str(key)


def locate(tree: object, cls: type) -> str:
    """The path of the first node of a class, for what is said of it."""
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: type(x) is cls)[0]
    return next((path_text(path) for path, leaf in found if type(leaf) is cls), "")


def describe(tree: object, treedef: PyTreeDef) -> Node:
    """The structure as data; leaf i of jax's order is the int i.

    Raises:
      UnsupportedLeaf: a dict key or aux data has no exact JSON, or it is nested too deep.
    """
    numbers = iter(range(treedef.num_leaves))
    try:
        return _describe(treedef, lambda: next(numbers))
    except RecursionError as error:
        raise UnsupportedLeaf("the tree is nested too deep to be stored") from error
    except _Unstorable as error:
        raise UnsupportedLeaf(error.message, leaf=locate(tree, error.cls)) from error.__cause__


class _Unstorable(Exception):  # it never leaves this file
    """What cannot be stored, and the class of the node that it belongs to."""

    def __init__(self, cls: type, message: str) -> None:
        super().__init__(message)
        self.cls = cls
        self.message = message


def _describe(treedef: PyTreeDef, number: Callable[[], int]) -> Node:
    data = treedef.node_data()
    if data is None:
        return number()
    kind, aux = data
    if kind is type(None):
        return NoneNode()
    children = tuple(_describe(child, number) for child in treedef.children())
    if kind is dict or kind is OrderedDict:
        return DictNode(_keys(aux, kind), children, ordered=kind is OrderedDict)
    if kind is list:
        return ListNode(children)
    if kind is tuple:
        return TupleNode(children)
    node = node_of(kind)
    if node is not None:
        return RegisteredNode(node.name, _data(node, aux), children)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return NamedTupleNode(kind.__name__, kind._fields, children)
    return CustomNode(f"{kind.__module__}.{kind.__qualname__}", children)


def _keys(keys: Sequence[object], kind: type) -> tuple[JSON, ...]:
    try:
        return tuple(to_json(key) for key in keys)
    except TypeError as error:
        raise _Unstorable(
            kind,
            f"a dict key is not supported: {error}; keys may be str, bytes, numbers, "
            f"None and tuples of them (the keys here: {list(keys)[:8]!r})",
        ) from error


def _data(node: NodeClass, aux: object) -> JSON:
    """The aux data of a registered node."""
    try:
        return to_json(node.to_data(aux))
    except Exception as error:
        raise _Unstorable(
            node.cls,
            f"the aux data of this {node.cls.__qualname__} cannot be stored: {error!r}; give "
            "register_node a to_data that makes None, numbers, str, bytes, or tuples, lists "
            "and dicts of them",
        ) from error


class Unknown(Protocol):
    """What `build` does with a node of a class that does not come back by itself."""

    def __call__(
        self, node: CustomNode | RegisteredNode, children: list[object], depth: int
    ) -> object:
        """What takes its place; `depth` keys lead to it."""


def strangers(node: Node) -> list[CustomNode | RegisteredNode]:
    """The outermost nodes of classes that do not come back by themselves in this process."""
    found: list[CustomNode | RegisteredNode] = []
    stack: list[Node] = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, int | NoneNode):
            continue
        if isinstance(here, CustomNode) or (
            isinstance(here, RegisteredNode) and node_named(here.name) is None
        ):
            found.append(here)
        else:
            stack.extend(reversed(here.children))
    return found


def build(node: Node, leaves: Sequence[object], unknown: Unknown) -> object:
    """The tree that `describe` was given, around other leaves.

    Raises:
      UndecodableLeaf: a registered class cannot be made of its aux data.
      DamagedStep: it describes no tree.
      CheckpointError: what `unknown` raises.
    """
    try:
        return _build(node, leaves, unknown, 0)
    except CheckpointError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedStep(f"the manifest describes no tree: {error}") from error


def _build(node: Node, leaves: Sequence[object], unknown: Unknown, depth: int) -> object:
    if isinstance(node, int):
        return leaves[node]
    if isinstance(node, NoneNode):
        return None
    children = [_build(child, leaves, unknown, depth + 1) for child in node.children]
    if isinstance(node, CustomNode):
        return unknown(node, children, depth)
    if isinstance(node, RegisteredNode):
        cls = node_named(node.name)
        return unknown(node, children, depth) if cls is None else _made(cls, node, children)
    if isinstance(node, DictNode):
        items = zip(map(from_json, node.keys), children, strict=True)
        return OrderedDict(items) if node.ordered else dict(items)
    if isinstance(node, NamedTupleNode):
        return _namedtuple(node.name, node.fields)(*children)
    return tuple(children) if isinstance(node, TupleNode) else children


def _made(cls: NodeClass, node: RegisteredNode, children: list[object]) -> object:
    data = from_json(node.data)
    try:
        return cls.make(cls.from_data(data), children)
    except Exception as error:
        raise UndecodableLeaf(
            f"no {cls.cls.__qualname__} can be made, registered as {node.name!r}: {error!r}"
        ) from error


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Callable[..., object]:
    return namedtuple(name, fields)  # noqa: PYI024  # the class is known at run time only
