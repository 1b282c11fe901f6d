"""The snapshot: the tree's bytes made ours, the only stage in the trainer's thread.

Large jax arrays on CPU are viewed: no copy, and donation or deletion leaves a view
alone. Everything else is copied under the limiter: small arrays straight into the
buffer of the pack, large ones chunk by chunk while earlier chunks are being written,
so a tree larger than the limit goes through it. Once `take` has returned, whatever
happens to the tree no longer matters.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import jax
import numpy as np

from ckptmgr.errors import CheckpointError, UnsupportedLeaf
from ckptmgr.format.zarr import RAW
from ckptmgr.limiter import ByteLimiter, Lease
from ckptmgr.pipeline.handover import Handover, Piece
from ckptmgr.pipeline.layout import Access, Box, File
from ckptmgr.pipeline.plan import Arrays, Plan, PlannedArray
from ckptmgr.tree import transfer
from ckptmgr.tree.casting import fill
from ckptmgr.tree.handlers import Array

_COPIES_TO_ENCODE: Final = 3  # the chunk, the codec's own copy of it, and what comes out


def take(
    plan: Plan, arrays: Sequence[Arrays], limiter: ByteLimiter, handover: Handover, *, borrow: bool
) -> None:
    """Make every byte of the tree ours and hand it over. Blocks while the limiter is full.

    The caller closes the handover.

    `borrow`: view what can be viewed instead of copying it.

    Raises:
      UnsupportedLeaf: an array was deleted or donated before, or holds values that the
        dtype it is to be stored as cannot.
    """
    camera = _Camera(plan, arrays, limiter, handover, borrow=borrow)
    try:
        if all(map(camera.pack, plan.pack_files)) and all(map(camera.array, plan.own)):
            camera.flush(wake=False)
    finally:
        camera.drop()


class _Camera:
    """One snapshot: the pieces made so far, handed over before anything that may block."""

    def __init__(
        self,
        plan: Plan,
        arrays: Sequence[Arrays],
        limiter: ByteLimiter,
        handover: Handover,
        *,
        borrow: bool,
    ) -> None:
        self._plan = plan
        self._arrays = arrays
        self._limiter = limiter
        self._handover = handover
        self._borrow = borrow
        self._packed = iter(plan.packed)
        self._ready: deque[Piece] = deque()
        self._views: deque[tuple[np.ndarray, Box]] = deque()

    def flush(self, *, wake: bool) -> bool:
        """Hand over what is ready; False where nobody wants it."""
        wake = wake and bool(self._ready or self._views)
        lease = self._limiter.borrow(sum(box.nbytes for _, box in self._views))
        pieces = itertools.chain(_drained(self._ready), _cut(self._views, lease))
        wanted = self._handover.push(pieces, wake=wake)
        self._ready, self._views = deque(), deque()
        return wanted

    def drop(self) -> None:
        """Release what was not handed over."""
        while self._ready:  # those that write may be at it as well: each goes once
            try:
                self._ready.popleft().lease.release()
            except IndexError:
                return

    def _acquire(self, nbytes: int) -> Lease | None:
        """A lease, or None where nobody wants the bytes. Earlier pieces are let go first."""
        return self._limiter.acquire(nbytes) if self.flush(wake=True) else None

    def pack(self, file: File) -> bool:
        """Copy the small arrays of a pack's file; False where nobody wants them."""
        members = list(zip(file.spans, self._packed))  # noqa: B905  # the rest is the next file's
        sent = [(start, array) for (start, _), array in members if self._is_sent(array)]
        lease = self._acquire(file.nbytes + sum(array.nbytes for _, array in sent))
        if lease is None:
            return False
        with released_on_error(lease):
            buffer = np.zeros(file.spans[-1][1], np.uint8)
            # Not viewed, to be copied later: what two of numpy's objects for each of thousands
            # of views cost, in calls of the garbage collector too, is more than the copy.
            for (start, _), array in members:
                if not (sent and self._is_sent(array)):
                    self._copy_small(array, np.ndarray(array.shape, array.dtype, buffer, start))
            small = self._send([(array, array.boxes[0]) for _, array in sent])
        pairs = [(start, host) for (start, _), host in zip(sent, small, strict=True)]
        self._ready.append(Piece(file, buffer, 0, len(buffer), lease, small=pairs))
        return True

    def _is_sent(self, array: PlannedArray) -> bool:
        """Whether the accelerator copies a small array, as it is stored, while nobody waits."""
        if array.access is not Access.SEND:
            return False
        return len(array.boxes) == 1 and self._source(array).dtype == array.dtype

    def _send(self, parts: Sequence[tuple[PlannedArray, Box]]) -> list[jax.Array]:
        """Have the accelerators copy these parts of arrays; all in one call to jax."""
        found = []
        for array, box in parts:
            source, path = self._source(array), self._plan.paths[array.leaf]
            assert not isinstance(source, np.ndarray)
            if source.is_deleted():
                raise _deleted(path)
            found.append(_part(source, box))
        try:
            return transfer.send(found)
        except RuntimeError as error:
            raise CheckpointError(f"these arrays cannot be sent to the host: {error}") from error

    def _copy_small(self, array: PlannedArray, target: np.ndarray) -> None:
        source, path = self._source(array), self._plan.paths[array.leaf]
        if len(array.boxes) > 1:
            for box in array.boxes:
                fill(target[box.index], _host(source, box, path), path)
            return
        host = _host(source, array.boxes[0], path)
        if host.dtype == array.dtype:  # thousands of small leaves: a call less for each
            target[...] = host
        else:
            fill(target, host, path)

    def _source(self, array: PlannedArray) -> Array:
        return self._arrays[array.leaf][array.name]

    def array(self, array: PlannedArray) -> bool:
        """View or copy a large array, box by box; False where nobody wants it."""
        source, path = self._source(array), self._plan.paths[array.leaf]
        for box in array.boxes:
            if array.access is not Access.VIEW and not isinstance(source, np.ndarray):
                wanted = self._fetch(array, source, box)
            else:
                host = _host(source, box, path)
                if self._borrow and array.raw and host.flags.c_contiguous:
                    self._views.append((host, box))
                    continue
                wanted = self._copy(array, host, box)
            if not wanted:
                return False
        return True

    def _fetch(self, array: PlannedArray, source: Array, box: Box) -> bool:
        # The copy is jax's to make, in one piece: from an accelerator, or to unpack it. All that
        # is made of it counts from here on: to wait for more with this held could be for ever.
        # Only what is stored just as it is may come later: of the rest the trainer hears if it
        # does not fit.
        extra = 0 if array.raw else box.nbytes * _COPIES_TO_ENCODE
        lease = self._acquire(_nbytes(source, box) + extra)
        if lease is None:
            return False
        path = self._plan.paths[array.leaf]
        with released_on_error(lease):
            if array.raw and array.access is Access.SEND:
                (sent,) = self._send([(array, box)])
                self._ready += _pieces(sent, box, lease)
                return True
            host = np.ascontiguousarray(_host(source, box, path))
            copies = () if array.raw else [_copied(host[c.part], array, path) for c in box.chunks]
        if array.raw:
            self._ready += _pieces(host, box, lease)
            return True
        lease.share(len(box.chunks))
        self._ready += [
            Piece(cut.file, copy, 0, copy.nbytes, lease, array)
            for cut, copy in zip(box.chunks, copies, strict=True)
        ]
        return True

    def _copy(self, array: PlannedArray, host: np.ndarray, box: Box) -> bool:
        """Copy a host array chunk by chunk, each under a lease of its own."""
        copies = 1 if array.codec == RAW else _COPIES_TO_ENCODE
        for cut in box.chunks:
            lease = self._acquire((cut.stop - cut.start) * copies)
            if lease is None:
                return False
            with released_on_error(lease):
                copy = _copied(host[cut.part], array, self._plan.paths[array.leaf])
            self._ready.append(Piece(cut.file, copy, 0, copy.nbytes, lease, array))
        return True


