"""What is said of leaves by path."""

from __future__ import annotations

import pytest

from ckptmgr import InvalidOption, TreeMismatch
from ckptmgr.tree.globs import by_globs
from ckptmgr.tree.rules import by_prefix, prefixes
from tests.trees import Pair

PATHS = ["params/a/kernel", "params/a/bias", "params/b", "paramsx", "opt/mu/a/kernel", "x[0]"]


@pytest.mark.parametrize(
    ("glob", "places"),
    [
        ("params", [0, 1, 2]),
        ("params/*", [0, 1, 2]),
        ("params*", [0, 1, 2, 3]),
        ("*/kernel", [0, 4]),
        ("params/a/kernel", [0]),
        ("*", [0, 1, 2, 3, 4, 5]),
        ("*/a/*", [0, 1, 4]),
        ("opt/?u", [4]),
        ("x[[]0]", [5]),
        ("[po]*s/b", [2]),
    ],
)
def test_a_glob_takes_what_it_matches_and_all_below(glob: str, places: list[int]) -> None:
    """A star crosses slashes; a prefix ends at one."""
    found = by_globs([(glob, "yes")], PATHS, "option")
    assert [n for n, value in enumerate(found) if value] == places


def test_the_first_glob_that_matches_wins() -> None:
    """Though a later one matches too."""
    found = by_globs([("params/a", 1), ("params", 2), ("*", 3)], PATHS, "option")
    assert found == [1, 1, 2, 3, 3, 3]


def test_a_glob_that_matches_nothing_is_an_error_that_suggests() -> None:
    """It is a typing mistake."""
    with pytest.raises(TreeMismatch, match=r"option: 'param/b' matches no leaf.*'params/b'"):
        by_globs([("*", 1), ("param/b", 2)], PATHS, "option")
    with pytest.raises(TreeMismatch, match="there are none"):
        by_globs([("a", 1)], [], "option")


def test_a_prefix_tree_speaks_of_subtrees_by_their_keys() -> None:
    """A namedtuple like a dict of equal keys; None is a value."""
    said = prefixes({"params": {"a": 1}, "opt": Pair(2, None)}, "option")
    assert said == {"params/a": 1, "opt/left": 2, "opt/right": None}
    found, unused = by_prefix(said, PATHS, "unsaid")
    assert found == [1, 1, *["unsaid"] * 4]
    assert unused == {"opt/left", "opt/right"}
    assert by_prefix(prefixes(7, "option"), PATHS, 0) == ([7] * 6, set())


def test_the_key_that_is_empty_is_not_the_whole_tree() -> None:
    """Though both paths are written the same."""
    assert by_prefix(prefixes({"": 1}, "option"), ["", "/x", "a", "a/"], 0) == ([1, 1, 0, 0], set())


def test_a_tree_that_jax_cannot_flatten_is_an_invalid_option() -> None:
    """With its name."""
    with pytest.raises(InvalidOption, match="select: jax cannot"):
        prefixes({1: True, "a": False}, "select")
