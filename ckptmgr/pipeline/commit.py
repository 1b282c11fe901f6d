"""The commit: everything a step needs beside its data, the commit record last.

Zarr metadata, then the manifest, then the record, then the store makes the step
visible in one atomic move. Until that has returned the step does not exist; from then
on it survives a power cut.
"""

from __future__ import annotations

import contextlib
import platform
from collections import deque
from collections.abc import Sequence
from importlib import metadata

import jax
import numpy as np

from ckptmgr.format import keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    FORMAT,
    CommitRecord,
    LeafEntry,
    Manifest,
    encode_manifest,
    encode_record,
)
from ckptmgr.format.scalar import JSON, from_json
from ckptmgr.format.step import ARRAYS, MANIFEST, PACKS, StepInfo, nonce
from ckptmgr.pipeline.header import Header, fetch
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Attempt


def zarr_files(plan: Plan) -> dict[str, bytes]:
    """The zarr.json of the group, of each large array and of the pack, by path."""
    files: dict[str, bytes] = {}
    for array in plan.own:
        name = keypath.directory(plan.paths[array.leaf], array.name)
        meta = zarr.array_metadata(array.dtype, array.shape, array.chunk or ())
        files[f"{ARRAYS}/{name}/{zarr.METADATA}"] = meta
    if files:
        files[f"{ARRAYS}/{zarr.METADATA}"] = zarr.group_metadata()
    if plan.pack:
        meta = zarr.array_metadata(np.dtype("uint8"), (plan.pack.nbytes,), (plan.pack.chunk,))
        files[f"{PACKS}/{plan.pack.process}/{zarr.METADATA}"] = meta
    return files


async def put_metadata(plan: Plan, attempt: Attempt, threads: int) -> None:
    """Put every zarr.json, `threads` at a time."""
    files = deque(zarr_files(plan).items())

    def worker() -> None:
        with contextlib.suppress(IndexError):  # another one took the last
            while files:
                path, data = files.popleft()
                attempt.put(path, [data])

    await run_threads(threads, worker, files.clear)


def assemble(plan: Plan, values: Sequence[JSON], digests: Sequence[str]) -> bytes:
    """The bytes of the manifest."""
    leaves = tuple(
        LeafEntry(path, handler.name, value, tuple(array.entry(digests) for array in arrays))
        for path, handler, value, arrays in zip(
            plan.paths, plan.handlers, values, plan.arrays, strict=True
        )
    )
    packs = (plan.pack,) if plan.pack else ()
    return encode_manifest(Manifest(FORMAT, plan.structure, leaves, packs))


def commit(
    plan: Plan, manifest: bytes, header: Header, attempt: Attempt, now: float, *, replace: bool
) -> CommitRecord:
    """Put the manifest and publish the step; blocks until it is durable.

    Waits for metrics that are still being computed. `now` is the commit time. With
    `replace` it takes the place of a step of that name.
    """
    record = CommitRecord(
        format=FORMAT,
        step=header.step,
        time=now,
        nbytes=plan.nbytes,
        leaves=len(plan.paths),
        manifest_nbytes=len(manifest),
        manifest_digest=digest(manifest),
        nonce=nonce(),
        writer=_writer(),
        metrics=fetch(header.metrics),
        metadata=dict(header.metadata),
    )
    attempt.put(MANIFEST, [manifest])
    attempt.publish(encode_record(record), replace=replace)
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
