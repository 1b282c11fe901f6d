"""Conversion: a checkpoint of any known format into another, leaf by leaf under the limit.

Into ours it goes the way of every save: planned on arrays that have a shape but no
bytes; what the snapshot is otherwise, the feed reads each of them while others are written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
import msgspec
import numpy as np

from ckptmgr.books import Books
from ckptmgr.catalog import Catalog
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import (
    InvalidOption,
    NoSuchStep,
    StepDeleted,
    StepExists,
    StorageError,
    UnsupportedFormat,
)
from ckptmgr.format.manifest import LeafEntry
from ckptmgr.format.scalar import from_json
from ckptmgr.format.step import step_name
from ckptmgr.format.zarr import RAW, Shape
from ckptmgr.future import Progress, SaveFuture
from ckptmgr.interop import eformer, flax_msgpack, npz, safetensors
from ckptmgr.interop.base import PYTHON, Foreign, Source
from ckptmgr.interop.feed import feed
from ckptmgr.interop.opening import open_foreign
from ckptmgr.interop.own import open_step
from ckptmgr.interop.recognise import foreign_path
from ckptmgr.interop.writing import Format, Tell, export, sync
from ckptmgr.jobs import SaveJob
from ckptmgr.limiter import ByteLimiter
from ckptmgr.options import limiter
from ckptmgr.pipeline.extent import Extent
from ckptmgr.pipeline.handover import Handover
from ckptmgr.pipeline.header import header
from ckptmgr.pipeline.plan import Plan, PlannedArray
from ckptmgr.pipeline.planner import Planner
from ckptmgr.retention import KeepAll
from ckptmgr.saver import Saver
from ckptmgr.service import Service
from ckptmgr.storage.archive import archive
from ckptmgr.storage.url import ObjectStore, absolute, at, is_url, parent
from ckptmgr.tree import structure
from ckptmgr.tree.globs import by_globs
from ckptmgr.tree.handlers import Encoded, Handler
from ckptmgr.tree.registry import Registry

OURS: Final = "ckptmgr"
ARCHIVE: Final = "zip"
FORMATS: Final[dict[str, Format]] = {
    safetensors.NAME: safetensors.Writer(),
    flax_msgpack.NAME: flax_msgpack.Writer(),
    npz.NAME: npz.Writer(),
    eformer.NAME: eformer.Writer(),
}
_SUFFIXES: Final = {f".{name}": name for name in ("safetensors", "msgpack", "npz", ARCHIVE)}
_PACK_BELOW: Final = 1 << 20  # bytes


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    step: int | None = None,
    select: str | Sequence[str] = (),
    dtype: object = None,
    in_flight_bytes: int | str | ByteLimiter | None = None,
    storage: ObjectStore | None = None,
    tell: Tell = lambda _: None,
) -> None:
    """Write the checkpoint at `source`, of any format that is known, to `target` in another.

    Blocks until it is durable; reads and writes leaf by leaf, at most `in_flight_bytes` at a time
    (but for msgpack, which has to be made in one piece). Nothing is left where it fails.

    Args:
      source: one checkpoint, or a run, of which the newest step is taken.
      target: where to; there must be nothing.
      to: "ckptmgr", "safetensors", "msgpack", "npz", "eformer", or "zip", a checkpoint of ours in
        one file, which is read in place; None: by the target's suffix, else ours.
      step: which step of a run.
      select: globs of key paths; what matches none is left out.
      dtype: floating arrays are converted to it, as in dtype="bfloat16".
      in_flight_bytes: the most memory for arrays, as of CheckpointManager.
      storage: how to reach an object store, where one of the two is a URL.
      tell: hears of the progress.

    Raises:
      NoSuchStep: there is nothing to convert.
      StepExists: there is something at `target`.
      UnsupportedFormat: leaves cannot be expressed there; all are named, nothing is written.
      DamagedStep: what is to be read is not whole.
      InvalidOption, TreeMismatch: an option is impossible; a glob matches no leaf.
    """
    kind = to or _SUFFIXES.get(os.path.splitext(os.fspath(target))[1], OURS)
    known = (OURS, ARCHIVE, *FORMATS)
    if kind not in known:
        raise InvalidOption(f"the formats that can be written are {', '.join(known)}, not {kind!r}")
    if kind != OURS and is_url(os.fspath(target)):
        raise InvalidOption(f"{kind} is written to files only, not to {os.fspath(target)!r}")
    wanted = None if dtype is None else _floating(dtype)
    chosen = [select] if isinstance(select, str) else list(select)
    limit = limiter(in_flight_bytes)
    with contextlib.ExitStack() as held:
        found = opened(source, step, storage, held)
        if wanted is not None:
            found = _cast(found, wanted)
        if kind == OURS:
            _save(found, chosen, target, limit, storage, tell)
        elif kind == ARCHIVE:
            _archive(found, chosen, absolute(target), limit, tell)
        else:
            export(_selected(found, chosen), absolute(target), FORMATS[kind], kind, limit, tell)


def opened(
    path: str | os.PathLike[str],
    step: int | None,
    storage: ObjectStore | None,
    held: contextlib.ExitStack,
) -> Foreign:
    """The checkpoint at a path, whatever its format; of a run a step, or its newest.

    One of ours is kept from being deleted until `held` ends.

    Raises:
      NoSuchStep, DamagedStep, UnsupportedFormat: it is not there, or cannot be read.
    """
    theirs = foreign_path(path)
    if theirs:
        return open_foreign(theirs, step)
    store, name = at(path, storage)
    if name:
        held.enter_context(store.reading(name))
        found = open_step(store, name)
        if step not in (None, found.step):
            raise NoSuchStep("this is one checkpoint, and not of this step", step=step, file=path)
        return found
    run = Catalog(store, KeepAll())
    while True:
        run.refresh()
        name = step_name(run.find(step).step or 0)
        try:
            held.enter_context(store.reading(name))
        except StepDeleted:
            if step is not None:
                raise
            continue  # retention was quicker: there is a newer one
        return open_step(store, name)


def _archive(
    found: Foreign, select: Sequence[str], target: str, limit: ByteLimiter, tell: Tell
) -> None:
    """Save it as one of ours beside the target, then put that into one file."""
    if os.path.lexists(target):
        raise StepExists("there is something of this name; remove it first", file=target)
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".ckptmgr-") as near:
            _save(found, select, f"{near}/checkpoint", limit, None, tell)
            archive(f"{near}/checkpoint", f"{near}/archive")
            sync(f"{near}/archive")
            os.rename(f"{near}/archive", target)
        sync(os.path.dirname(target))
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", file=target) from error


@dataclass(frozen=True, slots=True)
class _Cast:
    """An array that is read as another dtype."""

    source: Source
    dtype: np.dtype

    @property
    def shape(self) -> Shape:
        return self.source.shape

    @property
    def aside(self) -> int:
        return self.source.aside + _nbytes(self.source)

    def read(self, part: Extent) -> np.ndarray:
        with np.errstate(over="ignore"):
            return self.source.read(part).astype(self.dtype)


def _nbytes(source: Source) -> int:
    return int(np.prod(source.shape, dtype=np.int64)) * source.dtype.itemsize


def _floating(dtype: object) -> np.dtype:
    """A dtype that floating arrays can be cast to."""
    try:
        found = jnp.dtype(dtype)  # type: ignore[call-overload]  # whatever it is, it says
    except TypeError as error:
        raise InvalidOption(f"no dtype is called {dtype!r}") from error
    if not jnp.issubdtype(found, jnp.floating):
        raise InvalidOption(f"dtype is a floating one, such as bfloat16, not {found}")
    result: np.dtype = np.dtype(found)
    return result


def _cast(found: Foreign, dtype: np.dtype) -> Foreign:
    """The checkpoint with its floating arrays in another dtype."""
    sources = {
        leaf: _Cast(source, dtype) if jnp.issubdtype(source.dtype, jnp.floating) else source
        for leaf, source in found.sources.items()
    }
    return dataclasses.replace(found, sources=sources)


def _chosen(found: Foreign, select: Sequence[str]) -> list[bool]:
    """Which leaves are wanted."""
    paths = [leaf.path for leaf in found.manifest.leaves]
    if not select:
        return [True] * len(paths)
    return [bool(hit) for hit in by_globs([(glob, True) for glob in select], paths, "select")]


def _selected(found: Foreign, select: Sequence[str]) -> Foreign:
    """The checkpoint with those leaves alone, for formats that have no structure to keep."""
    wanted = [number for number, want in enumerate(_chosen(found, select)) if want]
    leaves = tuple(found.manifest.leaves[number] for number in wanted)
    sources = {new: found.sources[n] for new, n in enumerate(wanted) if n in found.sources}
    # The numbers in the structure are of all leaves; of it only what is empty is asked for.
    structure = found.manifest.structure if not select else 0
    manifest = msgspec.structs.replace(found.manifest, leaves=leaves, structure=structure)
    return dataclasses.replace(found, manifest=manifest, sources=sources)


class _Named(Handler):
    """The handler that made a leaf, by its name alone: nothing is encoded any more."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, leaf: object) -> Encoded:
        """Nothing is."""
        raise NotImplementedError

    def decode(self, value: object, arrays: object) -> object:
        """Nor decoded."""
        raise NotImplementedError


