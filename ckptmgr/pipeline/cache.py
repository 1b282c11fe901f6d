"""The last few values, by keys as long as a tree has leaves: each is hashed once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Slot(Generic[T]):
    """A place for a value, and what the value was made for."""

    key: Hashable
    value: T | None = None


class Cache(Generic[T]):
    """Keeps the values of the last `size` keys that were new."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._slots: OrderedDict[int, Slot[T]] = OrderedDict()

    def slot(self, make: Callable[[], Hashable]) -> Slot[T]:
        """The place of a key; one that is not kept where the key cannot be compared."""
        try:
            key = make()
            code = hash(key)
            found = self._slots.get(code)
            if found is not None and found.key == key:
                return found
        except Exception:  # noqa: BLE001  # of the __eq__, __hash__ or __repr__ of a user's aux data
            return Slot(None)
        slot = self._slots[code] = Slot(key)
        if len(self._slots) > self._size:
            self._slots.popitem(last=False)
        return slot

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._slots)
