"""Partial writes: leaves are added to a checkpoint or replaced in it, atomically."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptmgr
from ckptmgr import (
    CheckpointManager,
    DamagedStep,
    InvalidOption,
    NoSuchStep,
    StepExists,
    StepHeld,
    TreeMismatch,
)
from tests.classes import Config, Layer
from tests.trees import Pair, assert_same, common


def merged(path: Path, *trees: Any) -> Any:
    """The first saved, the others merged into it."""
    first, *rest = trees
    ckptmgr.save(path / "tree", first, overwrite=True)
    for tree in rest:
        ckptmgr.save(path / "tree", tree, merge=True)
    return ckptmgr.load(path / "tree")


def test_what_was_written_before_is_still_there(tmp_path: Path) -> None:
    """A11: after each merge."""
    ones = jnp.ones(10)
    trees = [[None, None, None], [1, None, None], [None, 4, None], [None, None, ones]]
    expected = [[None, None, None], [1, None, None], [1, 4, None], [1, 4, ones]]
    for count in range(1, 5):
        assert_same(merged(tmp_path, *trees[:count]), expected[count - 1])


leaves = st.integers(0, 3) | st.integers(1, 3).map(np.arange)
trees = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner)
        | st.tuples(inner, inner).map(list)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


class Clash(Exception):
    """Two containers that cannot be merged."""


def model(old: Any, new: Any) -> Any:
    """What merging means, in a few lines."""
    if new is None:
        return old
    nodes = (dict, list, tuple)
    if old is None or not (isinstance(old, nodes) or isinstance(new, nodes)):
        return new
    if type(old) is not type(new) or (not isinstance(old, dict) and len(old) != len(new)):
        raise Clash
    if isinstance(old, dict):
        return {k: model(old.get(k), new.get(k)) for k in {**old, **new}}
    return type(old)(model(a, b) for a, b in zip(old, new, strict=True))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=trees, new=trees)
def test_any_two_trees_are_merged_as_defined_or_refused(tmp_path: Path, old: Any, new: Any) -> None:
    """And after a refusal the former checkpoint is as it was."""
    try:
        expected = model(old, new)
    except Clash:
        with pytest.raises(TreeMismatch):
            merged(tmp_path, old, new)
        expected = old
    else:
        merged(tmp_path, old, new)
    assert_same(ckptmgr.load(tmp_path / "tree"), expected)


def test_every_kind_of_leaf_is_kept_and_replaced(tmp_path: Path) -> None:
    """Large, small, empty, plain."""
    tree = {"a": common(), "b": common()}
    found = merged(tmp_path, tree, {"b": {"large": jnp.zeros(3), "text": "new", "list": None}})
    expected = {"a": common(), "b": {**common(), "large": jnp.zeros(3), "text": "new"}}
    assert_same(found, {**expected, "b": dict(sorted(expected["b"].items()))})


@pytest.mark.parametrize(
    ("old", "new", "where", "why"),
    [
        ([1, 2], [1, 2, 3], "", "a list of 3 into a list of 2"),
        ({"a": [1]}, {"a": (1,)}, "a", "a tuple of 1 into a list of 1"),
        ({"a": {"b": 1}}, {"a": 1}, "a", "a leaf into a dict"),
        ({"a": 1}, {"a": {"b": 1}}, "a", "a dict into a leaf"),
        ({"a": 1}, OrderedDict(a=1), "", "an OrderedDict into a dict"),
        ([Pair(1, 2)], [(1, 2)], "0", "a tuple of 2 into a Pair of 2"),
        ([Layer(1, 2, "a")], [Layer(1, 2, "b")], "0", "a tests.layer of 2"),
        ([Config("a")], [Config("b")], "0", "a tests.config of 0"),
        ({"1": 1}, {1: 2}, "", "no order"),
    ],
    ids=str,
)
def test_containers_that_differ_are_an_error_with_their_path(
    tmp_path: Path, old: Any, new: Any, where: str, why: str
) -> None:
    """Before anything is written."""
    with pytest.raises(TreeMismatch, match=why) as caught:
        merged(tmp_path, old, new)
    assert caught.value.leaf == where
    assert_same(ckptmgr.load(tmp_path / "tree"), old)
    assert os.listdir(tmp_path) == ["tree"]


def inodes(path: Path) -> dict[str, int]:
    """The data files below a path."""
    return {str(f.relative_to(path)): f.stat().st_ino for f in path.rglob("c.*") if f.is_file()}


def test_untouched_files_are_linked_and_those_of_no_use_are_gone(tmp_path: Path) -> None:
    """Each pack as long as something in it is needed."""
    big = np.ones((600, 600))
    ckptmgr.save(tmp_path / "tree", {"a": big, "b": big, "s": np.ones(3), "t": np.ones(4)})
    before = inodes(tmp_path / "tree")
    ckptmgr.save(tmp_path / "tree", {"b": big * 2, "s": np.zeros(3)}, merge=True)
    after = inodes(tmp_path / "tree")
    assert after["arrays/a/c.0.0"] == before["arrays/a/c.0.0"]
    assert after["packs/0/c.0"] == before["packs/0/c.0"]
    assert after["arrays/b/c.0.0"] != before["arrays/b/c.0.0"]
    assert sorted(os.listdir(tmp_path / "tree" / "packs")) == ["0", "1"]
    ckptmgr.save(tmp_path / "tree", {"s": np.ones(5), "t": np.ones(6)}, merge=True)
    assert os.listdir(tmp_path / "tree" / "packs") == ["2"]
    found = ckptmgr.load(tmp_path / "tree")
    assert_same(found, {"a": big, "b": big * 2, "s": np.ones(5), "t": np.ones(6)})


def test_files_are_copied_where_links_are_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As across file systems."""
    tree = {"a": np.random.default_rng(0).random((600, 600)), "s": np.ones(3)}
    ckptmgr.save(tmp_path / "tree", tree)
    before = inodes(tmp_path / "tree")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    ckptmgr.save(tmp_path / "tree", {"n": 1}, merge=True)
    assert not set(before.values()) & set(inodes(tmp_path / "tree").values())
    assert_same(ckptmgr.load(tmp_path / "tree"), {"a": tree["a"], "s": tree["s"], "n": 1})


