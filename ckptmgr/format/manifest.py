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
from typing import Final, TypeAlias, TypeVar

import msgspec

from ckptmgr.errors import DamagedStep, UnsupportedFormat
from ckptmgr.format import keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.scalar import JSON
from ckptmgr.format.zarr import RAW, Codec, Shape

FORMAT: Final = 1
_MOST_AXES: Final = 64  # numpy's limits
_LONGEST_AXIS: Final = 2**63
ALIGNMENT: Final = 64  # bytes; what jax takes over without a copy on CPU
LARGEST_RECORD: Final = 16 << 20
LARGEST_MANIFEST: Final = 1 << 30


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Grid(_Strict, frozen=True):
    """An array of its own directory: the shape of its chunks, and their digests in C order.

    A digest is that of the chunk's items, whatever `codec` then does to them.
    """

    chunk: Shape
    digests: tuple[str, ...]
    codec: Codec = RAW


class PackedBox(_Strict, frozen=True):
    """The bytes of a small array: `offset` bytes into the pack that process `pack` wrote.

    `box` is the part of the array that they are, from where to where on each axis, in an
    array that no process held whole; None: all of it.
    """

    pack: int
    offset: int
    digest: str
    box: tuple[tuple[int, int], ...] | None = None


class ShardingEntry(_Strict, frozen=True):
    """How a jax.Array was laid out: axis names and sizes, never device ids.

    `axes` and `spec` are empty for an array on a single device.
    """

    axes: tuple[tuple[str, int], ...] = ()
    axis_types: tuple[str, ...] = ()
    spec: tuple[str | tuple[str, ...] | None, ...] = ()
    memory_kind: str | None = None


class ArrayEntry(_Strict, frozen=True):
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


class LeafEntry(_Strict, frozen=True):
    """A leaf: its key path, the handler that stored it, that handler's JSON and arrays."""

    path: str
    handler: str
    value: JSON = None
    arrays: tuple[ArrayEntry, ...] = ()


class Pack(_Strict, frozen=True):
    """The small arrays of one process end to end; none crosses a multiple of `chunk` bytes."""

    process: int
    nbytes: int
    chunk: int


class NoneNode(_Strict, frozen=True, tag="none", tag_field="kind"):
    """None, which is a node without children to jax."""


class DictNode(_Strict, frozen=True, tag="dict", tag_field="kind"):
    """A dict; `ordered` for an OrderedDict."""

    keys: tuple[JSON, ...]
    children: tuple[Node, ...]
    ordered: bool = False


class ListNode(_Strict, frozen=True, tag="list", tag_field="kind"):
    """A list."""

    children: tuple[Node, ...]


class TupleNode(_Strict, frozen=True, tag="tuple", tag_field="kind"):
    """A tuple."""

    children: tuple[Node, ...]


class NamedTupleNode(_Strict, frozen=True, tag="namedtuple", tag_field="kind"):
    """A namedtuple."""

    name: str
    fields: tuple[str, ...]
    children: tuple[Node, ...]


class CustomNode(_Strict, frozen=True, tag="custom", tag_field="kind"):
    """A node of a class that only jax knows: comes back through `like` alone."""

    name: str
    children: tuple[Node, ...]


class RegisteredNode(_Strict, frozen=True, tag="registered", tag_field="kind"):
    """A node of a registered class: the name it was registered with, and its aux data."""

    name: str
    data: JSON
    children: tuple[Node, ...]


class PerProcessNode(_Strict, frozen=True, tag="per_process", tag_field="kind"):
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


class Manifest(_Strict, frozen=True):
    """The whole of a saved tree but its bytes."""

    format: int
    structure: Node
    leaves: tuple[LeafEntry, ...]
    packs: tuple[Pack, ...] = ()


class CommitRecord(_Strict, frozen=True):
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


class _Envelope(_Strict, frozen=True):
    digest: str
    record: msgspec.Raw


class _AnyFormat(msgspec.Struct):
    format: int


_T = TypeVar("_T")


def encode_record(record: CommitRecord) -> bytes:
    """The bytes of checkpoint.json: the record and the digest of its own bytes."""
    raw = msgspec.json.encode(record)
    return msgspec.json.encode(_Envelope(digest(raw), msgspec.Raw(raw))) + b"\n"


def decode_record(data: bytes, file: str) -> CommitRecord:
    """The record in the bytes of a checkpoint.json.

    Raises:
      DamagedStep: it is no valid record.
      UnsupportedFormat: it is one of a newer format.
    """
    envelope = _parse(data, _Envelope, file)
    if digest(bytes(envelope.record)) != envelope.digest:
        raise DamagedStep("the commit record differs from its own digest", file=file)
    return _versioned(bytes(envelope.record), CommitRecord, file)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of tree.json."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, record: CommitRecord, file: str) -> Manifest:
    """The manifest in the bytes of a tree.json, checked against its record and itself.

    Raises:
      DamagedStep: it is not the one that was committed, or contradicts itself.
      UnsupportedFormat: it is one of a newer format.
    """
    if len(data) != record.manifest_nbytes or digest(data) != record.manifest_digest:
        raise DamagedStep("the manifest is not the one that was committed", file=file)
    manifest = _versioned(data, Manifest, file)
    fault = _contradiction(manifest)
    if fault:
        raise DamagedStep(f"the manifest contradicts itself: {fault}", file=file)
    return manifest


