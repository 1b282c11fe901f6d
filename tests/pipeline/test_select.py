"""Partial reads: what is selected comes back, and nothing else is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ckptmgr
from ckptmgr import CheckpointManager, InvalidOption, TreeMismatch
from ckptmgr.storage.local import LocalStorage
from tests.trees import assert_same


class Counting(LocalStorage):
    """Counts the bytes and calls of reads of data files."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read_bytes = 0
        self.reads = 0

    def read_into(self, key: str, buffer: memoryview, **how: Any) -> None:
        """Counted."""
        self.read_bytes += len(buffer)
        self.reads += 1
        super().read_into(key, buffer, **how)


def state() -> dict[str, Any]:
    """Parameters and an optimizer's state, large and small arrays."""
    params = {
        "embed": jnp.arange(600_000, dtype=jnp.float32),
        **{f"layer_{i}": {"w": jnp.full((64, 64), i), "b": jnp.full(64, i)} for i in range(8)},
    }
    return {"params": params, "opt_state": optax.adam(1e-3).init(params), "data_iter": {"epoch": 3}}


def nbytes(tree: Any) -> int:
    """The bytes of its arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))


def test_one_tree_of_several_is_loaded_alone_and_reads_only_its_bytes(run: Path) -> None:
    """Params out of params, mu and nu: a third of the bytes, each of them once."""
    storage, tree = Counting(str(run)), state()
    with CheckpointManager(run, storage=storage) as manager:
        manager.save(0, tree).result()
        for like in (None, {"params": tree["params"]}):
            storage.read_bytes = 0
            found = manager.restore(0, like, select="params")
            assert_same(found["params"], tree["params"])
            # The small arrays of params lie side by side in the pack, padded to 64 bytes.
            assert nbytes(tree["params"]) <= storage.read_bytes < nbytes(tree["params"]) + 64 * 17
            assert storage.read_bytes < 0.4 * nbytes(tree)


def test_scattered_leaves_are_read_one_by_one(run: Path) -> None:
    """Of a pack only the ranges that are wanted."""
    storage = Counting(str(run))
    tree = [np.full(1000, i, np.float32) for i in range(100)]
    with CheckpointManager(run, storage=storage) as manager:
        manager.save(0, tree).result()
        found = manager.restore(0, select=["7", "50", "51", "99"])
    assert [i for i, leaf in enumerate(found) if leaf is not None] == [7, 50, 51, 99]
    assert all(np.array_equal(found[i], tree[i]) for i in (7, 50, 51, 99))
    assert (storage.reads, storage.read_bytes) == (3, 4 * 4000 + 32)


def test_what_is_selected_alone_may_be_written_to(run: Path) -> None:
    """Though the arrays of one read share a buffer until they are handed out."""
    with CheckpointManager(run) as manager:
        manager.save(0, [np.ones(3), np.ones(3), np.ones(3)]).result()
        found = manager.restore(0, select=["0", "1"])
    found[0][:] = 7
    assert list(found[1]) == [1, 1, 1]


@pytest.mark.parametrize(
    ("tree", "select", "expected"),
    [
        ([1, 2, 3], False, [None, None, None]),
        ([1, 2, 3], [True, False, False], [1, None, None]),
        (
            [1, {"world": [2, (3, 4)], "x": 5}, 6],
            [True, {"world": [True, (False, True)]}, False],
            [1, {"world": [2, (None, 4)], "x": None}, None],
        ),
        ({"params": {"a": 1}, "n": 2}, "params/*", {"params": {"a": 1}, "n": None}),
        ({"params": {"a": 1}, "n": 2}, "params", {"params": {"a": 1}, "n": None}),
        ({"params": {"a": 1}, "n": 2}, ["*/a", "n"], {"params": {"a": 1}, "n": 2}),
        ({"params": {"a": 1}, "n": 2}, [], {"params": {"a": None}, "n": None}),
        ({"params": {"a": 1}, "n": 2}, {"params": True}, {"params": {"a": 1}, "n": None}),
        ({"p": {"a": 1}, "n": 2}, {"n": np.bool_(1), "p": None}, {"p": {"a": None}, "n": 2}),
        ({"a": 1, "b": "x"}, lambda path, leaf: path == "a", {"a": 1, "b": None}),
        ({"a": 1, "b": "x"}, lambda path, leaf: leaf is str, {"a": None, "b": "x"}),
        ({"a": 1}, None, {"a": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_globs_trees_of_bools_and_predicates(
    tmp_path: Path, tree: Any, select: Any, expected: Any
) -> None:
    """A8: what is not selected is None, and the structure stays."""
    ckptmgr.save(tmp_path / "tree", tree)
    assert ckptmgr.load(tmp_path / "tree", select=select) == expected


def test_a_predicate_sees_shapes_and_dtypes(tmp_path: Path) -> None:
    """As load_structure shows them."""
    ckptmgr.save(tmp_path / "tree", {"a": jnp.ones((2, 3)), "b": np.ones(4)})
    found = ckptmgr.load(tmp_path / "tree", select=lambda _, leaf: leaf.shape == (2, 3))
    assert found["b"] is None
    assert_same(found["a"], jnp.ones((2, 3)))


def test_what_is_not_selected_is_the_leaf_of_like_itself(tmp_path: Path) -> None:
    """Whether it was saved or not."""
    ckptmgr.save(tmp_path / "tree", {"a": jnp.ones(3), "b": jnp.zeros(3), "c": 1})
    like = {"a": jnp.zeros(3), "b": jnp.ones(7), "new": object()}
    found = ckptmgr.load(tmp_path / "tree", like=like, select="a")
    assert_same(found["a"], jnp.ones(3))
    assert found["b"] is like["b"]
    assert found["new"] is like["new"]


def test_a_like_that_is_a_part_needs_select(tmp_path: Path) -> None:
    """The error says so."""
    ckptmgr.save(tmp_path / "tree", {"a": 1, "b": 2})
    with pytest.raises(TreeMismatch, match="'b': saved int, not asked for; select="):
        ckptmgr.load(tmp_path / "tree", like={"a": 0})
    assert ckptmgr.load(tmp_path / "tree", like={"a": 0}, select="a") == {"a": 1}
    with pytest.raises(TreeMismatch, match="'b': saved int, not asked for"):
        ckptmgr.load(tmp_path / "tree", like={"a": 0}, select="*")
    with pytest.raises(TreeMismatch, match="'z': asked for int, not saved"):
        ckptmgr.load(tmp_path / "tree", like={"a": 0, "z": 1}, select=["a", "z"])


@pytest.mark.parametrize(
    ("select", "error", "why"),
    [
        ("prams", TreeMismatch, "'prams' matches no leaf.*'params/a'"),
        (["params", "nope"], TreeMismatch, "'nope' matches no leaf"),
        ({"nope": True}, TreeMismatch, "does not hold"),
        ({"params": 1}, InvalidOption, "it holds 1"),
        (3, InvalidOption, "it holds 3"),
    ],
)
def test_a_selection_that_names_nothing_is_an_error(
    tmp_path: Path, select: Any, error: type[Exception], why: str
) -> None:
    """It is a typing mistake."""
    ckptmgr.save(tmp_path / "tree", {"params": {"a": 1}})
    with pytest.raises(error, match=why):
        ckptmgr.load(tmp_path / "tree", select=select)


def test_shardings_need_to_cover_only_what_is_selected(tmp_path: Path) -> None:
    """And may speak of more."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    ckptmgr.save(tmp_path / "tree", {"a": jnp.ones(3), "b": jnp.ones(3)})
    for shardings in ({"a": place}, {"a": place, "b": place}):
        found = ckptmgr.load(tmp_path / "tree", select="a", shardings=shardings)
        assert found["a"].devices() == {jax.devices()[3]}


def test_resume_takes_a_part_too(run: Path) -> None:
    """The rest stays as it is."""
    with CheckpointManager(run) as manager:
        manager.save(5, {"params": 1, "opt": 2}).result()
        assert manager.resume({"params": 0, "lr": 3}, select="params") == (
            5,
            {"params": 1, "lr": 3},
        )


def test_a_predicate_that_raises_is_an_error_with_the_leafs_path(tmp_path: Path) -> None:
    """It is the caller's."""
    ckptmgr.save(tmp_path / "tree", {"a": 1})
    with pytest.raises(InvalidOption, match="ZeroDivisionError") as caught:
        ckptmgr.load(tmp_path / "tree", select=lambda *_: 1 / 0)
    assert caught.value.leaf == "a"