def test_what_was_said_of_the_checkpoint_is_kept(run: Path) -> None:
    """Step, metrics, metadata; metadata is added to."""
    with CheckpointManager(run) as manager:
        manager.save(7, {"a": 1}, metrics={"loss": 0.5}, metadata={"x": 1, "y": 2}).result()
    info = ckptmgr.save(run / "step-00000007", {"b": 2}, merge=True, metadata={"y": 3})
    assert (info.step, info.metrics, info.metadata) == (7, {"loss": 0.5}, {"x": 1, "y": 3})
    assert (info.leaves, ckptmgr.load(run)) == (2, {"a": 1, "b": 2})


def test_merging_needs_a_checkpoint_and_excludes_overwriting(tmp_path: Path) -> None:
    """A mistyped path must not start a checkpoint of a part."""
    with pytest.raises(NoSuchStep, match="without merge"):
        ckptmgr.save(tmp_path / "none", {"a": 1}, merge=True)
    with pytest.raises(InvalidOption, match="one of them"):
        ckptmgr.save(tmp_path / "none", {"a": 1}, merge=True, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_of_what_is_kept_is_an_error(tmp_path: Path) -> None:
    """The former checkpoint is as it was."""
    ckptmgr.save(tmp_path / "tree", {"a": np.ones((600, 600)), "n": 1})
    (tmp_path / "tree" / "arrays" / "a" / "c.0.0").unlink()
    with pytest.raises(DamagedStep, match="missing") as caught:
        ckptmgr.save(tmp_path / "tree", {"n": 2}, merge=True)
    assert caught.value.leaf == "a"
    assert ckptmgr.load(tmp_path / "tree", select="n")["n"] == 1
    assert os.listdir(tmp_path) == ["tree"]


def test_a_checkpoint_that_changes_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's leaves would be lost."""
    ckptmgr.save(tmp_path / "tree", {"a": np.ones((600, 600)), "n": 1})
    again: list[bool] = []
    real = os.link

    def link(*arguments: Any, **how: Any) -> None:
        if not again:
            again.append(True)
            ckptmgr.save(tmp_path / "tree", {"m": 3}, merge=True)
        real(*arguments, **how)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ckptmgr.CheckpointError):
        ckptmgr.save(tmp_path / "tree", {"n": 2}, merge=True)
    found = ckptmgr.load(tmp_path / "tree")
    assert (found["n"], found["m"]) == (1, 3)


