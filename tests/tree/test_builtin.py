"""The built-in handlers take their own kind of leaf, exactly, and give it back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptmgr import NumpyStruct, UnsupportedLeaf
from ckptmgr.format.scalar import from_json, to_json
from ckptmgr.tree.handlers import Handler
from ckptmgr.tree.refusal import refuse
from ckptmgr.tree.registry import Registry

REGISTRY = Registry()


def handler_of(leaf: object) -> Handler:
    """The handler of a leaf."""
    handler = REGISTRY.find(leaf)
    assert handler is not None
    return handler


LEAVES = [
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
    (np.array(["2020-01-01", "NaT"], "M8[ms]"), "numpy.bits"),
    (np.array([[1, 2]], "m8[5s]").T, "numpy.bits"),
    (np.datetime64("2020-01-01T00:00:00.000000001"), "numpy.bits"),
    (np.array(1, np.longdouble) / 3, "numpy.bits"),
    (np.ones((2, 0, 3), np.clongdouble), "numpy.bits"),
]


@pytest.mark.parametrize(("leaf", "name"), LEAVES, ids=str)
def test_each_leaf_has_its_handler_and_comes_back(leaf: object, name: str) -> None:
    """Class, dtype and value."""
    handler = handler_of(leaf)
    assert handler.name == name
    value, arrays = handler.encode(leaf)
    back = handler.decode(from_json(to_json(value)), arrays)
    assert type(back) is type(leaf)
    assert getattr(back, "dtype", None) == getattr(leaf, "dtype", None)
    assert np.asarray(back).tobytes() == np.asarray(leaf).tobytes()
    assert np.asarray(back).shape == np.asarray(leaf).shape


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_keys_come_back_and_draw_the_same_numbers(impl: str, shape: tuple[int, ...]) -> None:
    """Single ones and arrays of them."""
    keys = jax.random.split(jax.random.key(7, impl=impl), shape)
    handler = handler_of(keys)
    back = handler.decode(*handler.encode(keys))
    assert isinstance(back, jax.Array)
    assert (back.dtype, back.shape) == (keys.dtype, keys.shape)
    for one, other in zip(back.reshape(-1), keys.reshape(-1), strict=True):
        assert jax.random.bits(one) == jax.random.bits(other)


@pytest.mark.parametrize(
    ("leaf", "form"),
    [
        (np.ones((2, 3), ">f4"), NumpyStruct((2, 3), np.dtype(">f4"))),
        (np.zeros(2, "M8[s]"), NumpyStruct((2,), np.dtype("M8[s]"))),
        (np.float32(1), np.float32),
        (jnp.bfloat16(1).item(), float),
        (True, bool),
        (bytearray(b"a"), bytearray),
        (np.timedelta64(1, "s"), np.timedelta64),
    ],
    ids=str,
)
def test_the_form_of_a_leaf_stands_for_it(leaf: object, form: object) -> None:
    """And the handler accepts it, or a leaf like it, where the leaf is to be restored."""
    handler = handler_of(leaf)
    value, arrays = handler.encode(leaf)
    shown = handler.form(
        value, {name: NumpyStruct(a.shape, a.dtype.newbyteorder("=")) for name, a in arrays.items()}
    )
    assert (shown, type(shown)) == (form, type(form))
    assert handler.accepts(shown, form)
    assert handler.accepts(shown, leaf)
    assert not handler.accepts(shown, object())


def test_long_doubles_of_another_machine_are_refused() -> None:
    """Never reinterpreted."""
    handler = handler_of(np.zeros(1, np.longdouble))
    value, arrays = handler.encode(np.zeros(1, np.longdouble))
    assert isinstance(value, tuple)
    with pytest.raises(ValueError, match="another"):
        handler.decode((value[0], 1, value[2]), arrays)


class MyDict(dict[str, int]):
    """A subclass that would come back as its base."""


class MyStr(str):
    """Another."""

    __slots__ = ()


class MyArray(np.ndarray):
    """Another."""


REFUSED = [
    len, object(), MyDict(a=1), MyStr("a"), np.str_("a"), np.bytes_(b"a"), np.array(["a"]),
    np.array([object()]), np.zeros(2, [("a", "i4")]), np.ma.masked_array([1]),
    jax.ShapeDtypeStruct((2,), jnp.float32), np.zeros(2).view(MyArray), np.zeros(2, ">M8[s]"),
    np.void(b"ab"),
]  # fmt: skip


@pytest.mark.parametrize("leaf", REFUSED, ids=lambda leaf: type(leaf).__name__)
def test_what_would_not_come_back_exactly_has_no_handler(leaf: object) -> None:
    """It is refused at save, with its class."""
    assert REGISTRY.find(leaf) is None
    with pytest.raises(UnsupportedLeaf, match=type(leaf).__name__):
        refuse(leaf)


def test_a_tracer_is_told_to_leave_jit() -> None:
    """The usual mistake."""
    seen = []

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        seen.append(REGISTRY.find(x))
        with pytest.raises(UnsupportedLeaf, match="outside of jit"):
            refuse(x)
        return x

    step(jnp.ones(2))
    assert seen == [None]
