"""Bytes and seconds as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.units import size, span


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_499, "1.5 kB"),
        (9_949, "9.9 kB"),
        (9_951, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1_800_000_000, "1.8 GB"),
        (5e21, "5000 EB"),
    ],
)
def test_bytes(nbytes: float, text: str) -> None:
    """In thousands, with two digits or all before the point."""
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 ms"),
        (0, "0.0 ms"),
        (0.00013, "0.1 ms"),
        (0.0013, "1.3 ms"),
        (0.5, "500 ms"),
        (1, "1.0 s"),
        (59, "59 s"),
        (90, "1.5 min"),
        (7200, "2.0 h"),
        (86400 * 12, "12 d"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    """In the largest unit of which there is one."""
    assert span(seconds) == text


@given(st.floats(0, 1e24))
def test_bytes_are_never_far_off(nbytes: float) -> None:
    """What is said is within half of its last digit."""
    number, unit = size(nbytes).split()
    said = float(number) * 1000 ** ["B", "kB", "MB", "GB", "TB", "PB", "EB"].index(unit)
    assert said == pytest.approx(nbytes, rel=0.06, abs=0.5)
