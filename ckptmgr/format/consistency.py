"""What is impossible about a commit record, a note or a manifest, whoever wrote it. Pure.

Digests prove that a file is the one that was written, not that an honest hand wrote it:
every number is checked against the others, in integers that cannot overflow, before
anything is allocated, opened or repeated by it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ckptmgr.format import keypath, zarr
from ckptmgr.format.bounds import (
    LARGEST_CHUNK,
    LATEST_TIME,
    MOST_AXES,
    MOST_CELLS,
    MOST_CHUNKS_INSIDE,
    MOST_CLASSES,
    MOST_FIELDS,
    MOST_LEVELS,
    largest_chunk,
)
from ckptmgr.format.manifest import (
    ArrayEntry,
    CommitRecord,
    CustomNode,
    DictNode,
    Grid,
    LeafEntry,
    ListNode,
    Manifest,
    NamedTupleNode,
    Node,
    NoneNode,
    Note,
    Pack,
    PackedBox,
    PerProcessNode,
    RegisteredNode,
    ShardingEntry,
    TupleNode,
    leaf_indices,
    per_process,
)
from ckptmgr.format.scalar import JSON, from_json
from ckptmgr.format.step import LARGEST_STEP
from ckptmgr.format.zarr import Shape

_AXIS_TYPES = frozenset({"Auto", "Explicit", "Manual"})  # jax's
_MOST_BYTES = 2**63  # what numpy and jax can count


_KEYED = DictNode | ListNode | TupleNode | NamedTupleNode
_OfForm: TypeAlias = "Callable[[str, Shape, ShardingEntry | None], str | None]"


class Fault(NamedTuple):
    """What is impossible, and about which leaf."""

    what: str
    leaf: str | None = None


def of_record(record: CommitRecord) -> Fault | None:
    """What is impossible about a commit record."""
    counts = (record.nbytes, record.leaves, record.manifest_nbytes)
    if record.step is not None and not 0 <= record.step <= LARGEST_STEP:
        return Fault("an impossible step")
    if not all(0 <= count < _MOST_BYTES for count in counts):
        return Fault("an impossible size")
    return of_note(record)


def of_note(note: Note | CommitRecord) -> Fault | None:
    """What is impossible about a note."""
    if not 0 <= note.time <= LATEST_TIME:
        return Fault("an impossible time")
    for name, value in note.metrics.items():
        try:
            metric(value)
        except (ValueError, OverflowError, RecursionError):
            return Fault(f"the metric {name!r} is no number")
    return None


def metric(value: JSON) -> float:
    """A metric as it is stored, for people.

    Raises:
      ValueError, OverflowError: it is no number.
    """
    number = from_json(value)
    if not isinstance(number, int | float):
        raise ValueError(f"a metric is a number, not {number!r}")  # noqa: TRY004  # it is data
    return float(number)


def of_manifest(manifest: Manifest) -> Fault | None:
    """What is impossible about a manifest."""
    fault = _of_packs(manifest.packs) or of_structure(manifest.structure)
    if fault:
        return fault
    if sorted(leaf_indices(manifest.structure)) != list(range(len(manifest.leaves))):
        return Fault("the structure does not name each leaf once")
    packs = {pack.process: pack for pack in manifest.packs}
    if len({leaf.path for leaf in manifest.leaves}) != len(manifest.leaves):
        return Fault("two leaves have the same path")
    form = functools.cache(_of_form)  # most of thousands of leaves are of a few
    for leaf in manifest.leaves:
        what = _of_leaf(leaf, packs, form)
        if what:
            return Fault(what, leaf.path)
    return _of_places(manifest) or _of_paths(manifest)


def _of_packs(packs: Sequence[Pack]) -> Fault | None:
    if len({pack.process for pack in packs}) != len(packs):
        return Fault("two packs of one process")
    for pack in packs:
        sound = pack.process >= 0 and 1 <= pack.chunk <= LARGEST_CHUNK
        if not (sound and 0 <= pack.nbytes <= MOST_CELLS * pack.chunk):
            return Fault("a pack has an impossible size")
    return None


def of_structure(structure: Node) -> Fault | None:
    """What is impossible about a structure, or could not be made again."""
    if _levels(structure) > MOST_LEVELS:
        return Fault(f"it is nested deeper than {MOST_LEVELS} levels")
    if any(per_process(child) for node in per_process(structure) for child in node.children):
        return Fault("what one process has for itself lies in another such")
    classes = set()
    for node in _nodes(structure):
        if isinstance(node, DictNode) and len(node.keys) != len(node.children):
            return Fault("a dict has other keys than children")
        if isinstance(node, NamedTupleNode):
            classes.add((node.name, node.fields))
            if len(node.fields) != len(node.children) or len(node.fields) > MOST_FIELDS:
                return Fault(f"a namedtuple has other fields than children, or over {MOST_FIELDS}")
    if len(classes) > MOST_CLASSES:
        return Fault(f"it has more than {MOST_CLASSES} classes of namedtuples")
    return None


def _children(node: Node) -> Sequence[Node]:
    # The first by far the most often, and quicker to tell than a union of types.
    if isinstance(node, int) or isinstance(node, NoneNode):  # noqa: SIM101
        return ()
    return node.children


def _nodes(structure: Node) -> Iterator[Node]:
    stack = [structure]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(_children(node))


def _levels(structure: Node) -> int:
    """How deep it is; no deeper than needs to be known."""
    level: list[Node] = [structure]
    for depth in range(MOST_LEVELS + 1):
        level = [child for node in level for child in _children(node)]
        if not level:
            return depth
    return MOST_LEVELS + 1


def _of_leaf(leaf: LeafEntry, packs: dict[int, Pack], form: _OfForm) -> str | None:
    try:
        from_json(leaf.value)
    except (ValueError, TypeError, RecursionError) as error:
        return f"an impossible value: {error}"
    if len(leaf.arrays) > 1 and len({array.name for array in leaf.arrays}) != len(leaf.arrays):
        return "two of its arrays have the same name"
    for array in leaf.arrays:
        what = _of_array(array, packs, form)
        if what:
            return what
    return None


def _of_form(dtype: str, shape: Shape, sharding: ShardingEntry | None) -> str | None:
    """What is impossible about an array, wherever it lies."""
    if dtype not in zarr.DTYPES:
        return f"unknown dtype {dtype!r}"
    if sharding and _is_impossible(sharding, len(shape)):
        return "an impossible sharding"
    # Axes without items do not make the others harmless: numpy and jax multiply them all.
    if len(shape) > MOST_AXES or not all(n >= 0 for n in shape):
        return "an impossible shape"
    if math.prod(max(n, 1) for n in shape) * zarr.DTYPES[dtype].itemsize >= _MOST_BYTES:
        return "an impossible shape"
    return None


def _of_array(array: ArrayEntry, packs: dict[int, Pack], form: _OfForm) -> str | None:
    what = form(array.dtype, array.shape, array.sharding)
    if what:
        return what
    if (array.grid is not None) + bool(array.packed) != (array.nbytes > 0):
        return "its bytes must lie in exactly one place"
    if array.grid:
        return _of_grid(array.shape, array.grid, zarr.DTYPES[array.dtype].itemsize)
    if array.packed and not _tiled(array.shape, [box.box for box in array.packed]):
        return "its boxes do not make it up"
    for box in array.packed:
        what = _of_box(array, box, packs)
        if what:
            return what
    return None


def _is_impossible(sharding: ShardingEntry, rank: int) -> bool:
    """Whether no mesh has such axes, or they do not have what is divided."""
    names = [name for name, _ in sharding.axes]
    used = [
        axis for axes in sharding.spec for axis in ([axes] if isinstance(axes, str) else axes or ())
    ]
    return (
        not all(1 <= size < _MOST_BYTES for _, size in sharding.axes)
        or len(set(names)) != len(names)
        or len(set(used)) != len(used)
        or not set(used) <= set(names)
        or len(sharding.spec) > rank
        or len(sharding.axis_types) != len(names)
        or not _AXIS_TYPES.issuperset(sharding.axis_types)
    )


def _of_box(array: ArrayEntry, box: PackedBox, packs: dict[int, Pack]) -> str | None:
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
        if not box or len(box) != len(shape):  # an array without axes has no parts
            return False
        for (start, stop), (low, high), n in zip(box, first, shape, strict=True):
            edge = high - low
            if edge < 1 or stop - start != edge or start % edge or not 0 <= start <= n - edge:
                return False
        cells.add(box)
    whole = math.prod(n // (high - low) for n, (low, high) in zip(shape, first, strict=True))
    exact = all(n % (high - low) == 0 for n, (low, high) in zip(shape, first, strict=True))
    return exact and len(cells) == len(boxes) == whole


def _of_grid(shape: Shape, grid: Grid, itemsize: int) -> str | None:
    chunk = grid.chunk
    if len(chunk) != len(shape) or any(
        not 1 <= edge <= max(n, 1) for edge, n in zip(chunk, shape, strict=True)
    ):
        return "its chunks do not fit its shape"
    codec = grid.codec
    most = largest_chunk(zipped=codec.zstd is not None, inside=codec.read_chunk is not None)
    if math.prod(chunk) * itemsize > most:
        return "its chunks are too large"
    if len(grid.digests) != zarr.cells(shape, chunk):
        return "its digests do not match its chunks"
    if codec.zstd is not None and codec.zstd not in zarr.ZSTD_LEVELS:
        return "an impossible level of zstd"
    inside = codec.read_chunk or chunk
    if len(inside) != len(chunk) or any(
        edge < 1 or whole % edge for edge, whole in zip(inside, chunk, strict=True)
    ):
        return "the chunks inside do not divide its chunks"
    if zarr.cells(chunk, inside) > MOST_CHUNKS_INSIDE:
        return "too many chunks inside its chunks"
    return None


def _of_places(manifest: Manifest) -> Fault | None:
    """Two arrays in one place."""
    directories: set[str] = set()
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for leaf in manifest.leaves:
        for array in leaf.arrays:
            if array.grid:
                directory = keypath.directory(leaf.path, array.name)
                if directory in directories:
                    return Fault("two arrays share a directory", leaf.path)
                directories.add(directory)
            for box in array.packed:
                span = (box.offset, box.offset + array.nbytes_of(box), leaf.path)
                spans[box.pack].append(span)
    for found in spans.values():
        found.sort()
        for (_, stop, _), (start, _, path) in itertools.pairwise(found):
            if start < stop:
                return Fault("it overlaps another in its pack", path)
    return None


def _of_paths(manifest: Manifest) -> Fault | None:
    """A leaf whose path is not that of its place in the structure.

    Which keys lead on from a node of a class is for that class to say.
    """
    stack: list[tuple[Node, tuple[object, ...]]] = [(manifest.structure, ())]
    while stack:
        node, path = stack.pop()
        try:
            here = keypath.join(path)
            keys = () if isinstance(node, int) or not isinstance(node, _KEYED) else keys_of(node)
        except (ValueError, RecursionError) as error:
            return Fault(f"an impossible key: {error}")
        if isinstance(node, int):
            if manifest.leaves[node].path != here:
                return Fault(f"it lies at {here!r} in the structure", manifest.leaves[node].path)
        elif isinstance(node, CustomNode | RegisteredNode | PerProcessNode):
            prefix = keypath.split(here) if path else []
            longer = len(prefix) + (not isinstance(node, PerProcessNode))
            for number in leaf_indices(node):
                keys_there = keypath.split(manifest.leaves[number].path)
                if len(keys_there) < longer or keys_there[: len(prefix)] != prefix:
                    what = f"it lies below {here!r} in the structure"
                    return Fault(what, manifest.leaves[number].path)
        elif isinstance(node, _KEYED):
            stack += [(child, (*path, key)) for key, child in zip(keys, node.children, strict=True)]
    return None


def keys_of(node: DictNode | ListNode | TupleNode | NamedTupleNode) -> Sequence[object]:
    """The keys that lead to the children of a node.

    Raises:
      ValueError: those of a dict are no values.
    """
    if isinstance(node, DictNode):
        return [from_json(key) for key in node.keys]
    return node.fields if isinstance(node, NamedTupleNode) else range(len(node.children))
