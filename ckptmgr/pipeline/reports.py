"""What processes tell each other about a save: before they write, and after. Pure.

Before: digests of all that must be equal. Only where these differ is it said leaf by
leaf what each has. After: the digests of the bytes that each wrote, and the leaves that
it has for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import jax
import msgspec
import numpy as np

from ckptmgr.errors import ProcessesDiffer
from ckptmgr.format.digest import digest
from ckptmgr.format.manifest import (
    LeafEntry,
    Node,
    NoneNode,
    Pack,
    PerProcessNode,
    leaf_indices,
    per_process,
    renumbered,
)
from ckptmgr.format.scalar import JSON
from ckptmgr.pipeline.plan import Plan, Planned

_SHOWN: Final = 5
_LONG: Final = 200


class Intent(msgspec.Struct, frozen=True):
    """What a process is about to save, as digests that must be equal in all."""

    name: str
    replace: bool
    structure: str
    layout: str
    contents: str


def contents(planned: Planned) -> dict[int, str]:
    """A digest of each leaf that is no jax array, and must be equal in all processes.

    To be called while the leaves are what is saved: numpy arrays change.
    """
    plan, arrays, values = planned
    found: dict[int, str] = {}
    for leaf, (own, value) in enumerate(zip(arrays, values, strict=True)):
        if leaf in plan.private:
            continue
        parts = [
            digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            for array in own.values()
            if not isinstance(array, jax.Array)
        ]
        if parts or value is not None:
            found[leaf] = digest(msgspec.json.encode((value, parts)))
    return found


def intent(name: str, plan: Plan, found: Mapping[int, str], *, replace: bool) -> Intent:
    """What to report before anything is written."""
    structure = msgspec.json.encode(_shared(plan))
    said = [found.get(leaf, "") for leaf in range(len(plan.paths)) if leaf not in plan.private]
    return Intent(name, replace, digest(structure), plan.layout, digest(msgspec.json.encode(said)))


def _shared(plan: Plan) -> Node:
    """The structure without what is below PerProcess, which may differ."""
    ranks = {
        leaf: rank
        for rank, leaf in enumerate(n for n in range(len(plan.paths)) if n not in plan.private)
    }
    return _without_private(plan.structure, ranks)


def _without_private(node: Node, ranks: Mapping[int, int]) -> Node:
    if isinstance(node, int):
        return ranks[node]
    if isinstance(node, NoneNode):
        return node
    below = () if isinstance(node, PerProcessNode) else node.children
    children = tuple(_without_private(child, ranks) for child in below)
    return msgspec.structs.replace(node, children=children)


def table(plan: Plan, found: Mapping[int, str]) -> dict[str, str]:
    """What each leaf is, for people; said only where processes differ."""
    structure = msgspec.json.encode(_shared(plan)).decode()
    shown = (
        structure
        if len(structure) <= _LONG
        else f"{structure[:_LONG]}... ({digest(structure.encode())[:8]})"
    )
    described = {"": f"the structure {shown}"}
    for leaf, path in enumerate(plan.paths):
        if leaf not in plan.private:
            arrays = [
                f"{array.dtype.name}{list(array.whole)}"
                + (f" {array.sharding.spec} on {array.sharding.axes}" if array.sharding else "")
                for array in plan.arrays[leaf][:1]
            ]
            value = f"value {found[leaf][:8]}" if leaf in found else ""
            described[path] = " ".join([plan.handlers[leaf].name, *arrays, value]).strip()
    return described


def differences(tables: Sequence[Mapping[str, str]]) -> ProcessesDiffer:
    """The error that says which leaves differ between process 0 and the others."""
    first, lines, process = tables[0], list[str](), None
    leaf = None
    for number, other in enumerate(tables):
        paths = [p for p in {**first, **other} if first.get(p) != other.get(p)]
        named = [path for path in paths if path] or paths
        for path in islice(named, _SHOWN):
            process, leaf = (number, path or None) if process is None else (process, leaf)
            lines.append(
                f"{path!r}: process 0 has {first.get(path, 'none')}, "
                f"process {number} {other.get(path, 'none')}"
            )
    if not lines:
        lines.append("the devices that the arrays lie on, the options, or the names of the steps")
    return ProcessesDiffer(
        "the processes do not save the same; what is not a global jax.Array must be equal in "
        "all, or be wrapped in PerProcess:\n  " + "\n  ".join(lines),
        leaf=leaf,
        process=process,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What a process has written.

    Attributes:
      slots, digests: of the bytes that all processes know of.
      private: what its PerProcess nodes hold, in their order, around the numbers of `leaves`.
      leaves: those of its own; `pack`: the pack they lie in, if they do.
    """

    slots: tuple[int, ...]
    digests: tuple[str, ...]
    private: tuple[Node, ...] = ()
    leaves: tuple[LeafEntry, ...] = ()
    pack: Pack | None = None


def written(plan: Plan, values: Sequence[JSON], digests: Sequence[str]) -> Written:
    """What to report when all is durable."""
    slots = tuple(slot for slot in plan.mine if slot < plan.shared_slots)
    own = [node.children[0] for node in per_process(plan.structure)]
    order = {leaf: place for place, leaf in enumerate(n for c in own for n in leaf_indices(c))}
    entries = plan.entries(values, digests) if order else ()
    return Written(
        slots,
        tuple(digests[slot] for slot in slots),
        tuple(renumbered(child, order.__getitem__) for child in own),
        tuple(entries[leaf] for leaf in order),
        plan.private_pack,
    )


def decode_written(data: bytes) -> Written:
    """The report in the bytes of another process of this job."""
    return msgspec.msgpack.decode(data, type=Written)


def decode_intent(data: bytes) -> Intent:
    """The report in the bytes of another process of this job."""
    return msgspec.msgpack.decode(data, type=Intent)
