"""The cache of plans."""

from __future__ import annotations

from ckptmgr.pipeline.cache import Cache


class Key:
    """Counts how often it is hashed."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.value == self.value


def test_a_key_is_hashed_once_and_finds_its_value() -> None:
    """Hit or miss."""
    cache: Cache[str] = Cache(size=2)
    keys = [Key(1), Key(1)]
    for key in keys:
        slot = cache.slot(iter([key]).__next__)
        slot.value = slot.value or "one"
    assert [key.hashed for key in keys] == [1, 1]
    assert (cache.slot(lambda: Key(1)).value, len(cache)) == ("one", 1)


def test_keys_of_one_hash_are_not_taken_for_each_other() -> None:
    """The newer takes the place of the older."""
    cache: Cache[str] = Cache(size=2)
    cache.slot(lambda: Key(1)).value = "one"
    assert cache.slot(lambda: Key(2)).value is None


def test_only_the_last_few_are_kept() -> None:
    """The oldest goes first."""
    cache: Cache[int] = Cache(size=2)
    for number in range(3):
        cache.slot(iter([number]).__next__).value = number
    assert (len(cache), cache.slot(lambda: 2).value, cache.slot(lambda: 0).value) == (2, 2, None)


def test_a_key_that_cannot_be_compared_is_not_kept() -> None:
    """Its value is made anew each time."""
    cache: Cache[int] = Cache(size=2)
    for _ in range(2):
        slot = cache.slot(list)  # type: ignore[arg-type]  # not hashable
        assert slot.value is None
        slot.value = 1
    assert len(cache) == 0
