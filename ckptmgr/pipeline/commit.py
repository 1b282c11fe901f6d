"""The commit: everything a step needs beside its data, the commit record last.

Zarr metadata, then the manifest, then the record, then the store makes the step
visible in one atomic move. Until that has returned the step does not exist; from then
on it survives a power cut.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Sequence
from functools import partial
from importlib import metadata

import jax
import numpy as np

from ckptmgr.errors import DamagedStep, MissingFile
from ckptmgr.format import keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    FORMAT,
    CommitRecord,
    Manifest,
    encode_manifest,
    encode_record,
)
from ckptmgr.format.scalar import JSON, from_json
from ckptmgr.format.step import ARRAYS, MANIFEST, PACKS, StepInfo, nonce
from ckptmgr.pipeline.header import Header, fetch
from ckptmgr.pipeline.merge import Merge
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Attempt


def zarr_files(plan: Plan) -> dict[str, bytes]:
    """The zarr.json of the group, of each large array and of the pack, by path."""
    files: dict[str, bytes] = {}
    for array in plan.own:
        name = keypath.directory(plan.paths[array.leaf], array.name)
        meta = zarr.array_metadata(array.dtype, array.shape, array.chunk or (), array.codec)
        files[f"{ARRAYS}/{name}/{zarr.METADATA}"] = meta
    if files:
        files[f"{ARRAYS}/{zarr.METADATA}"] = zarr.group_metadata()
    if plan.pack:
        meta = zarr.array_metadata(np.dtype("uint8"), (plan.pack.nbytes,), (plan.pack.chunk,))
        files[f"{PACKS}/{plan.pack.process}/{zarr.METADATA}"] = meta
    return files


async def put_metadata(plan: Plan, kept: Merge | None, attempt: Attempt, threads: int) -> None:
    """Put every zarr.json, and link the files that are kept; `threads` at a time."""
    files = zarr_files(plan)
    todo = deque(partial(attempt.put, path, [data]) for path, data in files.items())
    if kept:
        linked = kept.files()
        todo.extend(partial(_link, attempt, kept.name, path, leaf) for path, leaf in linked)
        group = f"{ARRAYS}/{zarr.METADATA}"
        if group not in files and any(path.startswith(ARRAYS) for path, _ in linked):
            todo.append(partial(attempt.put, group, [zarr.group_metadata()]))

    def worker() -> None:
        while True:
            try:
                put = todo.popleft()
            except IndexError:
                return
            put()

    await run_threads(threads, worker, todo.clear)


def _link(attempt: Attempt, name: str, path: str, leaf: str) -> None:
    try:
        attempt.link(f"{name}/{path}", path)
    except MissingFile as error:
        raise DamagedStep(
            f"a data file of what is kept: {error.message}", leaf=leaf, file=error.file
        ) from error


def assemble(
    plan: Plan, values: Sequence[JSON], digests: Sequence[str], kept: Merge | None
) -> Manifest:
    """The manifest of the tree, together with what is kept of a former one."""
    if kept:
        return kept.assemble(plan, values, digests)
    packs = (plan.pack,) if plan.pack else ()
    return Manifest(FORMAT, plan.structure, plan.entries(values, digests), packs)


def commit(
    manifest: Manifest,
    header: Header,
    attempt: Attempt,
    now: float,
    *,
    replace: bool,
    former: bytes | None,
) -> CommitRecord:
    """Put the manifest and publish the step; blocks until it is durable.

    Waits for metrics that are still being computed. `now` is the commit time. With
    `replace` it takes the place of a step of that name, one of the record `former` if that
    is given.
    """
    data = encode_manifest(manifest)
    record = CommitRecord(
        format=FORMAT,
        step=header.step,
        time=now,
        nbytes=sum(array.nbytes for leaf in manifest.leaves for array in leaf.arrays),
        leaves=len(manifest.leaves),
        manifest_nbytes=len(data),
        manifest_digest=digest(data),
        nonce=nonce(),
        writer=_writer(),
        metrics=fetch(header.metrics),
        metadata=dict(header.metadata),
    )
    attempt.put(MANIFEST, [data])
    attempt.publish(encode_record(record), replace=replace, former=former)
    return record


def step_info(record: CommitRecord, path: str) -> StepInfo:
    """What the record at `path` says, for people."""
    return StepInfo(
        step=record.step,
        time=record.time,
        nbytes=record.nbytes,
        leaves=record.leaves,
        path=path,
        metrics={name: _number(value) for name, value in record.metrics.items()},
        metadata=record.metadata,
    )


def _number(value: JSON) -> float:
    number = from_json(value)
    if not isinstance(number, int | float):
        raise ValueError(f"a metric is a number, not {number!r}")  # noqa: TRY004  # it is data
    return float(number)


def _writer() -> dict[str, str]:
    return {
        "ckptmgr": metadata.version("ckptmgr"),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
