"""The last few values, by keys as long as a tree has leaves.

A key is compared, not hashed: of one that comes again most parts are the same objects,
which Python sees at once, while a hash has to ask each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Slot(Generic[T]):
    """A place for a value, and what the value was made for."""

    key: object
    value: T | None = None


class Cache(Generic[T]):
    """Keeps the values of the last `size` keys that were new."""

    def __init__(self, size: int) -> None:
        self._slots: deque[Slot[T]] = deque(maxlen=size)

    def slot(self, make: Callable[[], object]) -> Slot[T]:
        """The place of a key; one that is not kept where the key cannot be compared."""
        try:
            key = make()
            for slot in self._slots:
                if slot.key == key:
                    return slot
        except Exception:  # noqa: BLE001  # of the __eq__ or __repr__ of a user's aux data
            return Slot(None)
        new: Slot[T] = Slot(key)
        self._slots.appendleft(new)
        return new

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._slots)
