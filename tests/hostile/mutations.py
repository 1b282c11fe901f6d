"""Mutations of honest bytes: of the bytes themselves, and of the JSON that they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.hostile.forging import Json, compact

ODD: Sequence[Json] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        63,
        64,
        4096,
        2**31,
        2**53,
        2**62,
        2**63 - 1,
        2**63,
        -(2**63),
    ),
    *(0.0, 1.5, -1e300, 1e308, "", "a", "w", "../../x", "a/b", "~", "\0", "\u202e", "int", "0x0"),
    *("float32", "uint8", "object", "int4", "00" * 16, "none", "dict", "list", "namedtuple"),
    *("custom", "registered", "per_process", "jax.Array", "numpy.bits", "jax.random.key", "python"),
    *([], {}, [0], [[0, 1]], [2**40, 2**40], {"int": "0x1"}, {"float": "7ff8000000000000"}),
    *({"tuple": [1, {"list": []}]}, {"dict": [[1, 2], [1, 3]]}, {"kind": "none"}, {"a": 0}),
    *({"kind": "list", "children": [0]}, {"kind": "dict", "keys": ["a"], "children": [0]}),
    {"kind": "registered", "name": "flax.FrozenDict", "data": None, "children": [0]},
    {"kind": "namedtuple", "name": "_", "fields": ["a"], "children": [0]},
    {"chunk": [1], "digests": ["00"], "codec": {"zstd": 3, "read_chunk": [1]}},
    {"pack": 0, "offset": 0, "digest": "00", "box": [[0, 1]]},
    {"axes": [["x", 8]], "axis_types": ["Auto"], "spec": ["x"], "memory_kind": "pinned_host"},
)


class Mutation(NamedTuple):
    """What is done, where as a share of the whole, and with what."""

    kind: str
    at: int
    other: int
    odd: Json


_SCALE = 1 << 16
_NUMBER = st.integers(0, _SCALE - 1)
_TREE_KINDS = ("replace", "delete", "repeat", "swap", "rename", "wrap")
_BYTE_KINDS = ("flip", "insert", "cut", "splice", "digits")


Mutate = Callable[[bytes], Iterator[bytes]]


def _mutations(kinds: Sequence[str]) -> st.SearchStrategy[list[Mutation]]:
    """A few of them, one on top of the other: to draw one takes longer than to try it."""
    one = st.builds(Mutation, st.sampled_from(kinds), _NUMBER, _NUMBER, st.sampled_from(ODD))
    return st.lists(one, min_size=1, max_size=8)


def _mutated_json(data: bytes, changes: Sequence[Mutation]) -> Iterator[bytes]:
    """JSON of which ever more values are others."""
    document = [json.loads(data)]
    for change in changes:
        places = _places(document)
        parent, key = places[change.at * len(places) // _SCALE]
        there, key_there = places[change.other * len(places) // _SCALE]
        _change(parent, key, there, key_there, change)
        yield compact(document[0]) if document else b""


def _places(document: Json) -> list[tuple[Any, Any]]:
    """Every value, by the container and the key that lead to it."""
    found, stack = [], [document]
    while stack:
        here = stack.pop()
        for key in list(here) if isinstance(here, dict) else range(len(here)):
            found.append((here, key))
            if isinstance(here[key], list | dict):
                stack.append(here[key])
    return found or [([None], 0)]


def _change(parent: Json, key: Json, there: Json, key_there: Json, change: Mutation) -> None:
    value = parent[key]
    if change.kind == "replace":
        parent[key] = json.loads(json.dumps(change.odd))
    elif change.kind == "delete":
        del parent[key]
    elif change.kind == "repeat" and isinstance(parent, list):
        parent.append(json.loads(json.dumps(value)))
    elif change.kind == "rename" and isinstance(parent, dict):
        parent[str(change.odd)] = parent.pop(key)
    elif change.kind == "wrap":
        parent[key] = [value]
    else:
        parent[key] = json.loads(json.dumps(there[key_there]))


def _mutated_bytes(data: bytes, changes: Sequence[Mutation]) -> Iterator[bytes]:
    """Bytes of which ever more are others."""
    for change in changes:
        at, other = (n * (len(data) + 1) // _SCALE for n in (change.at, change.other))
        if change.kind == "flip":
            flipped = bytes([data[at] ^ 1 << change.other % 8]) if at < len(data) else b"\xff"
            data = data[:at] + flipped + data[at + 1 :]
        elif change.kind == "insert":
            data = data[:at] + compact(change.odd) + data[at:]
        elif change.kind == "cut":
            data = data[: min(at, other)] + data[max(at, other) :]
        elif change.kind == "splice":
            data = data[:at] + data[other : other + 64] + data[at:]
        else:
            data = data[:at] + b"9" * (change.other % 64) + data[at:]
        yield data


OF_TREES: st.SearchStrategy[Mutate] = _mutations(_TREE_KINDS).map(
    lambda changes: lambda data: _mutated_json(data, changes)
)
OF_BYTES: st.SearchStrategy[Mutate] = _mutations(_BYTE_KINDS).map(
    lambda changes: lambda data: _mutated_bytes(data, changes)
)
