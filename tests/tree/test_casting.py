"""Casting in NumPy's words."""

from __future__ import annotations

import pytest

from ckptmgr import InvalidOption
from ckptmgr.format.zarr import DTYPES
from ckptmgr.tree.casting import can_cast, parse_casting


@pytest.mark.parametrize(
    ("source", "target", "rule", "allowed"),
    [
        ("float32", "bfloat16", "same_kind", True),
        ("float32", "int32", "same_kind", False),
        ("int32", "float32", "same_kind", True),
        ("complex64", "float32", "same_kind", False),
        ("bool", "int8", "same_kind", True),
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
