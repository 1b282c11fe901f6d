"""PerProcess: a value that each process has for itself, such as its place in the data.

It is a node to jax, and its only key is the number of the process: the key paths below
it differ between processes, and so do its leaves on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import jax
from jax.tree_util import DictKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processes:
    """Which process this is, of how many."""

    index: int = 0
    count: int = 1


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, slots=True)
class PerProcess(Generic[T]):
    """A part of a tree that each process saves, and gets back, by itself.

        manager.save(step, {"params": params, "data": PerProcess(iterator.position)})

    `value` is any tree of what can be saved but arrays that lie on several processes. It
    comes back in a run of as many processes as it was saved from; in another `select=` must
    leave it out.
    """

    value: T

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[DictKey, T]], None]:
        """For jax: the value, under the number of this process."""
        return ((DictKey(jax.process_index()), self.value),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Iterable[T]) -> PerProcess[T]:
        """For jax: around another value."""
        (value,) = children
        return cls(value)
