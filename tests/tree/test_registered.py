"""Registering classes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from ckptmgr import InvalidOption, UnsupportedLeaf, register_leaf, register_node
from ckptmgr.tree import registered, structure
from tests.classes import Config, Layer, Words


class Fresh:
    """Not registered."""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registered, "_LEAVES", dict(registered._LEAVES))
    monkeypatch.setattr(registered, "_NODES", dict(registered._NODES))


def same(data: Any) -> Any:
    """Encode or decode to itself."""
    return data


def test_registering_returns_the_class_however_it_is_written() -> None:
    """As a call, and as a decorator with and without arguments."""
    assert register_leaf(Fresh, name="a", encode=same, decode=same) is Fresh
    assert register_leaf(name="b", encode=same, decode=same)(type("B", (), {})).__name__ == "B"
    assert register_node(Fresh) is Fresh
    assert register_node(name="d")(type("D", (), {})).__name__ == "D"


def test_the_name_is_that_of_the_class_unless_it_is_given() -> None:
    """Never its module."""
    register_leaf(Fresh, encode=same, decode=same)
    assert registered.leaf_named("Fresh") is not None


@pytest.mark.parametrize(
    ("cls", "name", "why"),
    [
        (Words, "other", "registered already"),
        (Fresh, "tests.words", "named 'tests.words' already"),
        (Fresh, "python", "named 'python' already"),
        (Fresh, "", "not empty"),
        (Fresh, 3, "not empty"),
        (np.ndarray, "x", "built in"),
        (bool, "x", "built in"),
        (dict, "x", "built in"),
        ("Fresh", "x", "a class is registered"),
    ],
)
def test_a_leaf_is_registered_once_under_a_free_name(cls: Any, name: Any, why: str) -> None:
    """Twice is an error, and so is what is built in."""
    with pytest.raises(InvalidOption, match=why):
        register_leaf(cls, name=name, encode=same, decode=same)


@pytest.mark.parametrize(
    ("cls", "name", "why"),
    [
        (Layer, "other", "registered already"),
        (Fresh, "tests.layer", "already"),
        (Fresh, "flax.FrozenDict", "already"),
        (OrderedDict, "x", "stored as it is"),
        (tuple, "x", "stored as it is"),
    ],
)
def test_a_node_is_registered_once_under_a_free_name(cls: Any, name: Any, why: str) -> None:
    """And nothing that needs no registering."""
    with pytest.raises(InvalidOption, match=why):
        register_node(cls, name=name)


def test_aux_data_needs_both_ways() -> None:
    """Or neither."""
    with pytest.raises(InvalidOption, match="go together"):
        register_node(Fresh, to_data=same)


def test_aux_data_that_cannot_be_stored_names_the_node_and_its_class() -> None:
    """And what it could be."""
    tree = {"x": [1, Layer(1, 2, activation=object())]}  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UnsupportedLeaf, match=r"Layer.*to_data") as caught:
        structure.describe(tree, structure.flatten(tree)[1])
    assert caught.value.leaf == "x/1"


def test_a_node_is_made_by_jax_itself() -> None:
    """The one adapter to what jax keeps of a class."""
    nodes: list[tuple[object, object, list[object]]] = [
        (Config("x"), Config("x"), []),
        (Layer(1, [2], "tanh"), ("tanh",), [1, [2]]),
    ]
    for node, aux, children in nodes:
        known = registered.node_of(type(node))
        assert known is not None
        assert known.make(aux, children) == node