def _save(
    found: Foreign,
    select: Sequence[str],
    target: str | os.PathLike[str],
    limit: ByteLimiter,
    storage: ObjectStore | None,
    tell: Tell,
) -> None:
    """Save it as one of ours."""
    store, name = parent(target, storage)
    if store.taken(name):
        raise StepExists("there is something of this name; remove it first", file=target)
    books = Books(store)
    service = Service(
        Saver(store, books, Coordinator()), books, Coordinator(), max_pending=0, writer=False
    )
    try:
        job = _job(found, _chosen(found, select), name, service, tell)
        service.save(job, limit, "wait", borrow=False)
        job.future.result()
    finally:
        service.finish()


def _job(
    found: Foreign, wanted: Sequence[bool], name: str, service: Service, tell: Tell
) -> SaveJob:
    leaves = found.manifest.leaves
    _refuse_several(found, wanted)
    shapes = [
        _dummy(leaf, found.sources.get(number)) if want else None
        for number, (leaf, want) in enumerate(zip(leaves, wanted, strict=True))
    ]
    tree = structure.build(found.manifest.structure, shapes, _refuse(found))
    planned = Planner(Registry(()), _PACK_BELOW).plan(tree)
    kept = [number for number, shape in enumerate(shapes) if shape is not None]
    numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
    if sorted(planned.plan.paths) != sorted(leaves[number].path for number in kept):
        raise UnsupportedFormat(
            "it holds what each process had for itself (PerProcess): leave that out with select=",
            file=found.path,
        )
    order = [numbers[path] for path in planned.plan.paths]
    entries = [leaves[number] for number in order]
    plan = dataclasses.replace(
        planned.plan,
        handlers=tuple(_Named(entry.handler) for entry in entries),
        arrays=tuple(
            tuple(_as_theirs(array, entry) for array in arrays)
            for arrays, entry in zip(planned.plan.arrays, entries, strict=True)
        ),
        own=tuple(_as_theirs(array, entries[array.leaf]) for array in planned.plan.own),
    )
    done, mutex = 0, threading.Lock()

    def read(nbytes: int) -> None:
        nonlocal done
        with mutex:
            done += nbytes
            tell(Progress(done, plan.nbytes))

    sources = {new: found.sources[n] for new, n in enumerate(order) if n in found.sources}

    def take(
        plan: Plan, _: object, limiter: ByteLimiter, handover: Handover, **_borrow: object
    ) -> None:
        feed(plan, sources, limiter, handover, read)

    planned = planned._replace(plan=plan, arrays=[], values=[e.value for e in entries])
    future = SaveFuture(found.step, service.dispatch)
    head = header(found.step, dict(found.metrics), dict(found.metadata))
    return SaveJob(
        name, planned, head, False, future, Handover(service.kick), beside=False, take=take
    )


