"""The structure of a tree as data, and back; and the key paths of its leaves.

dict, OrderedDict, list, tuple, namedtuple and None come back as they are, dict keys
with their types. A namedtuple class comes back as one of equal name and fields:
nothing is ever imported by a name read from a file. Any other class that jax can
flatten is stored by its key paths and comes back through `like` alone.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ckptmgr.errors import DamagedStep, TreeMismatch, UnsupportedLeaf
from ckptmgr.format import keypath
from ckptmgr.format.manifest import (
    CustomNode,
    DictNode,
    ListNode,
    NamedTupleNode,
    Node,
    NoneNode,
    TupleNode,
)
from ckptmgr.format.scalar import from_json, to_json


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


def describe(treedef: PyTreeDef) -> Node:
    """The structure as data; leaf i of jax's order is the int i.

    Raises:
      UnsupportedLeaf: a dict key has no exact JSON, or the tree is nested too deep.
    """
    numbers = iter(range(treedef.num_leaves))
    try:
        return _describe(treedef, lambda: next(numbers))
    except RecursionError as error:
        raise UnsupportedLeaf("the tree is nested too deep to be stored") from error


def _describe(treedef: PyTreeDef, number: Callable[[], int]) -> Node:
    data = treedef.node_data()
    if data is None:
        return number()
    kind, aux = data
    if kind is type(None):
        return NoneNode()
    children = tuple(_describe(child, number) for child in treedef.children())
    if kind is dict or kind is OrderedDict:
        try:
            keys = tuple(to_json(key) for key in aux)
        except TypeError as error:
            raise UnsupportedLeaf(
                f"a dict key is not supported: {error}; keys may be str, bytes, numbers, "
                f"None and tuples of them (the keys here: {list(aux)[:8]!r})"
            ) from error
        return DictNode(keys, children, ordered=kind is OrderedDict)
    if kind is list:
        return ListNode(children)
    if kind is tuple:
        return TupleNode(children)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return NamedTupleNode(kind.__name__, kind._fields, children)
    return CustomNode(f"{kind.__module__}.{kind.__qualname__}", children)


def build(node: Node, leaves: Sequence[object]) -> object:
    """The tree that `describe` was given, around other leaves.

    Raises:
      TreeMismatch: it holds a class that comes back through `like` alone.
      DamagedStep: it describes no tree.
    """
    try:
        return _build(node, leaves)
    except TreeMismatch:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedStep(f"the manifest describes no tree: {error}") from error


def _build(node: Node, leaves: Sequence[object]) -> object:
    if isinstance(node, int):
        return leaves[node]
    if isinstance(node, NoneNode):
        return None
    if isinstance(node, CustomNode):
        raise TreeMismatch(
            f"the tree holds a {node.name}, a class that only jax can flatten: give a tree of "
            "the same structure as like="
        )
    children = [_build(child, leaves) for child in node.children]
    if isinstance(node, DictNode):
        items = zip(map(from_json, node.keys), children, strict=True)
        return OrderedDict(items) if node.ordered else dict(items)
    if isinstance(node, NamedTupleNode):
        return _namedtuple(node.name, node.fields)(*children)
    return tuple(children) if isinstance(node, TupleNode) else children


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Callable[..., object]:
    return namedtuple(name, fields)  # noqa: PYI024  # the class is known at run time only
