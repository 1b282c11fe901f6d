"""Writes the golden checkpoints of the format as it is: python -m tests.golden.make DIRECTORY."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict

import jax
import numpy as np

import ckptmgr
from ckptmgr import LeafOptions
from tests.classes import Config, Layer, Point, Words
from tests.trees import Pair


def golden() -> dict[str, object]:
    """A tree of every kind of leaf and container that format 1 holds, without jax arrays."""
    return {
        "large": np.arange(3000, dtype=np.float32).reshape(50, 60),
        "dtypes": {name: np.ones(3, name) for name in ("bool", "int8", "uint64", "complex64")},
        "big_endian": np.arange(3, dtype=">i4"),
        "scalar": np.float32(3),
        "empty": np.zeros((0, 3)),
        "python": [True, 3, 2**100, -0.0, float("inf"), 1 - 2j, "é\ud800", None],
        "bytes": (b"bytes", bytearray(b"array")),
        "pair": Pair(1, ()),
        "ordered": OrderedDict(z=1, a={}),
        "keys": {1: {True: "a"}, 2: {(1, "x"): "b"}, 3: {"A": 1, "a": 2, "a/b": 3, "..": 4}},
    }


def leaves() -> dict[str, object]:
    """Keys, dates, registered classes, and arrays of every codec; as it is after a merge."""
    numbers = np.arange(192, dtype=np.float32).reshape(12, 16)
    return {
        "keys": {
            impl: jax.random.split(jax.random.key(1, impl=impl), 2)
            for impl in ("threefry2x32", "rbg", "unsafe_rbg")
        },
        "dates": [np.array(["2020-01-01", "NaT"], "M8[ms]"), np.timedelta64(5, "s")],
        "nodes": [Layer(np.ones(2), None, "gelu"), Config("depth=2"), Point(1, [2])],
        "words": [Words(["a", (1, {2: b"x"})]), Words({"w": np.arange(3), "n": b"y"})],
        "zstd": numbers,
        "inside": numbers.astype(np.int64),
        "chunks": numbers > 1,
        "merged": numbers[0],
    }


OPTIONS = [
    ("zstd", LeafOptions(compression="zstd:9")),
    ("inside", LeafOptions(write_chunk=(6, 8), read_chunk=(3, 4), compression="zstd")),
    ("chunks", LeafOptions(write_chunk=(4, 16))),
]


if __name__ == "__main__":
    with ckptmgr.CheckpointManager(
        os.path.join(sys.argv[1], "format-1"), pack_below=2000
    ) as manager:
        manager.save(7, golden(), metrics={"loss": 0.5}, metadata={"golden": 1}).result()
    path = os.path.join(sys.argv[1], "format-1-leaves")
    ckptmgr.save(path, {**leaves(), "merged": 0}, leaf_options=OPTIONS)
    ckptmgr.save(path, {"merged": leaves()["merged"]}, merge=True)
