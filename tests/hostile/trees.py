"""Hostile trees: structures that are none, classes of other people, values of other handlers."""

from __future__ import annotations

import json

from tests.hostile.forging import Json, Spoil, also, forged, leaf

# A class or a handler that is not registered is no damage: whoever has it may read the step.
_UNKNOWN = ("load", "restore")
_STEP = "step-00000002"


def nested(levels: int) -> Spoil:
    """Lists in lists."""

    def change(manifest: Json) -> None:
        for _ in range(levels):
            manifest["structure"] = {"kind": "list", "children": [manifest["structure"]]}

    return forged(change)


def structured(node: Json) -> Spoil:
    """Another structure."""
    return forged(lambda manifest: manifest.update(structure=node))


def in_place_of_n(node: Json) -> Spoil:
    """A node around the leaf n, which has the path that jax would give it there."""

    def change(manifest: Json) -> None:
        keys, children = (manifest["structure"][name] for name in ("keys", "children"))
        number = children[keys.index("n")]
        children[keys.index("n")] = json.loads(json.dumps(node).replace('"LEAF"', str(number)))
        if node["kind"] in ("custom", "registered"):
            leaf(manifest, "n")["path"] = "n/0"

    return forged(change)


def valued(path: str, fields: Json) -> Spoil:
    """Another value or handler of a leaf."""
    return forged(lambda manifest: leaf(manifest, path).update(fields))


also("structure_of_300_levels", nested(300))
also("structure_of_450_levels", nested(450))
for _name, _node in {
    "nothing": {"kind": "none"},
    "leaf_out_of_range": {"kind": "list", "children": [999]},
    "leaf_negative": {"kind": "list", "children": [-1]},
    "leaves_twice": {"kind": "list", "children": [0, 0]},
    "unknown_kind": {"kind": "pickle", "children": []},
    "a_path": "../../x",
}.items():
    also(f"structure_{_name}", structured(_node))

_FIELDS = [f"f{number}" for number in range(100_000)]
_LEAF = {"children": ["LEAF"]}
for _name, _node in {
    "namedtuple_of_keywords": {"kind": "namedtuple", "name": "A", "fields": ["class"], **_LEAF},
    "namedtuple_of_code": {"kind": "namedtuple", "name": "A):0#", "fields": ["n"], **_LEAF},
    "namedtuple_of_many": {"kind": "namedtuple", "name": "A", "fields": _FIELDS, **_LEAF},
    "dict_of_more_keys": {"kind": "dict", "keys": ["a", "b"], **_LEAF},
    "dict_of_unhashable": {"kind": "dict", "keys": [{"list": []}], **_LEAF},
    "dict_of_nothing": {"kind": "dict", "keys": [{"what": 1}], **_LEAF},
    "dict_of_digits": {"kind": "dict", "keys": [{"int": "0x" + "f" * 5_000_000}], **_LEAF},
    "code": {"kind": "custom", "name": "os.system", "code": "import os", **_LEAF},
}.items():
    also(f"node_{_name}", in_place_of_n(_node))
for _name, _node in {
    "importable": {"kind": "custom", "name": "os.system", **_LEAF},
    "registered": {"kind": "registered", "name": "os.system", "data": None, **_LEAF},
}.items():
    also(f"node_{_name}", in_place_of_n(_node), "n/0", _STEP, _UNKNOWN)
also("node_of_another_path", structured({"kind": "custom", "name": "A", "children": [0]}))

_DEEP: Json = 1
for _ in range(400):
    _DEEP = {"list": [_DEEP]}
for _name, _value in {
    "no_int": {"int": "zz"},
    "no_float": {"float": "00"},
    "no_hex": {"bytes": "xyz"},
    "no_text": {"str": "ff"},
    "two_kinds": {"int": "0x1", "float": "00"},
    "bare_list": [1],
    "deep": _DEEP,
}.items():
    also(f"value_{_name}", valued("n", {"value": _value}), "n")
for _name, _path, _fields in (
    ("unknown", "n", {"handler": "pickle"}),
    ("of_arrays", "n", {"handler": "jax.Array"}),
    ("of_keys", "s", {"handler": "jax.random.key", "value": "os.system"}),
    ("of_objects", "s", {"handler": "numpy.bits", "value": {"list": ["O", 63, False]}}),
    (
        "of_records",
        "s",
        {"handler": "numpy.bits", "value": {"tuple": ["i4,(9999999,)i8", 63, True]}},
    ),
    ("of_text", "n", {"handler": "python", "value": {"bytes": "00"}}),
):
    also(f"handler_{_name}", valued(_path, _fields), _path, f"tree.json|{_STEP}", _UNKNOWN)
