"""Writes the golden checkpoint of the format as it is: python -m tests.golden.make DIRECTORY."""

from __future__ import annotations

import sys
from collections import OrderedDict

import numpy as np

import ckptmgr
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


if __name__ == "__main__":
    with ckptmgr.CheckpointManager(sys.argv[1], pack_below=2000) as manager:
        manager.save(7, golden(), metrics={"loss": 0.5}, metadata={"golden": 1}).result()
