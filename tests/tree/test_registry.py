"""The registry: which handler takes a leaf, by class and predicate, in an order that was said."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import ckptmgr
from ckptmgr import CheckpointManager, Encoded, Handler, InvalidOption, TreeMismatch
from ckptmgr.tree.handlers import Array
from ckptmgr.tree.registry import Registry
from tests.classes import Words
from tests.trees import assert_same


class PathHandler(Handler):
    """Takes a class and its subclasses."""

    name = "path"
    types: tuple[type, ...] | None = (pathlib.PurePath,)

    def encode(self, leaf: pathlib.PurePath) -> Encoded:
        """Its text."""
        return Encoded(str(leaf))

    def decode(self, value: str, arrays: Mapping[str, Array]) -> object:
        """Of its text."""
        return pathlib.PurePosixPath(value)


class Pure(PathHandler):
    """Takes what the one above takes, too."""

    name = "pure"
    types = (pathlib.PurePosixPath,)


class Sparse(Handler):
    """Takes by a predicate what the built-in handler takes, and says so."""

    name = "sparse"
    types = (np.ndarray,)
    overrides: str | None = "numpy.ndarray"

    def handles(self, leaf: Any) -> bool:
        """Mostly zeros."""
        return bool(leaf.ndim == 1 and np.count_nonzero(leaf) < leaf.size / 2)

    def encode(self, leaf: np.ndarray) -> Encoded:
        """What is not zero, and where."""
        (places,) = np.nonzero(leaf)
        return Encoded(leaf.size, {"": leaf[places], "places": places})

    def decode(self, value: int, arrays: Mapping[str, Array]) -> object:
        """Filled up with zeros."""
        full = np.zeros(value, arrays[""].dtype)
        full[np.asarray(arrays["places"])] = arrays[""]
        return full


class Silent(Sparse):
    """The same without saying so."""

    name = "silent"
    overrides = None


class Everything(PathHandler):
    """Takes any class."""

    name = "everything"
    types = None

    def handles(self, leaf: object) -> bool:
        """All of them."""
        return True


def named(registry: Registry, leaf: object) -> str:
    """The name of a leaf's handler."""
    handler = registry.find(leaf)
    assert handler is not None
    return handler.name


POSIX = pathlib.PurePosixPath("/a")


def test_the_first_of_the_callers_handlers_that_matches_wins() -> None:
    """By class, subclasses included."""
    assert named(Registry([PathHandler(), Pure()]), POSIX) == "path"
    assert named(Registry([Pure(), PathHandler()]), POSIX) == "pure"
    assert named(Registry([Pure(), PathHandler()]), pathlib.PureWindowsPath("a")) == "path"


def test_a_predicate_decides_leaf_by_leaf() -> None:
    """Though the class is the same."""
    registry = Registry([Sparse()])
    for _ in range(2):
        assert named(registry, np.zeros(9)) == "sparse"
        assert named(registry, np.ones(9)) == "numpy.ndarray"


def test_built_in_handlers_go_first_unless_one_overrides() -> None:
    """And a leaf that both would take is an error, not a silent choice."""
    assert named(Registry([Everything()]), 1) == "python"
    assert named(Registry([Everything()]), object()) == "everything"
    with CheckpointManager("m", storage=ckptmgr.MemoryStorage(), handlers=[Silent()]) as manager:
        manager.save(0, {"x": np.ones(9)}).result()
        with pytest.raises(
            InvalidOption, match=r"'numpy.ndarray' and 'silent'.*overrides"
        ) as caught:
            manager.save(1, {"x": [np.zeros(9)]})
        assert caught.value.leaf == "x/0"


def test_handlers_save_and_load(tmp_path: Path) -> None:
    """With several arrays, with none, among others; what they are not given for is an error."""
    tree = {"p": POSIX, "s": np.eye(1, 50)[0], "d": np.arange(3), "n": 1}
    handlers = [PathHandler(), Sparse()]
    ckptmgr.save(tmp_path / "tree", tree, handlers=handlers)
    assert_same(ckptmgr.load(tmp_path / "tree", handlers=handlers), tree)
    assert_same(ckptmgr.load(tmp_path / "tree", like=tree, handlers=handlers), tree)
    with pytest.raises(TreeMismatch, match=r"(?s)'p': no handler is named 'path'.*'s'.*'sparse'"):
        ckptmgr.load(tmp_path / "tree")
    assert ckptmgr.load(tmp_path / "tree", select="n")["n"] == 1
    shown = ckptmgr.load_structure(tmp_path / "tree")
    assert shown["p"] == ckptmgr.Stored("path")
    assert_same(ckptmgr.load(tmp_path / "tree", like=shown, handlers=handlers), tree)


