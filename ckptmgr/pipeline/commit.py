"""The commit: everything a step needs beside its data, the commit record last.

Zarr metadata, then the manifest, then the record, then the store makes the step
visible in one atomic move. Until that has returned the step does not exist; from then
on it survives a power cut.
"""

from __future__ import annotations

import operator
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata

import jax
import msgspec

from ckptmgr.errors import DamagedStep, MissingFile, NoFile, UnsupportedLeaf
from ckptmgr.format import bounds, consistency, keypath, zarr
from ckptmgr.format.digest import digest
from ckptmgr.format.encoding import encode_manifest, encode_record
from ckptmgr.format.manifest import (
    FORMAT,
    CommitRecord,
    Manifest,
    Node,
    NoneNode,
    PerProcessNode,
    renumbered,
)
from ckptmgr.format.scalar import JSON
from ckptmgr.format.step import ARRAYS, MANIFEST, PACKS, nonce
from ckptmgr.pipeline.header import Header, fetch
from ckptmgr.pipeline.merge import Merge
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.reports import Written
from ckptmgr.pipeline.workers import run_threads
from ckptmgr.storage.base import Attempt


def zarr_files(plan: Plan, *, leads: bool) -> dict[str, bytes]:
    """The zarr.json of each large array and of each pack, by path.

    `leads`: those of what all processes have as well as of this one's own.
    """
    files: dict[str, bytes] = {}
    for array in plan.own:
        if not (leads or array.leaf in plan.private):
            continue
        name = keypath.directory(plan.paths[array.leaf], array.name)
        files[f"{ARRAYS}/{name}/{zarr.METADATA}"] = array.metadata()
    for one in (*(plan.packs if leads else ()), *filter(None, [plan.private_pack])):
        files[f"{PACKS}/{one.process}/{zarr.METADATA}"] = zarr.pack_metadata(one.nbytes, one.chunk)
    return files


async def put_metadata(
    plan: Plan, kept: Merge | None, attempt: Attempt, threads: int, *, leads: bool
) -> None:
    """Put every zarr.json, and link the files that are kept; `threads` at a time."""
    files = zarr_files(plan, leads=leads)
    todo = deque(partial(attempt.put, path, [data]) for path, data in files.items())
    if kept and leads:
        linked = kept.files()
        todo.extend(partial(_link, attempt, kept.name, path, leaf) for path, leaf in linked)

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
        if not attempt.link(f"{name}/{path}", path, None):
            attempt.copy(f"{name}/{path}", path)
    except (MissingFile, NoFile) as error:
        raise DamagedStep(
            f"a data file of what is kept: {error.message}", leaf=leaf, file=error.file
        ) from error


def assemble(
    plan: Plan,
    values: Sequence[JSON],
    digests: list[str],
    kept: Merge | None,
    others: Sequence[Written] = (),
) -> Manifest:
    """The manifest of the tree: of what all processes wrote, and of what is kept of a former one.

    `digests` are those of what this process wrote, by slot; those of the others are filled in.
    """
    for other in others:
        for slot, proof in zip(other.slots, other.digests, strict=True):
            digests[slot] = proof
    assert all(digests), "every slot was written by somebody"
    if kept:
        return kept.assemble(plan, values, digests)
    leaves = [*plan.entries(values, digests)]
    added: list[Sequence[Node]] = []
    for other in others:
        first = len(leaves)
        added.append([renumbered(node, partial(operator.add, first)) for node in other.private])
        leaves += other.leaves
    packs = [
        *plan.packs,
        *(pack for pack in (plan.private_pack, *(o.pack for o in others)) if pack),
    ]
    structure = _joined(plan.structure, iter(list(zip(*added, strict=True))))
    manifest = Manifest(FORMAT, structure, tuple(leaves), tuple(packs))
    fault = consistency.of_manifest(manifest) if others else None
    assert fault is None, f"what the processes wrote does not fit together: {fault}"
    return manifest


def _joined(node: Node, others: Iterator[Sequence[Node]]) -> Node:
    """The structure with what the other processes have in each of its PerProcess nodes."""
    if isinstance(node, int | NoneNode):
        return node
    if isinstance(node, PerProcessNode):
        children = (*node.children, *next(others, ()))
    else:
        children = tuple(_joined(child, others) for child in node.children)
    return msgspec.structs.replace(node, children=children)


def commit(
    manifest: Manifest,
    header: Header,
    attempt: Attempt,
    now: float,
    *,
    replace: bool,
    former: bytes | None,
    prove: Callable[[Manifest, bytes], None] = lambda *_: None,
) -> CommitRecord:
    """Put the manifest and publish the step; blocks until it is durable.

    Waits for metrics that are still being computed. `now` is the commit time. With
    `replace` it takes the place of a step of that name, one of the record `former` if that
    is given. `prove` may refuse what was written; nothing is published then.
    """
    if any(array.grid is not None for leaf in manifest.leaves for array in leaf.arrays):
        group = zarr.group_metadata()
        attempt.put(f"{ARRAYS}/{zarr.METADATA}", [group])
        manifest = msgspec.structs.replace(manifest, group=digest(group))
    data = encode_manifest(manifest)
    nbytes = sum(array.nbytes for leaf in manifest.leaves for array in leaf.arrays)
    # As a reader will see it, which counts the bytes of the files: compressed they may be few.
    stored = sum(
        array.nbytes
        for leaf in manifest.leaves
        for array in leaf.arrays
        if array.grid is None or array.grid.codec.zstd is None
    )
    if bounds.cost(data) > bounds.room(stored) or len(data) > bounds.LARGEST_MANIFEST:
        raise UnsupportedLeaf(
            f"{len(manifest.leaves)} leaves of {nbytes} bytes are more than a step may have of "
            "such small ones: stack them into arrays"
        )
    record = CommitRecord(
        format=FORMAT,
        step=header.step,
        time=now,
        nbytes=nbytes,
        leaves=len(manifest.leaves),
        manifest_nbytes=len(data),
        manifest_digest=digest(data),
        nonce=nonce(),
        writer=_writer(),
        metrics=fetch(header.metrics),
        metadata=dict(header.metadata),
    )
    attempt.put(MANIFEST, [data])
    prove(manifest, data)
    attempt.publish(encode_record(record), replace=replace, former=former)
    return record


def _writer() -> dict[str, str]:
    return {
        "ckptmgr": metadata.version("ckptmgr"),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
