"""Orbax, as 0.5 to 0.12 write it: trees, items of a step, and runs of steps.

A tree is a directory with `_METADATA`, which names every leaf, and the arrays as Zarr 2
or 3, in files or in an OCDBT database; before that a msgpack file `checkpoint`, which may
point to arrays beside it. An item may be a tree, JSON, an array or a PRNG key; a step is
a directory of items; a run one of steps, of which those that are not committed count for
nothing. Its arrays hold no digests, so a flipped bit cannot be found; a missing chunk is.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ckptmgr.errors import DamagedStep, NoSuchStep, UnsupportedFormat
from ckptmgr.format.manifest import ShardingEntry
from ckptmgr.interop.base import (
    JAX,
    NO_JSON,
    NUMPY,
    Foreign,
    Leaf,
    foreign,
    nested,
    read_json,
)
from ckptmgr.interop.flax_msgpack import leaves_of
from ckptmgr.interop.recognise import (
    ORBAX_AGGREGATED,
    ORBAX_ITEM,
    ORBAX_TREE,
    is_orbax_tree,
    orbax_number,
    orbax_steps,
)
from ckptmgr.interop.tensorstores import Arrays

NAME: Final = "orbax"
_TEMPORARY: Final = ".orbax-checkpoint-tmp"
_SEQUENCE: Final = 1  # of the kinds of keys
_PLACEHOLDER: Final = "PLACEHOLDER://"
_EMPTY: Final[dict[str, object]] = {
    "None": None,
    "Dict": {},
    "List": [],
    "Tuple": (),
    "NamedTuple": {},
}


class _Key(msgspec.Struct):
    key: str
    key_type: int = 0


class _Value(msgspec.Struct):
    value_type: str
    skip_deserialize: bool = False


class _Leaf(msgspec.Struct):
    key_metadata: list[_Key]
    value_metadata: _Value


class _Tree(msgspec.Struct):
    """`_METADATA`."""

    tree_metadata: dict[str, _Leaf]
    use_ocdbt: bool = True
    use_zarr3: bool = False


class _Item(msgspec.Struct):
    """`_CHECKPOINT_METADATA`, as far as it is of use."""

    item_handlers: dict[str, Any] | str | None = None
    metrics: dict[str, Any] | None = None
    custom_metadata: dict[str, Any] | None = None


def open_at(path: str, step: int | None = None) -> Foreign:
    """Open a tree, a step, or a run at a step or its newest.

    Raises:
      NoSuchStep: the run has no such step, or no committed one.
      DamagedStep, UnsupportedFormat: what is there cannot be read.
    """
    if is_orbax_tree(path) or os.path.exists(f"{path}/{ORBAX_ITEM}"):
        own = orbax_number(os.path.basename(path.rstrip("/")))
        if step not in (None, own):
            raise NoSuchStep("this is one checkpoint of Orbax, and not of this step", step=step)
        return _step(path, own)
    there = orbax_steps(path)
    chosen = max(there, default=None) if step is None else step
    if chosen is None or chosen not in there:
        raise NoSuchStep(f"of this run of Orbax there are the steps {list(there)}", step=step)
    return _step(there[chosen], chosen)


def _step(path: str, step: int | None) -> Foreign:
    """A step: a tree, what its one unnamed item holds, or a dict of its items."""
    if is_orbax_tree(path):
        return foreign(NAME, path, _tree(path), step)
    said = (
        _json(f"{path}/{ORBAX_ITEM}", _Item) if os.path.exists(f"{path}/{ORBAX_ITEM}") else _Item()
    )
    items = {
        name: f"{path}/{name}"
        for name in sorted(os.listdir(path))
        if os.path.isdir(f"{path}/{name}") and not (name.startswith(".") or _TEMPORARY in name)
    }
    handlers = said.item_handlers if isinstance(said.item_handlers, dict) else {}
    lost = sorted(handlers.keys() - items.keys())
    if lost:
        raise DamagedStep(f"items of it are missing: {lost}", file=path)
    metrics = items.pop("metrics", None)
    trees = {name: _item(place, str(handlers.get(name, ""))) for name, place in items.items()}
    tree = trees["default"] if set(trees) == {"default"} else trees
    opened = foreign(NAME, path, tree, step)
    values = dict(said.metrics or {})
    if metrics and os.path.exists(f"{metrics}/metrics"):
        values |= _json(f"{metrics}/metrics", dict[str, Any])
    numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float)}
    return Foreign(
        NAME, path, opened.manifest, opened.sources, step, numbers, said.custom_metadata or {}
    )


def _item(path: str, handler: str) -> object:
    """The tree of one item."""
    if os.path.isdir(f"{path}/jax_random_key"):
        return _key(path)
    if os.path.exists(f"{path}/{ORBAX_TREE}"):
        tree = _tree(path)
        if isinstance(tree, dict) and "ArrayCheckpointHandler" in handler:
            return tree.get("checkpoint", tree)
        return tree
    if os.path.isfile(f"{path}/{ORBAX_AGGREGATED}"):
        return _tree(path)
    files = [name for name in os.listdir(path) if name != "commit_success.txt"]
    if files == ["metadata"]:
        return plain(_json(f"{path}/metadata", object))
    raise UnsupportedFormat(
        f"this item of a step of Orbax is none that is known ({handler or 'of no known handler'})",
        file=path,
    )


def _key(path: str) -> Leaf:
    """A PRNG key of jax."""
    said = _json(f"{path}/jax_random_key_metadata/metadata", dict[str, Any])
    tree = _tree(f"{path}/jax_random_key")
    leaf = tree["checkpoint"] if isinstance(tree, dict) else tree
    assert isinstance(leaf, Leaf)
    if not said.get("typed", False):
        return leaf
    impl = said.get("impl", "threefry2x32")
    return Leaf(leaf.source, impl, "jax.random.key", leaf.sharding)


def plain(value: object) -> object:
    """JSON as a tree of leaves."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if value is None else Leaf(value=value)