def _refuse_several(found: Foreign, wanted: Sequence[bool]) -> None:
    """Refuse leaves that are more than one array, which only their handlers know how to name."""
    several = [
        leaf.path
        for leaf, want in zip(found.manifest.leaves, wanted, strict=True)
        if want and any(array.name for array in leaf.arrays)
    ]
    if several:
        raise UnsupportedFormat(
            f"these leaves are of handlers that store several arrays: {several[:4]}; leave them "
            "out with select=",
            file=found.path,
        )


def _dummy(leaf: LeafEntry, source: Source | None) -> object:
    """What is planned in the place of a leaf: an array without memory, or the value itself."""
    if source is None:
        return from_json(leaf.value) if leaf.handler == PYTHON else 0
    return np.broadcast_to(np.zeros((), source.dtype), source.shape)


def _as_theirs(array: PlannedArray, entry: LeafEntry) -> PlannedArray:
    """With the sharding of the leaf; and read into memory that nobody else has."""
    sharding = entry.arrays[0].sharding if entry.arrays else None
    return msgspec.structs.replace(array, sharding=sharding, raw=array.codec == RAW)


def _refuse(found: Foreign) -> Any:
    def refuse(*_: object) -> object:
        raise UnsupportedFormat("it has nodes of classes that only jax knows", file=found.path)

    return refuse
