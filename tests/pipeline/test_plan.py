"""The plan: every byte of every leaf goes to exactly one place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ckptmgr import UnsupportedLeaf
from ckptmgr.pipeline.plan import Plan
from ckptmgr.pipeline.planner import Planner
from ckptmgr.tree.registry import Registry

MIB = 1 << 20


def planned(tree: object, pack_below: int = MIB) -> Plan:
    """The plan of a tree."""
    return Planner(Registry(), pack_below).plan(tree)[0]


def test_each_slot_has_one_place_and_a_leaf() -> None:
    """Files name consecutive slots; together they name all."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    sharded = jax.device_put(jnp.ones((64, 1024, 32)), NamedSharding(mesh, PartitionSpec("x", "y")))
    plan = planned({"a": jnp.ones((3000, 3000)), "b": sharded, "c": jnp.ones(3), "d": np.ones(2)})
    files = [cut.file for array in plan.own for box in array.boxes for cut in box.chunks]
    slots = [f.slot + i for f in [*files, *plan.pack_files] for i in range(len(f.spans))]
    assert sorted(slots) == list(range(len(plan.slot_leaf)))
    assert set(plan.slot_leaf) == {0, 1, 2, 3}
    assert len({file.path for file in files}) == len(files)
    written = sum(stop - start for f in [*files, *plan.pack_files] for start, stop in f.spans)
    assert written == plan.nbytes


def test_a_replicated_array_is_written_once() -> None:
    """However many devices hold it."""
    mesh = jax.make_mesh((8,), ("x",))
    copy = jax.device_put(jnp.ones((1024, 1024)), NamedSharding(mesh, PartitionSpec()))
    (array,) = planned([copy]).own
    assert [box.nbytes for box in array.boxes] == [4 * MIB]


def test_empty_arrays_and_python_values_take_no_file() -> None:
    """They live in the manifest."""
    plan = planned([jnp.zeros((0, 3)), 3, "text", None])
    assert (plan.own, plan.packed, plan.packs, plan.nbytes) == ((), (), (), 0)


def test_a_leaf_that_cannot_be_saved_is_named() -> None:
    """Before anything is written."""
    with pytest.raises(UnsupportedLeaf) as caught:
        planned({"model": [1, {"f": print}]})
    assert caught.value.leaf == "model/1/f"


@pytest.mark.parametrize("leaves", [100, 1000])
def test_small_leaves_share_one_file(leaves: int) -> None:
    """However many they are: files and syncs do not grow with them."""
    assert len(planned([jnp.ones(3)] * leaves).pack_files) == 1
