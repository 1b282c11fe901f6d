"""The planner: encodes each leaf of a tree, and makes the plan of what does not change."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final

import jax
import msgspec
import numpy as np

from ckptmgr.errors import CheckpointError
from ckptmgr.format.manifest import Node, leaf_indices, per_process
from ckptmgr.format.scalar import JSON, to_json
from ckptmgr.pipeline.cache import Cache
from ckptmgr.pipeline.draft import Draft
from ckptmgr.pipeline.leaf_options import NO_RULES, LeafRules
from ckptmgr.pipeline.plan import Arrays, Plan, Planned
from ckptmgr.pipeline.spread import Spread
from ckptmgr.tree import registered, structure
from ckptmgr.tree.handlers import Handler
from ckptmgr.tree.per_process import Processes
from ckptmgr.tree.refusal import refuse, refuse_contested, unstorable
from ckptmgr.tree.registry import Registry
from ckptmgr.tree.structure import PyTreeDef

_PACK: Final = 0  # the number of the pack, where a checkpoint is not added to
_ALONE: Final = Processes()


class _Verbatim(msgspec.Struct, frozen=True, gc=False):
    """The form of a jax array that is encoded as itself, whatever its values.

    Of a tree that is saved again most leaves have the same forms, which jax keeps: to see
    that costs a tenth of finding and asking their handlers.
    """

    kind: type[Any]
    aval: Hashable
    sharding: Hashable
    handler: Handler

    def fits(self, leaf: Any) -> bool:
        """Whether a leaf has this very form."""
        return type(leaf) is self.kind and leaf.aval is self.aval and leaf.sharding is self.sharding


class Planner:
    """Makes plans and keeps the last few.

    Args:
      registry: the handlers.
      pack_below: arrays of fewer bytes than this go into the pack.
      rules: the options of the leaves that do not take the default.
      number: that of the first pack.
      processes: which one this is, of how many that save together.
    """

    def __init__(
        self,
        registry: Registry,
        pack_below: int,
        rules: LeafRules = NO_RULES,
        number: int = _PACK,
        processes: Processes = _ALONE,
    ) -> None:
        self._registry = registry
        self._pack_below = pack_below
        self._rules = rules
        self._number = number
        self._processes = processes
        self._plans: Cache[Plan] = Cache(size=4)
        self._forms: tuple[Hashable, ...] = ()  # of the leaves of the last tree

    def plan(self, tree: object) -> Planned:
        """The plan for a tree, with what each leaf is encoded as.

        Raises:
          UnsupportedLeaf: something in it cannot be stored; the error has its path.
          InvalidOption: the options of a leaf do not fit it.
          TreeMismatch: a glob of the options matches no leaf.
        """
        leaves, treedef = structure.flatten(tree)
        handlers, arrays, values, form = self._encode(tree, leaves)
        # The treedef's text too: to Python, and so to it, the keys 1, True and 1.0 are the same.
        # And how many classes are registered: what was a stranger before may be one of them.
        kept = self._plans.slot(lambda: (treedef, repr(treedef), registered.count(), form))
        plan = kept.value
        if plan is None:
            plan = self._make(tree, leaves, treedef, handlers, arrays)
        elif structure.aux_of(treedef, plan.nodes) != plan.aux:
            plan = replace(plan, **_described(tree, treedef))
        kept.value = plan
        return Planned(plan, arrays, values)

    def _encode(
        self, tree: object, leaves: list[object]
    ) -> tuple[list[Handler], list[Arrays], list[JSON], tuple[Hashable, ...]]:
        """Each leaf's handler, arrays and JSON; and of all of them what a plan depends on."""
        handlers: list[Handler] = []
        arrays: list[Arrays] = []
        values: list[JSON] = []
        forms: list[Hashable] = []
        last = self._forms if len(self._forms) == len(leaves) else (None,) * len(leaves)
        try:
            for leaf, like in zip(leaves, last, strict=True):
                if type(like) is _Verbatim and like.fits(leaf):
                    handlers.append(like.handler)
                    arrays.append({"": leaf})  # type: ignore[dict-item]  # a jax.Array, as it fits
                    values.append(None)
                    forms.append(like)
                    continue
                handler = self._registry.find(leaf) or refuse(leaf)
                value, own = handler.encode(leaf)
                values.append(None if value is None else to_json(value))
                forms.append(self._form(leaf, handler, own))
                handlers.append(handler)
                arrays.append(own)
        except CheckpointError as error:
            error.leaf = _path(tree, len(handlers))
            raise
        except Exception as error:
            number = len(handlers)
            raise unstorable(leaves[number], _path(tree, number), error) from error
        self._forms = tuple(forms)
        return handlers, arrays, values, self._forms

    def _form(self, leaf: object, handler: Handler, arrays: Arrays) -> Hashable:
        """What a plan depends on of a leaf and its arrays."""
        if isinstance(leaf, jax.Array) and self._registry.is_verbatim(leaf, handler):
            return _Verbatim(type(leaf), leaf.aval, leaf.sharding, handler)
        form: list[Hashable] = [handler.name]
        for name, array in arrays.items():
            if type(array) is np.ndarray:
                form += (name, array.dtype, array.shape)
            else:
                form += (name, array.aval, array.sharding)  # type: ignore[union-attr]  # a jax.Array, or told so by the caller
        return tuple(form)

    def _make(
        self,
        tree: object,
        leaves: list[object],
        treedef: PyTreeDef,
        handlers: list[Handler],
        arrays: list[Arrays],
    ) -> Plan:
        paths, described = structure.key_paths(tree), _described(tree, treedef)
        private = self._private(described["structure"])
        shared = [n for n in range(len(leaves)) if n not in private]
        several = self._processes.count > 1
        sizes = (getattr(a, "nbytes", 0) for n in shared for a in arrays[n].values() if several)
        spread = Spread(self._processes, sum(sizes))
        draft = Draft(paths, handlers, self._pack_below, self._number, self._processes, spread)
        options = self._rules.of(paths)

        def add(number: int) -> None:
            leaf, handler = leaves[number], handlers[number]
            try:
                refuse_contested(leaf, paths[number], handler, self._registry.rival(leaf, handler))
                for name, array in arrays[number].items():
                    draft.add(number, name, array, options[number])
            except CheckpointError:
                raise
            except Exception as error:
                raise unstorable(leaf, paths[number], error) from error

        for number in shared:
            add(number)
        shared_slots = draft.seal()
        for number in sorted(private):
            add(number)
        return draft.finish(private, shared_slots, **described)

    def _private(self, node: Node) -> set[int]:
        """The leaves that this process has for itself, where there are others."""
        own = per_process(node) if self._processes.count > 1 else []
        return {leaf for found in own for leaf in leaf_indices(found)}


def _described(tree: object, treedef: PyTreeDef) -> dict[str, Any]:
    """What a plan holds of a tree's structure."""
    described = structure.describe(tree, treedef)
    nodes = structure.places(described)
    return {"structure": described, "nodes": nodes, "aux": structure.aux_of(treedef, nodes)}


def _path(tree: object, number: int) -> str:
    return structure.path_text(jax.tree_util.tree_flatten_with_path(tree)[0][number][0])
