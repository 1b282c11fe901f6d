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
from typing import Any, Final, NamedTuple, Protocol

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ckptmgr.errors import DamagedStep, UndecodableLeaf, UnsupportedLeaf
from ckptmgr.format import consistency, keypath
from ckptmgr.format.manifest import (
    CustomNode,
    DictNode,
    ListNode,
    NamedTupleNode,
    Node,
    NoneNode,
    PerProcessNode,
    RegisteredNode,
    TupleNode,
    per_process,
)
from ckptmgr.format.scalar import JSON, from_json, to_json
from ckptmgr.tree.per_process import PerProcess, Processes
from ckptmgr.tree.registered import NodeClass, node_named, node_of

_ALONE: Final = Processes()


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
    except Exception as error:
        raise _unflattenable(error) from error


def _unflattenable(error: Exception) -> UnsupportedLeaf:
    return UnsupportedLeaf(
        f"jax cannot flatten this tree ({error!r}); the keys of one dict must be comparable"
    )


def key_paths(tree: object) -> list[str]:
    """The key path of each leaf as text, in jax's order: `["params/layer_0/kernel", ...]`.

    A `/` inside a key is written `~1` and a `~` as `~0` (RFC 6901). None is no leaf.

    Raises:
      UnsupportedLeaf: two leaves have the same path, or jax cannot flatten the tree.
    """
    try:
        paths = [path_text(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    except Exception as error:
        raise _unflattenable(error) from error
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
        node = _describe(treedef, lambda: next(numbers))
    except RecursionError as error:
        raise UnsupportedLeaf("the tree is nested too deep to be stored") from error
    except _Unstorable as error:
        raise UnsupportedLeaf(error.message, leaf=locate(tree, error.cls)) from error.__cause__
    fault = consistency.of_structure(node)
    if fault:
        raise UnsupportedLeaf(f"the tree cannot be stored: {fault.what}")
    return node


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
    if kind is PerProcess:
        if per_process(children[0]):
            raise _Unstorable(kind, "a PerProcess lies in another: take one of them away")
        return PerProcessNode(children)
    node = node_of(kind)
    if node is not None:
        return RegisteredNode(node.name, _data(node, aux), children)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return NamedTupleNode(kind.__name__, kind._fields, children)
    return CustomNode(f"{kind.__module__}.{kind.__qualname__}", children)


class Places(NamedTuple):
    """Where the nodes of registered classes are below a node: itself, and in which children."""

    here: bool
    below: tuple[tuple[int, Places], ...]


def places(node: Node) -> Places:
    """Where the nodes of registered classes are."""
    if isinstance(node, int | NoneNode):
        return Places(here=False, below=())
    inside = ((number, places(child)) for number, child in enumerate(node.children))
    below = tuple((number, place) for number, place in inside if place.here or place.below)
    return Places(isinstance(node, RegisteredNode), below)


def aux_of(treedef: PyTreeDef, where: Places) -> tuple[JSON, ...]:
    """The aux data of the nodes at these places, as it is now: an object may have changed.

    Raises:
      UnsupportedLeaf: it cannot be stored.
    """
    found: list[JSON] = []
    data = treedef.node_data()
    node = node_of(data[0]) if where.here and data else None
    if node is not None and data is not None:
        try:
            found.append(_data(node, data[1]))
        except _Unstorable as error:
            raise UnsupportedLeaf(error.message) from error.__cause__
    children = treedef.children() if where.below else []
    for number, place in where.below:
        found += aux_of(children[number], place)
    return tuple(found)


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


class Unknown(Protocol):
    """What takes the place of a node of a class that does not come back by itself."""

    def __call__(
        self, node: CustomNode | RegisteredNode, children: list[object], path: tuple[object, ...]
    ) -> object:
        """The node, its children built, and the keys that lead to it."""


def build(
    node: Node,
    leaves: Sequence[object],
    unknown: Unknown,
    wanted: Callable[[RegisteredNode | PerProcessNode], bool] = lambda _: True,
    processes: Processes = _ALONE,
) -> object:
    """The tree that `describe` was given, around other leaves.

    A node of a registered class, or of one value for each process, is made where it is
    `wanted`, and is None elsewhere. Of the values of as many processes as there are, this
    process gets its own; of others all, as a tuple.

    Raises:
      UndecodableLeaf: registered classes cannot be made of their aux data; lists every node.
      DamagedStep: it describes no tree.
    """
    builder = _Builder(leaves, unknown, wanted, processes)
    try:
        tree = builder.build(node, ())
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedStep(f"the manifest describes no tree: {error}") from error
    if builder.faults:
        first, _, cause = builder.faults[0]
        raise UndecodableLeaf(
            "these nodes cannot be made of what was stored:"
            + "".join(f"\n  {path!r}, {name}: {error!r}" for path, name, error in builder.faults),
            leaf=first,
        ) from cause
    return tree


class _Builder:
    """Builds a tree, and collects what keeps nodes of registered classes from being made."""

    def __init__(
        self,
        leaves: Sequence[object],
        unknown: Unknown,
        wanted: Callable[[RegisteredNode | PerProcessNode], bool],
        processes: Processes,
    ) -> None:
        self._leaves = leaves
        self._unknown = unknown
        self._wanted = wanted
        self._processes = processes
        self.faults: list[tuple[str, str, Exception]] = []

    def build(self, node: Node, path: tuple[object, ...]) -> object:
        """The node and all below it."""
        if isinstance(node, int):
            return self._leaves[node]
        if isinstance(node, NoneNode):
            return None
        keys = _child_keys(node)
        pairs = zip(node.children, keys, strict=True)
        children = [self.build(child, (*path, key)) for child, key in pairs]
        if isinstance(node, DictNode):
            built = dict(zip(keys, children, strict=True))
            if len(built) != len(keys):
                raise ValueError(f"two keys of a dict are the same: {list(keys)[:8]!r}")
            return OrderedDict(built) if node.ordered else built
        if isinstance(node, NamedTupleNode):
            return _namedtuple(node.name, node.fields)(*children)
        if isinstance(node, ListNode | TupleNode):
            return children if isinstance(node, ListNode) else tuple(children)
        if isinstance(node, PerProcessNode):
            return self._own(node, children)
        cls = node_named(node.name) if isinstance(node, RegisteredNode) else None
        if cls is None or isinstance(node, CustomNode):
            return self._unknown(node, children, path)
        return self._made(cls, node, children, path) if self._wanted(node) else None

    def _own(self, node: PerProcessNode, children: list[object]) -> object:
        if not self._wanted(node):
            return None
        if len(children) == self._processes.count:
            return PerProcess(children[self._processes.index])
        return PerProcess(children[0] if len(children) == 1 else tuple(children))

    def _made(
        self, cls: NodeClass, node: RegisteredNode, children: list[object], path: tuple[object, ...]
    ) -> object:
        data = from_json(node.data)
        try:
            return cls.make(cls.from_data(data), children)
        except Exception as error:  # noqa: BLE001  # of the user's class; all are raised together
            name = f"a {cls.cls.__qualname__} registered as {node.name!r}"
            self.faults.append((keypath.join(path), name, error))
            return None


def _child_keys(node: Node) -> Sequence[object]:
    """The keys of a node's children, or their places."""
    if isinstance(node, DictNode | ListNode | TupleNode | NamedTupleNode):
        return consistency.keys_of(node)
    return () if isinstance(node, int | NoneNode) else range(len(node.children))


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Callable[..., object]:
    # Names that are no identifiers come from namedtuple(..., rename=True) themselves.
    cls = namedtuple(name, fields, rename=True)  # type: ignore[misc]  # noqa: PYI024  # the class is known at run time only
    if cls._fields != fields:
        raise ValueError(f"no namedtuple has the fields {fields}")
    return cls
