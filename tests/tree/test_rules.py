"""What is said of leaves by path."""

from __future__ import annotations

import pytest

from ckptmgr import TreeMismatch
from ckptmgr.tree.rules import by_globs, by_prefix, prefixes
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
    said = prefixes({"params": {"a": 1}, "opt": Pair(2, None)})
    assert said == {"params/a": 1, "opt/left": 2, "opt/right": None}
    found, unused = by_prefix(said, PATHS)
    assert found == ["params/a", "params/a", None, None, None, None]
    assert unused == {"opt/left", "opt/right"}
    assert by_prefix(prefixes(7), PATHS) == ([""] * 6, set())
