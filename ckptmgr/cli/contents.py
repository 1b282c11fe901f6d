"""`show`: the tree of a checkpoint, from its manifest alone."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ckptmgr.cli import leaves, text
from ckptmgr.cli.runs import number, seen
from ckptmgr.errors import MissingFile, NoSuchStep
from ckptmgr.format.keypath import SEPARATOR
from ckptmgr.format.manifest import CommitRecord, LeafEntry, Manifest
from ckptmgr.format.step import StepInfo, step_number
from ckptmgr.interop.recognise import foreign_path
from ckptmgr.pipeline.notes import noted
from ckptmgr.pipeline.records import read_both, step_info
from ckptmgr.retention import KeepAll
from ckptmgr.storage.base import Storage
from ckptmgr.storage.url import at
from ckptmgr.tree.globs import by_globs
from ckptmgr.units import leaves as count
from ckptmgr.units import size


def place(url: str, step: str) -> tuple[Storage, str]:
    """The store and the name of a step of a run, or of the checkpoint that the URL is of.

    Raises:
      NoSuchStep, InvalidOption: it is not there, or no step.
    """
    storage, name = at(url)
    if name:
        if step not in ("newest", str(step_number(name))):
            raise NoSuchStep("this is one checkpoint: it has no steps", file=url)
        return storage, name
    return storage, seen(storage, KeepAll()).name(step)


def opened(storage: Storage, name: str) -> tuple[CommitRecord, Manifest]:
    """The record and the manifest of a checkpoint.

    Raises:
      NoSuchStep, DamagedStep: there is none, or it is not what was saved.
    """
    try:
        _, record, manifest = read_both(storage, name)
    except MissingFile as error:
        raise NoSuchStep("there is no checkpoint here", file=f"{storage.root}/{name}") from error
    return record, manifest


def show(url: str, step: str, *, depth: int | None, match: Sequence[str], json: bool) -> None:
    """What a checkpoint holds."""
    theirs = foreign_path(url)
    if theirs:
        from ckptmgr.interop.opening import open_foreign  # noqa: PLC0415  # it needs jax

        known = open_foreign(theirs, None if step == "newest" else number(step))
        sizes = sum(map(leaves.nbytes, known.manifest.leaves))
        info = StepInfo(known.step, 0.0, sizes, len(known.manifest.leaves), known.path)
        info = dataclasses.replace(info, metrics=known.metrics, metadata=known.metadata)
        found: Sequence[LeafEntry] = known.manifest.leaves
        writer = {known.format: ""}
    else:
        storage, name = place(url, step)
        record, manifest = opened(storage, name)
        info = noted(storage, name, step_info(record, f"{storage.root}/{name}"))
        found, writer = manifest.leaves, record.writer
    if match:
        chosen = by_globs([(glob, True) for glob in match], [x.path for x in found], "--match")
        found = [leaf for leaf, wanted in zip(found, chosen, strict=True) if wanted]
    if json:
        said = {"info": info, "writer": writer}
        text.say_json({**said, "leaves": [leaves.as_json(leaf) for leaf in found]})
        return
    room = text.width()
    text.say(text.cut(line, room) for line in (*_header(info, writer), "", *_tree(found, depth)))


def _header(info: StepInfo, writer: Mapping[str, str]) -> Iterator[str]:
    if info.step is not None:
        yield f"step      {info.step}{' (pinned)' if info.pinned else ''}"
    if info.time:  # which others do not say
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.time))
        yield f"saved     {when}, {text.age(info.time, time.time())}"
    said = ", ".join(f"{name} {version}".rstrip() for name, version in writer.items())
    yield f"by        {said}"
    yield f"holds     {size(info.nbytes)} in {count(info.leaves)}"
    if info.metrics:
        yield f"metrics   {text.values(info.metrics)}"
    if info.metadata:
        yield f"metadata  {info.metadata}"
    yield f"lies in   {info.path}"


def _tree(found: Sequence[LeafEntry], depth: int | None) -> Iterator[str]:
    """One line for each leaf, and one for each subtree, below which nothing is past `depth`."""
    rows: list[tuple[str, str, str, str]] = []
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for leaf in found:
        for prefix in _prefixes(leaf.path):
            counts[prefix][0] += 1
            counts[prefix][1] += leaves.nbytes(leaf)
    said = set[str]()
    for leaf in found:
        above = _prefixes(leaf.path)
        for level, prefix in enumerate(above if depth is None else above[:depth]):
            if prefix not in said:
                said.add(prefix)
                children, total = counts[prefix]
                name = "  " * level + prefix.rpartition(SEPARATOR)[2] + SEPARATOR
                rows.append((name, count(children), size(total), ""))
        if depth is None or len(above) < depth:
            name = "  " * len(above) + leaf.path.rpartition(SEPARATOR)[2]
            shown = size(leaves.nbytes(leaf)) if leaf.arrays else ""
            rows.append((name or "(the leaf)", leaves.kind(leaf), shown, leaves.sharding(leaf)))
    widths = [max((len(row[n]) for row in rows), default=0) for n in range(3)]
    for name, what, nbytes, sharding in rows:
        line = f"{name:<{widths[0]}}  {what:<{widths[1]}}  {nbytes:>{widths[2]}}  {sharding}"
        yield line.rstrip()


def _prefixes(path: str) -> list[str]:
    """The paths above it, the highest first."""
    keys = path.split(SEPARATOR)
    return [SEPARATOR.join(keys[:n]) for n in range(1, len(keys))]