def _versioned(data: bytes, kind: type[_T], file: str) -> _T:
    """Parse what has a format number; a number of another format explains why it does not parse."""
    try:
        parsed = _parse(data, kind, file)
        found = getattr(parsed, "format", None)
    except DamagedStep:
        found = _parse(data, _AnyFormat, file).format
        if found == FORMAT:
            raise
    if found != FORMAT:
        raise UnsupportedFormat(
            f"format {found} is not known to this version, which reads format {FORMAT}; "
            "update ckptmgr",
            file=file,
        )
    return parsed


def _parse(data: bytes, kind: type[_T], file: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStep(f"not valid: {error}", file=file) from error


def _contradiction(manifest: Manifest) -> str | None:
    """What is impossible about a manifest; None where it is consistent."""
    packs = {pack.process: pack for pack in manifest.packs}
    if len(packs) != len(manifest.packs):
        return "two packs of one process"
    if any(pack.chunk < 1 or pack.nbytes < 0 for pack in manifest.packs):
        return "a pack has an impossible size"
    if len({leaf.path for leaf in manifest.leaves}) != len(manifest.leaves):
        return "two leaves have the same path"
    directories = set()
    for leaf in manifest.leaves:
        for array in leaf.arrays:
            fault = _impossible(array, packs)
            if fault:
                return f"leaf {leaf.path!r}: {fault}"
            if array.grid:
                directories.add(keypath.directory(leaf.path, array.name))
    own = sum(array.grid is not None for leaf in manifest.leaves for array in leaf.arrays)
    if len(directories) != own:
        return "two arrays share a directory"
    if sorted(leaf_indices(manifest.structure)) != list(range(len(manifest.leaves))):
        return "the structure does not name each leaf once"
    return None


def _impossible(array: ArrayEntry, packs: dict[int, Pack]) -> str | None:
    if array.dtype not in zarr.DTYPES:
        return f"unknown dtype {array.dtype!r}"
    if len(array.shape) > _MOST_AXES or not all(0 <= n < _LONGEST_AXIS for n in array.shape):
        return "an impossible shape"
    if (array.grid is not None) + bool(array.packed) != (array.nbytes > 0):
        return "its bytes must lie in exactly one place"
    fault = _impossible_grid(array.shape, array.grid) if array.grid else None
    if fault or not array.packed:
        return fault
    if not _tiled(array.shape, [box.box for box in array.packed]):
        return "its boxes do not make it up"
    for box in array.packed:
        pack, nbytes = packs.get(box.pack), array.nbytes_of(box)
        if pack is None or box.offset < 0 or box.offset + nbytes > pack.nbytes:
            return "it lies outside its pack"
        if box.offset % pack.chunk + nbytes > pack.chunk:
            return "it crosses the chunks of its pack"
    return None


def _tiled(shape: Shape, boxes: list[tuple[tuple[int, int], ...] | None]) -> bool:
    """Whether boxes make up the whole of a shape, and none of it twice.

    They are all of one extent, the shards of an array: different cells of one grid, as many
    as it has.
    """
    if boxes == [None]:
        return True
    cells, first = set(), boxes[0] or ()
    for box in boxes:
        if box is None or len(box) != len(shape):
            return False
        for (start, stop), (low, high), n in zip(box, first, shape, strict=True):
            edge = high - low
            if edge < 1 or stop - start != edge or start % edge or not 0 <= start <= n - edge:
                return False
        cells.add(box)
    whole = math.prod(n // (high - low) for n, (low, high) in zip(shape, first, strict=True))
    exact = all(n % (high - low) == 0 for n, (low, high) in zip(shape, first, strict=True))
    return exact and len(cells) == len(boxes) == whole


def _impossible_grid(shape: Shape, grid: Grid) -> str | None:
    chunk = grid.chunk
    if len(chunk) != len(shape) or any(
        not 1 <= edge <= max(n, 1) for edge, n in zip(chunk, shape, strict=True)
    ):
        return "its chunks do not fit its shape"
    if len(grid.digests) != zarr.cells(shape, chunk):
        return "its digests do not match its chunks"
    if grid.codec.zstd is not None and grid.codec.zstd not in zarr.ZSTD_LEVELS:
        return "an impossible level of zstd"
    inside = grid.codec.read_chunk or chunk
    if len(inside) != len(chunk) or any(
        edge < 1 or whole % edge for edge, whole in zip(inside, chunk, strict=True)
    ):
        return "the chunks inside do not divide its chunks"
    return None


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