@pytest.mark.parametrize("call", ["fdatasync", "link", "fsync"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_at_any_point_of_a_merge_the_former_is_whole(
    tmp_path: Path, call: str, nth: int
) -> None:
    """And can be merged into again."""
    tree = {"a": np.ones((600, 600)), "b": np.ones((600, 600)), "s": np.ones(3), "t": np.ones(2)}
    ckptmgr.save(tmp_path / "tree", tree)
    script = f"""
    import os, signal, sys
    import numpy as np, ckptmgr
    real, left = os.{call}, {nth}
    def dies(*arguments, **how):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **how)
    os.{call} = dies
    ckptmgr.save(sys.argv[1], {{"b": np.zeros((600, 600)), "s": np.zeros(4)}}, merge=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "tree")]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert_same(ckptmgr.load(tmp_path / "tree"), tree)
    ckptmgr.save(tmp_path / "tree", {"n": 1}, merge=True)
    assert_same(ckptmgr.load(tmp_path / "tree"), {**tree, "n": 1})


def test_no_update_of_concurrent_merges_is_lost(tmp_path: Path) -> None:
    """Each is either there or was refused."""
    ckptmgr.save(tmp_path / "tree", {"start": 0})
    done: list[str] = []
    refused: list[Exception] = []

    def merge(worker: int) -> None:
        for number in range(8):
            try:
                ckptmgr.save(tmp_path / "tree", {f"{worker}_{number}": number}, merge=True)
                done.append(f"{worker}_{number}")
            except (StepExists, StepHeld) as error:
                refused.append(error)

    threads = [threading.Thread(target=merge, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) + len(refused) == 24
    assert set(ckptmgr.load(tmp_path / "tree")) == {"start", *done}


def test_a_checkpoint_is_merged_into_through_a_link(tmp_path: Path) -> None:
    """The link stays one."""
    ckptmgr.save(tmp_path / "tree", {"a": 1})
    (tmp_path / "link").symlink_to("tree")
    ckptmgr.save(tmp_path / "link", {"b": 2}, merge=True)
    assert (tmp_path / "link").is_symlink()
    assert ckptmgr.load(tmp_path / "tree") == ckptmgr.load(tmp_path / "link") == {"a": 1, "b": 2}
    ckptmgr.save(tmp_path / "link", {"c": 3}, overwrite=True)
    assert ckptmgr.load(tmp_path / "tree") == {"c": 3}
    assert sorted(os.listdir(tmp_path)) == ["link", "tree"]


@pytest.mark.parametrize(("old", "new"), [({1: "a"}, {True: "b"}), ({1: "a"}, {"x": "b"})])
def test_keys_that_no_dict_could_have_together_are_refused(
    tmp_path: Path, old: Any, new: Any
) -> None:
    """Or that jax could not sort."""
    with pytest.raises(TreeMismatch, match="same or have no order"):
        merged(tmp_path, old, new)
    assert ckptmgr.load(tmp_path / "tree") == old
