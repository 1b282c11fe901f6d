"""Exact JSON of Python's own values."""

from __future__ import annotations

import math
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.format.scalar import from_json, to_json

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(),
    st.text(st.characters(categories=["Cs"])), st.binary(),
)  # fmt: skip


def bits(value: object) -> object:
    """What tells two values apart, class, sign of zero and NaN payload included."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return complex, struct.pack(">dd", value.real, value.imag)
    return type(value), value


@given(scalars)
def test_every_value_comes_back_through_real_json(value: object) -> None:
    """Bit for bit."""
    back = from_json(msgspec.json.decode(msgspec.json.encode(to_json(value))))
    assert bits(back) == bits(value)


def test_a_nan_keeps_its_payload_and_a_long_int_its_digits() -> None:
    """Which repr would lose."""
    payload = struct.unpack(">d", bytes.fromhex("7ff800000000beef"))[0]
    assert bits(from_json(to_json(payload))) == bits(payload)
    assert from_json(to_json(10**6000)) == 10**6000


def test_containers_nest() -> None:
    """Tuples, as keys of dicts have them; lists and dicts in what a registered class stores."""
    for value in ((1, ("a", None)), [1, (2,)], {1: [], "b": {(1, 2): 0.5}}):
        assert bits(from_json(to_json(value))) == bits(value)


@pytest.mark.parametrize("value", [np.float64(1), np.str_("a"), {1}, bytearray(), object()])
def test_subclasses_and_others_are_refused(value: object) -> None:
    """They would come back as something else."""
    with pytest.raises(TypeError, match="no exact JSON form"):
        to_json(value)


@pytest.mark.parametrize(
    "data",
    [
        {"int": 3}, {"exec": "x"}, {"int": "1", "b": 2}, {}, [1], {"dict": [[1]]}, {"dict": [1]},
        {"dict": [[{"list": []}, 1]]},
    ],
)  # fmt: skip
def test_what_was_never_written_is_refused(data: object) -> None:
    """A hostile manifest gets a ValueError."""
    with pytest.raises(ValueError, match=r"value|key"):
        from_json(data)  # type: ignore[arg-type]  # hostile


def test_finite_floats_stay_readable() -> None:
    """The manifest is for people too."""
    assert to_json(0.1) == 0.1
    assert to_json(math.inf) == {"float": "7ff0000000000000"}
