"""Casting in NumPy's words."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ckptmgr import InvalidOption, UnsupportedLeaf
from ckptmgr.format.zarr import DTYPES
from ckptmgr.tree.casting import can_cast, can_store, fill, parse_casting


@pytest.mark.parametrize(
    ("source", "target", "rule", "allowed"),
    [
        ("float32", "bfloat16", "same_kind", True),
        ("float32", "int32", "same_kind", False),
        ("int32", "float32", "same_kind", True),
        ("complex64", "float32", "same_kind", False),
        ("bool", "int8", "same_kind", True),
        ("int32", "uint32", "same_kind", False),
        ("uint32", "int32", "same_kind", True),
        ("int4", "int2", "unsafe", False),
        ("bfloat16", "float32", "safe", True),
        ("float32", "bfloat16", "safe", False),
        ("float32", "int8", "unsafe", True),
        ("float32", "float64", "no", False),
        ("float32", "float32", "no", True),
    ],
)
def test_what_may_become_what(source: str, target: str, *, rule: str, allowed: bool) -> None:
    """ml_dtypes count as the floats and ints that they are."""
    assert can_cast(DTYPES[source], DTYPES[target], parse_casting(rule)) is allowed


def test_an_unknown_word_is_refused() -> None:
    """With the words there are."""
    with pytest.raises(InvalidOption, match="same_kind"):
        parse_casting("lossy")


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ([1.0, -0.0, np.inf, np.nan], "bfloat16", True),
        ([65504.0], "float16", True),
        ([65520.0], "float16", False),
        ([1e30, np.inf], "float16", False),
        ([6.0], "float4_e2m1fn", True),
        ([7.0], "float4_e2m1fn", False),
        ([np.nan], "float4_e2m1fn", False),
        (np.array([1 + 2j]), "complex64", True),
        (np.array([1 + 1e300j]), "complex64", False),
        (np.array([127, -128]), "int8", True),
        (np.array([128]), "int8", False),
        (np.array([200], np.uint8), "int16", True),
        (np.array([7], np.int32), "int4", True),
        (np.array([8], np.int32), "int4", False),
        ([np.inf], "float4_e2m1fn", False),
        ([-np.inf], "float8_e5m2", True),
        (np.full((700, 700), 1e9), "float32", True),
        (np.where(np.arange(600_000) == 599_999, 1e39, 1), "float32", False),
    ],
)
def test_values_survive_a_cast_or_are_refused(source: object, target: str, *, fits: bool) -> None:
    """Integers exactly, floats without overflow; rounding is what was asked for."""
    array = np.asarray(source)
    filled = np.zeros(array.shape, DTYPES[target])
    if fits:
        fill(filled, array, "w")
        assert np.array_equal(filled, array.astype(DTYPES[target]), equal_nan=True)
    else:
        with pytest.raises(UnsupportedLeaf, match=f"do not fit into {target}") as caught:
            fill(filled, array, "w")
        assert caught.value.leaf == "w"


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("float32", "bfloat16", True),
        ("float64", "float32", True),
        ("int64", "int8", True),
        ("uint8", "int16", True),
        ("uint8", "int8", False),
        ("int8", "uint8", False),
        ("int32", "float64", False),
        ("bool", "int8", False),
        ("float32", "int32", False),
        ("complex128", "complex64", True),
        ("complex64", "float32", False),
        ("int4", "int2", False),
    ],
)
def test_what_may_be_stored_as_what(source: str, target: str, *, allowed: bool) -> None:
    """Of the same kind, where there is code for it."""
    assert can_store(DTYPES[source], DTYPES[target]) is allowed


def test_a_cast_needs_no_memory_to_speak_of() -> None:
    """What it needs beside the array counts nowhere."""
    source = np.ones((2000, 2000), np.float32)
    target = np.zeros(source.shape, np.float16)
    tracemalloc.start()
    try:
        fill(target, source, "w")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < source.nbytes / 2