def test_plans_see_the_arrays_of_a_handler(tmp_path: Path) -> None:
    """Two leaves of one class whose arrays differ are planned apart."""
    with CheckpointManager(tmp_path / "run", handlers=[Sparse()]) as manager:
        for step, size in enumerate((10, 20, 10)):
            tree = [np.eye(1, size, step)[0]]
            manager.save(step, tree).result()
            assert_same(manager.restore(), tree)


class Nameless(PathHandler):
    """Has an impossible name."""

    name = ""


class Taken(PathHandler):
    """Has the name of a built-in one."""

    name = "python"


class Odd(PathHandler):
    """Overrides what there is not."""

    name = "odd"
    overrides = "numpy"


@pytest.mark.parametrize(
    ("handlers", "why"),
    [
        ([PathHandler(), PathHandler()], "two handlers are named 'path'"),
        ([Taken()], "'python'"),
        ([Nameless()], "not empty"),
        ([Odd()], "numpy.ndarray"),
        ([PathHandler], "no ckptmgr.Handler"),
        (["path"], "no ckptmgr.Handler"),
    ],
)
def test_handlers_that_cannot_stand_side_by_side_are_refused(
    tmp_path: Path, handlers: list[Any], why: str
) -> None:
    """When the manager opens."""
    with pytest.raises(InvalidOption, match=why):
        CheckpointManager(tmp_path / "run", handlers=handlers)


class Loud(PathHandler):
    """Raises where it is asked."""

    name = "loud"
    types = None

    def handles(self, leaf: Any) -> bool:
        """Only of what has a shape."""
        return bool(leaf.shape == ())


class Keys(PathHandler):
    """Gives arrays that are none of numbers."""

    name = "keys"

    def encode(self, leaf: object) -> Encoded:
        """Keys."""
        return Encoded(None, {"": jax.random.key(0)})


class Numbered(PathHandler):
    """Gives arrays whose names are no text."""

    name = "numbered"
    array: Any = 3

    def encode(self, leaf: object) -> Encoded:
        """An array."""
        return Encoded(None, {self.array: np.ones(3)})


class Surrogate(Numbered):
    """Or no Unicode."""

    name = "surrogate"
    array = "\ud800"


class Lists(PathHandler):
    """Gives lists for arrays."""

    name = "lists"

    def encode(self, leaf: object) -> Encoded:
        """A list."""
        return Encoded(None, {"": [1, 2]})  # type: ignore[dict-item]  # that is the point


@pytest.mark.parametrize("handler", [Loud(), Keys(), Numbered(), Surrogate(), Lists()])
def test_what_a_handler_does_wrong_is_an_error_with_the_leafs_path(
    tmp_path: Path, handler: Handler
) -> None:
    """Before anything is written."""
    with pytest.raises(ckptmgr.UnsupportedLeaf) as caught:
        ckptmgr.save(tmp_path / "tree", {"a": [POSIX]}, handlers=[handler])
    assert caught.value.leaf == "a/0"
    assert list(tmp_path.iterdir()) == []


@dataclass
class Unhashable(PathHandler):
    """As a plain dataclass is."""

    name: str = "unhashable"


def test_a_handler_need_not_be_hashable(tmp_path: Path) -> None:
    """A dataclass is not."""
    ckptmgr.save(tmp_path / "tree", [POSIX], handlers=[Unhashable()])
    assert ckptmgr.load(tmp_path / "tree", handlers=[Unhashable()]) == [POSIX]


class Greedy(Everything):
    """Overrides one, and takes what others take."""

    name = "greedy"
    overrides = "bytes"


class Better(PathHandler):
    """Overrides a registered class."""

    name = "better"
    types = (Words,)
    overrides = "tests.words"


def test_overriding_one_handler_is_not_overriding_all(tmp_path: Path) -> None:
    """And a registered class may be overridden too."""
    with pytest.raises(InvalidOption, match="'greedy' and 'python'"):
        ckptmgr.save(tmp_path / "tree", [1], handlers=[Greedy()])
    ckptmgr.save(tmp_path / "tree", [Words("/x")], handlers=[Better()])
    found = ckptmgr.load(tmp_path / "tree", handlers=[Better()])
    assert found == [pathlib.PurePosixPath("Words(text='/x')")]