def _tree(path: str) -> object:
    if not os.path.exists(f"{path}/{ORBAX_TREE}"):
        return _aggregated(path)
    said = _json(f"{path}/{ORBAX_TREE}", _Tree)
    ocdbt = said.use_ocdbt and os.path.exists(f"{path}/manifest.ocdbt")
    arrays = Arrays(path, zarr3=said.use_zarr3, ocdbt=ocdbt)
    texts, keys_of = _strings(path), _random_keys(path)
    shardings = _shardings(path)
    entries = list(said.tree_metadata.values())
    stored = [e for e in entries if _is_stored(e)]
    opened = iter(arrays.open_all([_param(entry) for entry in stored]))
    flat: list[tuple[list[tuple[object, bool]], object]] = []
    for entry in entries:
        keys: list[tuple[object, bool]] = [
            (key.key, key.key_type == _SEQUENCE) for key in entry.key_metadata
        ]
        kind, name = entry.value_metadata.value_type, _param(entry)
        if kind in _EMPTY:
            flat.append((keys, _EMPTY[kind]))
        elif kind == "string":
            if name not in texts:
                raise DamagedStep("its text is missing", leaf=name, file=f"{path}/_strings.json")
            flat.append((keys, Leaf(value=texts[name])))
        else:
            leaf = _leaf(kind, next(opened), shardings.get(name))
            if name in keys_of:
                leaf = Leaf(leaf.source, keys_of[name], "jax.random.key", leaf.sharding)
            flat.append((keys, leaf))
    return nested(flat) if flat else {}


def _is_stored(entry: _Leaf) -> bool:
    kind = entry.value_metadata.value_type
    return kind not in _EMPTY and kind != "string"


def _param(entry: _Leaf) -> str:
    return ".".join(key.key for key in entry.key_metadata)


def _leaf(kind: str, source: Any, sharding: ShardingEntry | None) -> Leaf:
    if kind == "scalar":
        return Leaf(value=source.read(()).item())
    if kind == "np.ndarray":
        return Leaf(source, handler=NUMPY)
    return Leaf(source, handler=JAX, sharding=sharding or ShardingEntry())


def _aggregated(path: str) -> object:
    """A tree of before `_METADATA`: msgpack, whose arrays may lie beside it as Zarr 2."""
    tree = leaves_of(f"{path}/{ORBAX_AGGREGATED}")
    arrays = Arrays(path, zarr3=False, ocdbt=os.path.exists(f"{path}/manifest.ocdbt"))

    def resolved(node: object) -> object:
        match node:
            case dict():
                return {key: resolved(child) for key, child in node.items()}
            case list() | tuple():
                return type(node)(resolved(child) for child in node)
            case Leaf(value=str(text)) if text.startswith(_PLACEHOLDER):
                source = arrays.open(text.removeprefix(_PLACEHOLDER))
                return Leaf(source, handler=JAX, sharding=ShardingEntry())
        return node

    return resolved(tree)


class _Array(msgspec.Struct):
    param_name: str
    ext_metadata: dict[str, Any] | None = None


class _One(msgspec.Struct):
    array_metadata: _Array


class _Arrays(msgspec.Struct):
    """What each process has said of its arrays."""

    array_metadatas: list[_One]


def _random_keys(path: str) -> dict[str, str]:
    """The arrays that are the bits of PRNG keys, with their implementations."""
    folder, found = f"{path}/array_metadatas", {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        for one in _json(f"{folder}/{name}", _Arrays).array_metadatas:
            impl = (one.array_metadata.ext_metadata or {}).get("random_key_impl")
            if isinstance(impl, str):
                found[one.array_metadata.param_name] = impl
    return found


def _strings(path: str) -> Mapping[str, str]:
    file = f"{path}/_strings.json"
    return _json(file, dict[str, str]) if os.path.exists(file) else {}


def _shardings(path: str) -> dict[str, ShardingEntry]:
    """What is said of the devices of arrays; what cannot be said by axes is left out."""
    file = f"{path}/_sharding"
    said = _json(file, dict[str, str]) if os.path.exists(file) else {}
    found = {}
    for name, text in said.items():
        try:
            entry = msgspec.json.decode(text, type=_Sharding)
            if entry.sharding_type == "NamedSharding":
                found[base64.b64decode(name).decode()] = _entry(entry)
        except (*NO_JSON, ValueError) as error:
            raise DamagedStep(f"this is no sharding of Orbax: {error}", file=file) from error
    return found


class _Sharding(msgspec.Struct):
    """What is said of one array."""

    sharding_type: str
    shape: list[int] = []
    axis_names: list[str] = []
    axis_types: list[str] | None = None
    partition_spec: list[str | list[str] | None] = []


def _entry(said: _Sharding) -> ShardingEntry:
    return ShardingEntry(
        axes=tuple(zip(said.axis_names, said.shape, strict=True)),
        axis_types=tuple(kind.rpartition(".")[2] for kind in said.axis_types or ()),
        spec=tuple(tuple(a) if isinstance(a, list) else a for a in said.partition_spec),
    )


def _json(file: str, kind: Any) -> Any:
    return read_json(file, kind, "metadata of Orbax")