def _pieces(host: Array, box: Box, lease: Lease) -> list[Piece]:
    """The chunks of a host array, which lives until the last of them is written."""
    lease.share(len(box.chunks))
    return [Piece(cut.file, host, cut.start, cut.stop, lease) for cut in box.chunks]


def _drained(pieces: deque[Piece]) -> Iterator[Piece]:
    """Each one, let go as it is asked for."""
    while pieces:
        yield pieces.popleft()


def _cut(views: deque[tuple[np.ndarray, Box]], lease: Lease) -> Iterator[Piece]:
    """The chunks of all views, each view let go once its chunks are."""
    while views:
        host, box = views.popleft()
        yield from _pieces(host, box, lease.part(box.nbytes))


def _copied(source: np.ndarray, array: PlannedArray, path: str) -> np.ndarray:
    """A copy in the dtype and byte order that is stored."""
    copy = fresh(source.size * array.dtype.itemsize).view(array.dtype).reshape(source.shape)
    fill(copy, source, path)
    return copy


def _nbytes(source: Array, box: Box) -> int:
    items = math.prod(int(s.stop - s.start) for s in box.index)
    return items * np.dtype(source.dtype).itemsize


def fresh(nbytes: int) -> np.ndarray:
    """Memory that goes back to the system with the array; malloc would keep it, uncounted.

    Of 1.8 GB copied under a limit of 256 MiB it kept 100 MiB.
    """
    memory = mmap.mmap(-1, max(nbytes, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, nbytes)


@contextlib.contextmanager
def released_on_error(lease: Lease) -> Iterator[None]:
    """Give a lease back where what it is for fails."""
    try:
        yield
    except BaseException:
        lease.release()
        raise


def _host(source: Array, box: Box, path: str) -> np.ndarray:
    """The host array of a box: a view where jax gives one."""
    if isinstance(source, np.ndarray):
        return source
    try:
        return np.asarray(_part(source, box))
    except RuntimeError as error:
        if source.is_deleted():
            raise _deleted(path) from error
        raise CheckpointError(
            f"this array cannot be read; what was to compute it failed: {error}", leaf=path
        ) from error


def _part(source: jax.Array, box: Box) -> jax.Array:
    return source if box.shard is None else source.addressable_data(box.shard)


def _deleted(path: str) -> UnsupportedLeaf:
    return UnsupportedLeaf("this array was deleted or donated before save() was called", leaf=path)
