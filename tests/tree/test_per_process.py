"""PerProcess in one process: a node like others, whose key is the process."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import ckptmgr
from ckptmgr import PerProcess, UnsupportedLeaf, key_paths


def test_its_path_names_the_process() -> None:
    """So that those of several differ."""
    assert key_paths({"data": PerProcess({"at": 1})}) == ["data/0/at"]


def test_it_is_a_node_to_jax() -> None:
    """Mapped over, and made again."""
    doubled = jax.tree.map(lambda x: x * 2, PerProcess([1, 2]))
    assert doubled == PerProcess([2, 4])


def test_it_comes_back_with_and_without_like(tmp_path: Path) -> None:
    """Around whatever was in it."""
    tree = {"a": 1, "data": PerProcess((3, {"seen": np.arange(3)}, "x", None))}
    ckptmgr.save(tmp_path / "c", tree)
    for found in (ckptmgr.load(tmp_path / "c"), ckptmgr.load(tmp_path / "c", tree)):
        number, inside, text, none = found["data"].value
        assert (number, inside["seen"].tolist(), text, none) == (3, [0, 1, 2], "x", None)
    shown = ckptmgr.load_structure(tmp_path / "c")
    assert shown["data"].value[0] is int
    assert ckptmgr.load(tmp_path / "c", select="a") == {"a": 1, "data": None}


def test_an_empty_one_is_kept(tmp_path: Path) -> None:
    """As any container."""
    ckptmgr.save(tmp_path / "c", [PerProcess(None), PerProcess({})])
    assert ckptmgr.load(tmp_path / "c") == [PerProcess(None), PerProcess({})]


def test_one_inside_another_is_refused(tmp_path: Path) -> None:
    """It would be each process's own twice."""
    with pytest.raises(UnsupportedLeaf, match="lies in another") as caught:
        ckptmgr.save(tmp_path / "c", {"a": PerProcess(PerProcess(1))})
    assert caught.value.leaf is not None
