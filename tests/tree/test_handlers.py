"""Handlers take their own kind of leaf, exactly, and give it back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptmgr import UnsupportedFormat
from ckptmgr.tree.registry import Registry, unsupported

REGISTRY = Registry()


@pytest.mark.parametrize(
    ("leaf", "name"),
    [
        (jnp.ones(2), "jax.Array"),
        (np.ones(2), "numpy.ndarray"),
        (np.ones(2, ">i4"), "numpy.ndarray"),
        (np.float64(1), "numpy.generic"),
        (np.bool_(1), "numpy.generic"),
        (1, "python"),
        (True, "python"),
        ("a", "python"),
        (1j, "python"),
        (b"a", "bytes"),
        (bytearray(b"a"), "bytes"),
    ],
)
def test_each_leaf_has_its_handler_and_comes_back(leaf: object, name: str) -> None:
    """Class and value."""
    handler = REGISTRY.find(leaf)
    assert handler is not None
    assert handler.name == name
    back = handler.decode(handler.value(leaf), handler.arrays(leaf))
    assert type(back) is type(leaf)
    assert np.array_equal(np.asarray(back), np.asarray(leaf))


class MyDict(dict[str, int]):
    """A subclass that would come back as its base."""


@pytest.mark.parametrize(
    "leaf",
    [
        len, object(), MyDict(a=1), np.str_("a"), np.datetime64("2020-01-01"),
        np.array(["a"]), np.array([object()]), np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1]), jax.random.key(0),
    ],
    ids=lambda leaf: type(leaf).__name__,
)  # fmt: skip
def test_what_would_not_come_back_exactly_has_no_handler(leaf: object) -> None:
    """It is refused at save, with its class and path."""
    assert REGISTRY.find(leaf) is None
    error = unsupported(leaf, "a/b")
    assert type(leaf).__name__ in str(error)
    assert error.leaf == "a/b"


def test_a_tracer_is_told_to_leave_jit() -> None:
    """The usual mistake."""
    seen = []

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        seen.append((REGISTRY.find(x), str(unsupported(x, "x"))))
        return x

    step(jnp.ones(2))
    assert seen[0][0] is None
    assert "outside of jit" in seen[0][1]


def test_an_unknown_name_is_an_error() -> None:
    """Never skipped."""
    with pytest.raises(UnsupportedFormat, match="pickle"):
        REGISTRY.named("pickle", "a/b")
