"""Who is compared: each saves a tree to a fresh directory and restores it, at the same fsync level.

A contender is a context manager over one directory, opened before and closed after the
clock runs, as a trainer opens its checkpointer once.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.array_serialization import pytree_serialization

import ckptmgr
from ckptmgr.pipeline.read import aligned
from ckptmgr.tree.handlers import Array

T = TypeVar("T")


class Contender(ABC):
    """Somebody who saves and restores trees in one directory.

    Attributes:
      donation_safe: whether the tree may be donated while it is being saved.
    """

    name: ClassVar[str]
    donation_safe: ClassVar[bool] = True

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def _place(self, step: int) -> str:
        return f"{self.directory}/{step}"

    @abstractmethod
    def save(self, step: int, tree: object) -> Callable[[], object]:
        """Begin; returns, once the trainer may go on, what blocks until the step is durable."""

    @abstractmethod
    def restore(self, step: int, like: object) -> object:
        """The saved tree, as jax arrays that are ready."""


class Ckptmgr(Contender):
    """This project, digests on."""

    name = "ckptmgr"

    def __enter__(self) -> Self:
        self._manager = ckptmgr.CheckpointManager(self.directory)
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`save`, whose future is the end."""
        return self._manager.save(step, tree).result

    def restore(self, step: int, like: object) -> object:
        """`restore` into the shapes and shardings of the tree."""
        return jax.block_until_ready(self._manager.restore(step, like))

    def borrowed_bytes(self) -> int:
        """The bytes of views that are held now."""
        return self._manager.statistics().borrowed_bytes


class Orbax(Contender):
    """Orbax's CheckpointManager as it comes: asynchronous, OCDBT, zstd."""

    name = "orbax"

    def __enter__(self) -> Self:
        self._manager = ocp.CheckpointManager(self.directory)
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`save` with StandardSave."""
        self._manager.save(step, args=ocp.args.StandardSave(tree))
        return functools.partial(_finish, self._manager)

    def restore(self, step: int, like: object) -> object:
        """`restore` with StandardRestore."""
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return jax.block_until_ready(
            self._manager.restore(step, args=ocp.args.StandardRestore(target))
        )


def _finish(manager: Any) -> object:  # Orbax's, without types
    return manager.wait_until_finished()


def _result(future: Any) -> object:  # jax's own class, without types
    return future.result()


class JaxSerialization(Contender):
    """JAX's own pytree_serialization, nonblocking."""

    name = "jax"
    donation_safe = False

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`nonblocking_save`."""
        future = pytree_serialization.nonblocking_save(tree, self._place(step))
        return functools.partial(_result, future)

    def restore(self, step: int, like: object) -> object:
        """`load` with the shardings of the tree."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
        return jax.block_until_ready(pytree_serialization.load(self._place(step), shardings))


class Raw(Contender):
    """No format at all: one file a leaf, fdatasync each, then the directory; nothing checked."""

    name = "raw"
    threads: ClassVar[int] = 1

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """Views of every leaf, written by a pool."""
        place = self._place(step)
        os.mkdir(place)
        views = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        paths = [f"{place}/{number}" for number in range(len(views))]
        return lambda: self._each(self._write, paths, views)

    def restore(self, step: int, like: object) -> object:
        """Each file read into aligned memory that jax takes over."""
        leaves, treedef = jax.tree.flatten(like)
        paths = [f"{self._place(step)}/{number}" for number in range(len(leaves))]
        arrays = self._each(self._read, paths, leaves)
        return jax.block_until_ready(jax.tree.unflatten(treedef, jax.device_put(arrays)))

    def _each(
        self, do: Callable[[str, Array], T], paths: Sequence[str], arrays: Sequence[Array]
    ) -> list[T]:
        with ThreadPoolExecutor(self.threads) as pool:
            found = list(pool.map(do, paths, arrays))
        descriptor = os.open(os.path.dirname(paths[0]), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return found

    @staticmethod
    def _write(path: str, view: Array) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        data = np.asarray(view).reshape(-1).view(np.uint8).data
        while data:
            data = data[os.write(descriptor, data) :]
        os.fdatasync(descriptor)
        os.close(descriptor)

    @staticmethod
    def _read(path: str, leaf: Array) -> np.ndarray:
        buffer = aligned(leaf.nbytes)
        descriptor = os.open(path, os.O_RDONLY)
        data, offset = buffer.data, 0
        while data:
            count = os.preadv(descriptor, [data], offset)
            data, offset = data[count:], offset + count
        os.close(descriptor)
        return buffer.view(leaf.dtype).reshape(leaf.shape)


class Raw1(Raw):
    """With 1 thread."""

    name = "raw x1"


class Raw2(Raw):
    """With 2 threads."""

    name, threads = "raw x2", 2


class Raw4(Raw):
    """With 4 threads."""

    name, threads = "raw x4", 4


ALL: tuple[type[Contender], ...] = (Ckptmgr, Orbax, JaxSerialization, Raw1, Raw2, Raw4)
