"""Structures as data, and key paths."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict

import msgspec
import pytest

from ckptmgr import TreeMismatch, UnsupportedLeaf, key_paths
from ckptmgr.format import manifest
from ckptmgr.tree import structure
from tests.trees import Pair, assert_same

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
    leaves, treedef = structure.flatten(tree)
    data = msgspec.json.encode(structure.describe(treedef))
    assert_same(structure.build(msgspec.json.decode(data, type=manifest.Node), leaves), tree)


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
        structure.describe(structure.flatten({color.red: 1})[1])


def test_a_class_that_only_jax_knows_is_named_where_like_is_missing() -> None:
    """And both ways out."""
    node = structure.describe(structure.flatten(defaultdict(int, a=1))[1])
    with pytest.raises(TreeMismatch, match=r"defaultdict.*like="):
        structure.build(node, [1])


@pytest.mark.parametrize("depth", [900, 5000])
def test_a_tree_nested_too_deep_is_refused(depth: int) -> None:
    """Rather than ending in a RecursionError, of ours or of jax."""
    tree: object = 1
    for _ in range(depth):
        tree = [tree]
    with pytest.raises(UnsupportedLeaf, match=r"too deep|recursion"):
        structure.describe(structure.flatten(tree)[1])
