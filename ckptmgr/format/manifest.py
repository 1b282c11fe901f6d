"""The commit record (`checkpoint.json`) and the manifest (`tree.json`) of format 1.

The record is small: listing steps reads nothing else. It names the digest of the
manifest, which holds the tree's structure and, for each leaf, where its bytes lie and
their digests. Both are bounded before they are parsed, parsed into the types below,
where an unknown field is an error, and checked against themselves before any of
their numbers is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from ckptmgr.format import zarr
from ckptmgr.format.scalar import JSON
from ckptmgr.format.zarr import RAW, Codec, Shape

FORMAT: Final = 1
ALIGNMENT: Final = 64  # bytes; what jax takes over without a copy on CPU


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What may hold no field that we do not know.

    Never part of a cycle, so the garbage collector need not look at it: of thousands of leaves
    it looked at all that jax keeps, several times.
    """


class Grid(Strict, frozen=True):
    """An array of its own directory: the shape of its chunks, and their digests in C order.

    A digest is that of the chunk's items, whatever `codec` then does to them. `metadata` is
    that of the array's zarr.json.
    """

    chunk: Shape
    digests: tuple[str, ...]
    codec: Codec = RAW
    metadata: str = ""


class PackedBox(Strict, frozen=True):
    """The bytes of a small array: `offset` bytes into the pack that process `pack` wrote.

    `box` is the part of the array that they are, from where to where on each axis, in an
    array that no process held whole; None: all of it.
    """

    pack: int
    offset: int
    digest: str
    box: tuple[tuple[int, int], ...] | None = None


class ShardingEntry(Strict, frozen=True):
    """How a jax.Array was laid out: axis names and sizes, never device ids.

    `axes` and `spec` are empty for an array on a single device.
    """

    axes: tuple[tuple[str, int], ...] = ()
    axis_types: tuple[str, ...] = ()
    spec: tuple[str | tuple[str, ...] | None, ...] = ()
    memory_kind: str | None = None


class ArrayEntry(Strict, frozen=True):
    """An array of a leaf. One that holds no element lies nowhere: neither grid nor packed."""

    dtype: str
    shape: Shape
    name: str = ""
    sharding: ShardingEntry | None = None
    grid: Grid | None = None
    packed: tuple[PackedBox, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * int(zarr.DTYPES[self.dtype].itemsize)

    def nbytes_of(self, box: PackedBox) -> int:
        """The size of a part of it."""
        if box.box is None:
            return self.nbytes
        items = math.prod(stop - start for start, stop in box.box)
        return items * int(zarr.DTYPES[self.dtype].itemsize)


class LeafEntry(Strict, frozen=True):
    """A leaf: its key path, the handler that stored it, that handler's JSON and arrays."""

    path: str
    handler: str
    value: JSON = None
    arrays: tuple[ArrayEntry, ...] = ()


class Pack(Strict, frozen=True):
    """The small arrays of one process end to end; none crosses a multiple of `chunk` bytes.

    `metadata` is the digest of its zarr.json.
    """

    process: int
    nbytes: int
    chunk: int
    metadata: str = ""


class Note(Strict, frozen=True):
    """What `annotate` says of a step later: metrics and metadata, at a time."""

    time: float
    metrics: dict[str, JSON] = {}
    metadata: dict[str, JSON] = {}


class NoneNode(Strict, frozen=True, tag="none", tag_field="kind"):
    """None, which is a node without children to jax."""


class DictNode(Strict, frozen=True, tag="dict", tag_field="kind"):
    """A dict; `ordered` for an OrderedDict."""

    keys: tuple[JSON, ...]
    children: tuple[Node, ...]
    ordered: bool = False


class ListNode(Strict, frozen=True, tag="list", tag_field="kind"):
    """A list."""

    children: tuple[Node, ...]


class TupleNode(Strict, frozen=True, tag="tuple", tag_field="kind"):
    """A tuple."""

    children: tuple[Node, ...]


class NamedTupleNode(Strict, frozen=True, tag="namedtuple", tag_field="kind"):
    """A namedtuple."""

    name: str
    fields: tuple[str, ...]
    children: tuple[Node, ...]


class CustomNode(Strict, frozen=True, tag="custom", tag_field="kind"):
    """A node of a class that only jax knows: comes back through `like` alone."""

    name: str
    children: tuple[Node, ...]


class RegisteredNode(Strict, frozen=True, tag="registered", tag_field="kind"):
    """A node of a registered class: the name it was registered with, and its aux data."""

    name: str
    data: JSON
    children: tuple[Node, ...]


class PerProcessNode(Strict, frozen=True, tag="per_process", tag_field="kind"):
    """What each process had for itself, in the order of the processes."""

    children: tuple[Node, ...]


# An int stands for a leaf: its place in `Manifest.leaves`.
Node: TypeAlias = (
    int
    | NoneNode
    | DictNode
    | ListNode
    | TupleNode
    | NamedTupleNode
    | CustomNode
    | RegisteredNode
    | PerProcessNode
)


class Manifest(Strict, frozen=True):
    """The whole of a saved tree but its bytes.

    `group` is the digest of arrays/zarr.json, where there are arrays of their own. Digests of
    metadata are empty in checkpoints written before there were any.
    """

    format: int
    structure: Node
    leaves: tuple[LeafEntry, ...]
    packs: tuple[Pack, ...] = ()
    group: str = ""


class CommitRecord(Strict, frozen=True):
    """What a step is known by without opening its manifest."""

    format: int
    step: int | None
    time: float
    nbytes: int
    leaves: int
    manifest_nbytes: int
    manifest_digest: str
    nonce: str
    writer: dict[str, str]
    metrics: dict[str, JSON] = {}
    metadata: dict[str, JSON] = {}


def leaf_indices(node: Node) -> list[int]:
    """The leaves under a node, in the order of its children."""
    found: list[int] = []
    stack: list[Node] = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, int):
            found.append(here)
        elif not isinstance(here, NoneNode):
            stack.extend(reversed(here.children))
    return found


def per_process(node: Node) -> list[PerProcessNode]:
    """The nodes that hold what each process had for itself, in order; none holds another."""
    if isinstance(node, PerProcessNode):
        return [node]
    if isinstance(node, int | NoneNode):
        return []
    return [found for child in node.children for found in per_process(child)]


def renumbered(node: Node, number: Callable[[int], int]) -> Node:
    """The structure with other numbers for its leaves."""
    if isinstance(node, int):
        return number(node)
    if isinstance(node, NoneNode):
        return node
    children = tuple(renumbered(child, number) for child in node.children)
    return msgspec.structs.replace(node, children=children)
