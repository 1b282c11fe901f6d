"""The request of a load: what the caller asks for, checked without the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import jax
from jax.sharding import Mesh

from ckptmgr.errors import InvalidOption
from ckptmgr.pipeline.placing import Shardings
from ckptmgr.pipeline.select import Selection
from ckptmgr.tree import structure
from ckptmgr.tree.casting import Casting, parse_casting
from ckptmgr.tree.per_process import Processes


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks of a load, with what jax keeps per thread: made in the caller's.

    Attributes:
      like: leaves, treedef and key paths of the tree to restore into; None for the saved one.
      select: which leaves are wanted.
      shardings: where the caller wants them.
      casting: NumPy's word for what dtypes may become.
      devices, own_devices: those of all processes, and of this one.
      resize: whether arrays are padded with zeros, or cut, to the shape of `like`.
      broadcast: whether one replica reads for all, along which mesh axis.
    """

    like: Like | None
    select: Selection
    shardings: Shardings
    casting: Casting
    resize: bool
    devices: tuple[jax.Device, ...]
    own_devices: tuple[jax.Device, ...]
    default_device: jax.Device | str | None
    x64: bool
    processes: Processes
    broadcast: str | bool


@dataclass(frozen=True, slots=True)
class Like:
    """A tree to restore into."""

    leaves: list[object]
    treedef: structure.PyTreeDef
    paths: list[str]


class LoadOptions(TypedDict, total=False):
    """What every load takes, by name.

    Attributes:
      select: which leaves to read: a glob of key paths or a list of them ("params" is all
        below it), a prefix tree of bools, or a predicate of path and form. The others are
        None, or with `like` its own leaves; only what is selected is read.
      shardings: "numpy" for host arrays, a Sharding, a prefix tree of them, a dict of them by
        key path, or a list of rules (regex, Sharding), the first that matches wins. It goes
        before those of `like` and the saved ones.
      mesh: lets PartitionSpecs stand for Shardings, and puts the saved ones on it.
      casting: which dtypes may become which, in NumPy's words; "same_kind" by default.
      resize: pad with zeros, or cut at the end, what is not of the shape of `like`.
      broadcast: with several processes, only those of the first replica read the arrays that
        lie on devices of all; the others get them from it. True finds the mesh axis along
        which they are the same, or it is named. Every process must restore the same.
    """

    select: object
    shardings: object
    mesh: Mesh | None
    casting: str
    resize: bool
    broadcast: str | bool


def make_request(
    like: object,
    *,
    select: object = None,
    shardings: object = None,
    mesh: Mesh | None = None,
    casting: object = "same_kind",
    resize: bool = False,
    broadcast: str | bool = False,
) -> Request:
    """The request for these arguments, checked as far as they go without the checkpoint.

    Raises:
      InvalidOption: one of them is nothing that it can be.
      UnsupportedLeaf: `like` cannot be flattened.
    """
    if resize and like is None:
        raise InvalidOption("resize takes its shapes from like=, which is missing")
    if not isinstance(broadcast, str | bool):
        raise InvalidOption(f"broadcast is a bool or the name of a mesh axis, not {broadcast!r}")
    here = Processes(jax.process_index(), jax.process_count())
    target = None
    if like is not None:
        leaves, treedef = structure.flatten(like)
        target = Like(leaves, treedef, structure.key_paths(like))
    return Request(
        like=target,
        select=Selection(select),
        shardings=Shardings(shardings, mesh),
        resize=resize,
        casting=parse_casting(casting),
        devices=tuple(jax.devices()),
        own_devices=tuple(jax.local_devices()),
        default_device=jax.config.jax_default_device,  # type: ignore[attr-defined]  # made at run time
        x64=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]  # made at run time
        processes=here,
        broadcast=broadcast if here.count > 1 else False,
    )
