"""Structures as data, and key paths."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict

import msgspec
import pytest

import tests.classes  # noqa: F401  # it registers some
from ckptmgr import DamagedStep, UnsupportedLeaf, key_paths
from ckptmgr.format import manifest
from ckptmgr.tree import structure
from tests.trees import Pair, assert_same


def described(tree: object) -> manifest.Node:
    """Its structure, through real JSON."""
    data = msgspec.json.encode(structure.describe(tree, structure.flatten(tree)[1]))
    node: manifest.Node = msgspec.json.decode(data, type=manifest.Node)
    return node


def built(node: manifest.Node, leaves: list[object]) -> object:
    """The tree of a structure, with a mark where a class does not come back."""
    return structure.build(node, leaves, lambda node, children, path: (node.name, children, path))


TREES = [
    {"a": 1},
    [1],
    (1, 2),
    Pair(1, [2]),
    OrderedDict(z=1, a=2),
    7,
    {},
    [],
    (),
    None,
    {"a": None, "b": [None, ()]},
    {1: "a", 2: {True: "b"}, 3: {(1, "x"): "c"}},
    {"a.b": 1, "a": {"b": 2}},
    {"A": 1, "a": 2, "..": 3, "": 4, "\0": 5, "x" * 300: 6, "a/b": 7},
    [{"b": (1, {"c": [2, None]})}],
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_structure_comes_back_through_real_json(tree: object) -> None:
    """Containers, key types and key order."""
    assert_same(built(described(tree), structure.flatten(tree)[0]), tree)


def test_key_paths_read_as_the_keys() -> None:
    """Fields of a namedtuple by name, places in a list by number."""
    tree = {"params": [{"k": 1}, 2], "opt": Pair(3, 4)}
    assert key_paths(tree) == ["opt/left", "opt/right", "params/0/k", "params/1"]


def test_keys_of_two_kinds_that_have_no_order_are_refused() -> None:
    """The error of jax says why."""
    with pytest.raises(UnsupportedLeaf, match="comparable"):
        structure.flatten({1: 0, "a": 0})


def test_a_key_that_would_come_back_as_something_else_is_refused() -> None:
    """An enum member, say."""
    color = enum.Enum("color", ["red"])
    with pytest.raises(UnsupportedLeaf, match="dict key is not supported"):
        described({color.red: 1})


def test_a_class_that_only_jax_knows_is_named_with_its_place() -> None:
    """Whoever builds the tree decides what becomes of it."""
    node = described([0, {"d": defaultdict(int, a=1)}])
    assert [stranger.name for stranger in structure.strangers(node)] == ["collections.defaultdict"]
    assert built(node, [7, 8]) == [7, {"d": ("collections.defaultdict", [8], (1, "d"))}]


@pytest.mark.parametrize("depth", [900, 5000])
def test_a_tree_nested_too_deep_is_refused(depth: int) -> None:
    """Rather than ending in a RecursionError, of ours or of jax."""
    tree: object = 1
    for _ in range(depth):
        tree = [tree]
    with pytest.raises(UnsupportedLeaf, match=r"too deep|recursion"):
        described(tree)


@pytest.mark.parametrize(
    "node",
    [
        manifest.DictNode((1, True), (0, 1)),
        manifest.DictNode(("a", "a"), (0, 1)),
        manifest.DictNode(({"float": "00"},), (0,)),
        manifest.DictNode(({"tuple": [{"list": []}]},), (0,)),
        manifest.DictNode(("a",), (0, 1)),
        manifest.NamedTupleNode("N", ("a", "class"), (0, 1)),
        manifest.NamedTupleNode("N", ("__class__", "b"), (0, 1)),
        manifest.NamedTupleNode("no name", ("a", "b"), (0, 1)),
        manifest.RegisteredNode("tests.layer", {"float": "00"}, (0, 1)),
    ],
    ids=str,
)
def test_what_describes_no_tree_is_damage(node: manifest.Node) -> None:
    """A hostile manifest gets one error."""
    with pytest.raises(DamagedStep, match="describes no tree"):
        built(node, [1, 2])
