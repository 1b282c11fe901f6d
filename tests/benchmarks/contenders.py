"""Who is compared: each saves a tree to a fresh directory and restores it, at the same fsync level.

A contender is a context manager over one directory, opened before and closed after the
clock runs, as a trainer opens its checkpointer once.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors.flax
from jax.experimental.array_serialization import pytree_serialization

import ckptmgr
from ckptmgr.pipeline.read import aligned
from ckptmgr.tree.handlers import Array

T = TypeVar("T")


class Contender(ABC):
    """Somebody who saves and restores trees in one directory.

    Args:
      directory: that one.
      keep: how many of the newest steps to keep; None: all.

    Attributes:
      in_loop: whether it saves beside a loop that donates its state.
    """

    name: ClassVar[str]
    in_loop: ClassVar[bool] = False

    def __init__(self, directory: str, keep: int | None = None) -> None:
        self.directory = directory
        self.keep = keep

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
    in_loop = True

    def __enter__(self) -> Self:
        keep = ckptmgr.KeepLast(self.keep) if self.keep else ckptmgr.KeepAll()
        self._manager = ckptmgr.CheckpointManager(self.directory, keep=keep)
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
    in_loop = True

    def __enter__(self) -> Self:
        options = ocp.CheckpointManagerOptions(max_to_keep=self.keep)
        self._manager = ocp.CheckpointManager(self.directory, options=options)
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


class OrbaxZarr3(Contender):
    """Orbax's asynchronous checkpointer set to what we do: Zarr v3, no OCDBT, no compression."""

    name = "orbax zarr3"
    in_loop = True

    def __enter__(self) -> Self:
        handler = ocp.PyTreeCheckpointHandler(
            use_ocdbt=False, use_zarr3=True, use_compression=False
        )
        self._checkpointer = ocp.AsyncCheckpointer(handler)
        return self

    def __exit__(self, *error: object) -> None:
        self._checkpointer.close()

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`save` with PyTreeSave."""
        self._checkpointer.save(self._place(step), args=ocp.args.PyTreeSave(tree))
        return functools.partial(_finish, self._checkpointer)

    def restore(self, step: int, like: object) -> object:
        """`restore` with PyTreeRestore."""
        wanted = ocp.args.PyTreeRestore(
            like, restore_args=ocp.checkpoint_utils.construct_restore_args(like)
        )
        return jax.block_until_ready(self._checkpointer.restore(self._place(step), args=wanted))


def _finish(manager: Any) -> object:  # Orbax's, without types
    return manager.wait_until_finished()


def _result(future: Any) -> object:  # jax's own class, without types
    return future.result()


class JaxSerialization(Contender):
    """JAX's own pytree_serialization, nonblocking."""

    name = "jax"

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`nonblocking_save`."""
        future = pytree_serialization.nonblocking_save(tree, self._place(step))
        return functools.partial(_result, future)

    def restore(self, step: int, like: object) -> object:
        """`load` with the shardings of the tree."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
        return jax.block_until_ready(pytree_serialization.load(self._place(step), shardings))


class Safetensors(Contender):
    """safetensors' writer for flax, which is synchronous; synced, as it does not do that."""

    name = "safetensors"

    def save(self, step: int, tree: object) -> Callable[[], object]:
        """`save_file`: the trainer waits for all of it."""
        flat = {
            jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        safetensors.flax.save_file(flat, self._place(step))
        for path in (self._place(step), self.directory):
            _sync(path)
        return lambda: None

    def restore(self, step: int, like: object) -> object:
        """`load_file`."""
        found = safetensors.flax.load_file(self._place(step))
        paths, treedef = jax.tree_util.tree_flatten_with_path(like)
        leaves = [found[jax.tree_util.keystr(path)] for path, _ in paths]
        return jax.block_until_ready(jax.tree.unflatten(treedef, leaves))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


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
        _sync(os.path.dirname(paths[0]))
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


class Direct(Raw):
    """The same past the page cache (O_DIRECT): through an aligned buffer, 8 MiB a time."""

    name = "direct"
    _own = threading.local()

    @classmethod
    def _write(cls, path: str, view: Array) -> None:
        if not hasattr(cls._own, "buffer"):
            cls._own.buffer = mmap.mmap(-1, 8 << 20)
        buffer = memoryview(cls._own.buffer)
        data = np.asarray(view).reshape(-1).view(np.uint8).data
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        while data:
            part = min(len(data), len(buffer))
            buffer[:part] = data[:part]
            whole = part - part % mmap.PAGESIZE
            if whole:
                assert os.write(descriptor, buffer[:whole]) == whole
            if part > whole:  # the tail goes through the cache
                fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
                assert os.write(descriptor, buffer[whole:part]) == part - whole
            data = data[part:]
        os.fdatasync(descriptor)
        os.close(descriptor)


class Raw1(Raw):
    """With 1 thread."""

    name = "raw x1"


class Raw2(Raw):
    """With 2 threads."""

    name, threads = "raw x2", 2


class Raw4(Raw):
    """With 4 threads."""

    name, threads = "raw x4", 4


class Direct1(Direct):
    """With 1 thread."""

    name = "direct x1"


class Direct2(Direct):
    """With 2 threads."""

    name, threads = "direct x2", 2


class Direct4(Direct):
    """With 4 threads."""

    name, threads = "direct x4", 4


RIVALS: tuple[type[Contender], ...] = (Orbax, OrbaxZarr3, JaxSerialization, Safetensors)
RAW: tuple[type[Contender], ...] = (Raw1, Raw2, Raw4, Direct1, Direct2, Direct4)
ALL: tuple[type[Contender], ...] = (Ckptmgr, *RIVALS, *RAW)
