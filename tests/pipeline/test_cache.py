"""The cache of plans."""

from __future__ import annotations

import numpy as np

from ckptmgr.pipeline.cache import Cache


def test_a_key_that_comes_again_finds_its_value() -> None:
    """Equal is enough; another one has a place of its own."""
    cache: Cache[str] = Cache(size=2)
    cache.slot(lambda: ("a", [1])).value = "one"
    cache.slot(lambda: ("b", [1])).value = "other"
    assert cache.slot(lambda: ("a", [1])).value == "one"
    assert cache.slot(lambda: ("b", [1])).value == "other"
    assert (cache.slot(lambda: ("a", [2])).value, len(cache)) == (None, 2)


def test_only_the_last_few_are_kept() -> None:
    """The oldest goes first."""
    cache: Cache[int] = Cache(size=2)
    for number in range(3):
        cache.slot(iter([number]).__next__).value = number
    assert (len(cache), cache.slot(lambda: 2).value, cache.slot(lambda: 0).value) == (2, 2, None)


def test_a_key_that_cannot_be_compared_is_not_kept() -> None:
    """Its value is made anew each time."""
    cache: Cache[int] = Cache(size=2)
    cache.slot(lambda: np.zeros(2)).value = 1
    assert cache.slot(lambda: np.zeros(2)).value is None
    assert len(cache) == 1
